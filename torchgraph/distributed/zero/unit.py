"""Parameters that are gathered, and whose gradients are reduced, together."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from ..._torch import storage_id
from ..._torch.distributed import collectives
from ..._torch.distributed.held import as_dtensor, layout_of, local
from ..._torch.distributed.tensors import laid_out
from ..._torch.tensors import share_hooks, version_of
from .peers import Peers, Precision
from .pieces import Pieces


@dataclass(frozen=True)
class CutParameter:
    """A parameter sharded over a group, or, if small, whole on each of its ranks."""

    parameter: torch.Tensor
    """A DTensor."""
    pieces: Pieces | None
    """None: it lies whole on each rank."""
    inner: Any = None
    """How it lies over another mesh when it is gathered, as `layout_of` gives it; None: plain."""
    stages: frozenset[int] = frozenset()
    """The pipeline stages that use it: no others travel with it."""


@dataclass
class Unit:
    """Sharded parameters of one dtype that share collectives. ``parts``: as modules hold them."""

    parts: Sequence[CutParameter]
    peers: Peers
    precision: Precision = field(default_factory=Precision)
    whole: list[torch.Tensor] = field(default_factory=list)
    """What modules compute with in this step: leaves of autograd; empty before the first use."""
    _former: list[list[torch.Tensor]] = field(default_factory=list)
    """What they computed with before, and a backward may still go to."""
    _versions: list[int] = field(default_factory=list)
    _memory: list[int] = field(default_factory=list)
    _kept: dict[int, torch.Tensor] = field(default_factory=dict)
    """By part, sums of gradients in the dtype in which they are reduced."""
    stale: bool = False
    """True where a part may have been written since."""

    def gathered(self) -> list[torch.Tensor]:
        """The gathered parameters, made anew when a shard was written since."""
        held = [one for part in self.parts for one in (part.parameter, local(part.parameter))]
        versions = [version_of(one) for one in held]  # an op on a DTensor counts on that one alone
        if self.stale or not self.whole or versions != self._versions:
            with torch.no_grad():
                found = self._gather()
            pairs = zip(self.parts, found, strict=True)
            self._former.append(self.whole)
            hooked = self.peers.hooked
            self.whole = [_leaf(part, one, hooked=hooked) for part, one in pairs]
            self._versions, self.stale = versions, False
            self._memory = list(map(storage_id, self.whole))
        for part, whole in zip(self.parts, self.whole, strict=True):
            if whole.requires_grad is not part.parameter.requires_grad:
                whole.requires_grad_(part.parameter.requires_grad)
        return self.whole

    def has_own(self, memory: int) -> CutParameter | None:
        """The parameter whose gathered tensor is that storage: a write there would be lost."""
        pairs = zip(self.parts, self._memory, strict=False)
        return next((part for part, own in pairs if own == memory and part.pieces), None)

    def moved(self) -> bool:
        """True when ``weight.data = ...`` replaced the storage of a gathered parameter."""
        return list(map(storage_id, self.whole)) != self._memory

    def forget(self) -> None:
        """Free the gathered parameters."""
        self.whole, self._versions, self._memory, self.stale = [], [], [], False
        self._kept.clear()
        self._former.clear()

    def spoil(self) -> None:
        """End of a backward pass: writes of shards are allowed from now on."""
        self._fold()
        self._former.clear()
        self.stale = True

    @torch.no_grad()
    def _fold(self) -> None:
        """Add up the gradients of one parameter that was gathered several times."""
        for leaves in self._former:
            for whole, former in zip(self.whole, leaves, strict=False):
                if former.grad is not None:
                    own, former.grad = former.grad, None
                    whole.grad = own if whole.grad is None else whole.grad + own

    def has_gradients(self) -> list[bool]:
        """For each parameter, whether a backward pass has left a gradient."""
        if not self.whole:
            return [False] * len(self.parts)
        self._fold()
        return [i in self._kept or one.grad is not None for i, one in enumerate(self.whole)]

    @torch.no_grad()
    def keep(self) -> None:
        """Accumulate unreduced gradients in the dtype in which they will be reduced."""
        dtype = self.precision.reduces
        for number, whole in enumerate(self.whole if dtype else ()):
            if whole.grad is not None:
                gradient, whole.grad = whole.grad.to(dtype), None
                before = self._kept.get(number)
                self._kept[number] = gradient if before is None else before + gradient

    @torch.no_grad()
    def reduce(self, used: Sequence[bool]) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        """(parameter, the mean of its gradients over the ranks, in its layout).

        Args:
            used: by part, whether any rank has a gradient for it. One that has none has zeros.
        """
        mine = [number for number, each in enumerate(used) if each]
        if not mine:
            return
        self.keep()
        found = [self._taken(number) for number in mine]
        parts = [self.parts[number] for number in mine]
        for part, mean in zip(parts, self._means(parts, found), strict=True):
            yield part.parameter, as_dtensor(mean, layout_of(part.parameter))

    # --- collectives ------------------------------------------------------------------------------

    def _gather(self) -> list[torch.Tensor]:
        cut = [part for part in self.parts if part.pieces is not None]
        held = {id(part): self._computed(local(part.parameter)) for part in self.parts}
        wholes = dict(held)
        if cut:
            flat = [part.pieces.padded(held[id(part)]) for part in cut if part.pieces]
            mine = flat[0] if len(flat) == 1 else torch.cat(flat)
            ranks = self.peers.ranks
            all_ = collectives.gathered(mine, ranks, self.peers.group).view(ranks, -1)
            for part, pieces in zip(cut, self._apart(all_, cut), strict=True):
                assert part.pieces is not None
                wholes[id(part)] = part.pieces.joined(pieces).contiguous()
        return [wholes[id(part)] for part in self.parts]

    def _means(
        self, parts: Sequence[CutParameter], gradients: Sequence[torch.Tensor]
    ) -> list[torch.Tensor]:
        cut = [(p, g) for p, g in zip(parts, gradients, strict=True) if p.pieces is not None]
        kept = [(p, g) for p, g in zip(parts, gradients, strict=True) if p.pieces is None]
        found: dict[int, torch.Tensor] = {}
        if kept:
            flat = self.peers.mean(torch.cat([gradient.reshape(-1) for _, gradient in kept]))
            sizes = [gradient.numel() for _, gradient in kept]
            for (part, gradient), mean in zip(kept, flat.split(sizes), strict=True):
                found[id(part)] = mean.view(gradient.shape).to(part.parameter.dtype)
        if cut:
            found.update(self._cut_means(cut))
        return [found[id(part)] for part in parts]

    def _cut_means(
        self, cut: Sequence[tuple[CutParameter, torch.Tensor]]
    ) -> Iterator[tuple[int, torch.Tensor]]:
        flat = [part.pieces.cut(gradient) for part, gradient in cut if part.pieces]
        whole = flat[0] if len(flat) == 1 else torch.cat(flat, 1)
        mine = self.peers.own_mean(whole)
        pieces = self._apart(mine.view(1, -1), [part for part, _ in cut])
        for (part, _), piece in zip(cut, pieces, strict=True):
            assert part.pieces is not None
            own = part.pieces.own(piece, self.peers.rank).contiguous()
            yield id(part), own.to(part.parameter.dtype)

    def _computed(self, part: torch.Tensor) -> torch.Tensor:
        dtype = self.precision.computes if part.is_floating_point() else None
        return part if dtype is None else part.to(dtype)

    def _taken(self, number: int) -> torch.Tensor:
        """The local part of the gradient of a parameter, taken from it; zeros for none."""
        inner, whole = self.parts[number].inner, self.whole[number]
        gradient, whole.grad = whole.grad, None
        gradient = self._kept.pop(number, gradient)
        if gradient is None:
            like = local(whole)
            return torch.zeros_like(like, dtype=self.precision.reduces or like.dtype)
        return laid_out(gradient, inner)

    def _apart(self, flat: torch.Tensor, parts: Sequence[CutParameter]) -> Sequence[torch.Tensor]:
        sizes = [part.pieces.sent.numel() for part in parts if part.pieces]
        return [flat] if len(sizes) == 1 else flat.split(sizes, 1)


def _leaf(part: CutParameter, whole: torch.Tensor, *, hooked: bool) -> torch.Tensor:
    """The tensor that a module computes with; a DTensor for a tensor-parallel parameter."""
    made = whole.detach()
    if part.inner is not None:
        made = as_dtensor(made, part.inner)
    leaf = torch.nn.Parameter(made, part.parameter.requires_grad)
    if hooked:
        share_hooks(part.parameter, leaf)
    return leaf


def units(parts: Sequence[CutParameter], most: int, *of_unit: Any) -> list[Unit]:
    """Parameters in order, grouped by dtype, device and stage, up to ``most`` bytes each."""
    kinds: dict[object, list[list[CutParameter]]] = {}
    filled: dict[object, int] = {}
    for part in parts:
        kind = part.parameter.dtype, part.parameter.device, part.stages
        size = part.parameter.numel() * part.parameter.element_size()
        if kind not in kinds or filled[kind] + size > most:
            kinds.setdefault(kind, []).append([])
            filled[kind] = 0
        kinds[kind][-1].append(part)
        filled[kind] += size
    return [Unit(held, *of_unit) for lists in kinds.values() for held in lists]
