"""Parameters that are gathered, and whose gradients are reduced, together."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from ..._torch.distributed import collectives
from ..._torch.distributed.held import as_dtensor, layout_of, local
from ..._torch.tensors import version_of
from .pieces import Pieces


@dataclass(frozen=True)
class CutParameter:
    """A parameter that lies in parts, one on each rank of a group; or, if small, on all ranks."""

    parameter: torch.Tensor
    """A DTensor."""
    pieces: Pieces | None
    """None: it lies whole on each rank."""


@dataclass
class Unit:
    """Parts of one dtype, whose collectives are one collective.

    Args:
        parts: in the order of their modules.
        group: the name of the process group; ``ranks``: how many it has; ``rank``: which this is.
        scatters: gradients are reduced to the ranks that need them, else on all ranks.
    """

    parts: Sequence[CutParameter]
    group: str
    ranks: int
    rank: int
    scatters: bool
    whole: list[torch.Tensor] = field(default_factory=list)
    """What modules compute with in this step: leaves of autograd; empty before the first use."""
    _versions: list[int] = field(default_factory=list)

    def gathered(self) -> list[torch.Tensor]:
        """The whole of each part, made anew when a part was written since."""
        versions = [version_of(local(part.parameter)) for part in self.parts]
        if not self.whole or versions != self._versions:
            with torch.no_grad():
                found = self._gather()
            trains = [part.parameter.requires_grad for part in self.parts]
            pairs = zip(found, trains, strict=True)
            self.whole = [one.detach().requires_grad_(each) for one, each in pairs]
            self._versions = versions
        return self.whole

    def forget(self) -> None:
        """What was gathered is not needed any more."""
        self.whole, self._versions = [], []

    def has_gradients(self) -> list[bool]:
        """By part, whether a backward pass has left one."""
        if not self.whole:
            return [False] * len(self.parts)
        return [one.grad is not None for one in self.whole]

    @torch.no_grad()
    def reduce(self, used: Sequence[bool]) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        """(parameter, the mean of its gradients over the ranks, laid out as it is).

        Args:
            used: by part, whether any rank has a gradient for it. One that has none has zeros.
        """
        mine = [number for number, each in enumerate(used) if each]
        if not mine:
            return
        found = [_taken(self.whole[number]) for number in mine]
        parts = [self.parts[number] for number in mine]
        for part, mean in zip(parts, self._means(parts, found), strict=True):
            yield part.parameter, as_dtensor(mean, layout_of(part.parameter))

    # --- collectives ------------------------------------------------------------------------------

    def _gather(self) -> list[torch.Tensor]:
        cut = [part for part in self.parts if part.pieces is not None]
        wholes = {id(part): local(part.parameter) for part in self.parts}
        if cut:
            flat = [part.pieces.padded(local(part.parameter)) for part in cut if part.pieces]
            mine = flat[0] if len(flat) == 1 else torch.cat(flat)
            all_ = collectives.gathered(mine, self.ranks, self.group).view(self.ranks, -1)
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
            flat = self._sum(torch.cat([gradient.reshape(-1) for _, gradient in kept]))
            sizes = [gradient.numel() for _, gradient in kept]
            for (part, gradient), mean in zip(kept, flat.split(sizes), strict=True):
                found[id(part)] = mean.view(gradient.shape)
        if cut:
            found.update(self._cut_means(cut))
        return [found[id(part)] for part in parts]

    def _cut_means(
        self, cut: Sequence[tuple[CutParameter, torch.Tensor]]
    ) -> Iterator[tuple[int, torch.Tensor]]:
        flat = [part.pieces.cut(gradient) for part, gradient in cut if part.pieces]
        whole = flat[0] if len(flat) == 1 else torch.cat(flat, 1)
        if self.scatters:
            mine = collectives.scattered_sum(self._scaled(whole), self.ranks, self.group)
        else:
            mine = self._sum(whole)[self.rank]
        pieces = self._apart(mine.view(1, -1), [part for part, _ in cut])
        for (part, _), piece in zip(cut, pieces, strict=True):
            assert part.pieces is not None
            yield id(part), part.pieces.own(piece, self.rank).contiguous()

    def _sum(self, whole: torch.Tensor) -> torch.Tensor:
        return collectives.wait(collectives.begin_sum(self._scaled(whole), self.group))

    def _scaled(self, whole: torch.Tensor) -> torch.Tensor:
        """Each is multiplied before all are added up, in DDP, too."""
        return whole.mul(1.0 / self.ranks)

    def _apart(self, flat: torch.Tensor, parts: Sequence[CutParameter]) -> Sequence[torch.Tensor]:
        sizes = [part.pieces.sent.numel() for part in parts if part.pieces]
        return [flat] if len(sizes) == 1 else flat.split(sizes, 1)


def _taken(whole: torch.Tensor) -> torch.Tensor:
    """Its gradient, which nobody has then; zeros for none."""
    gradient, whole.grad = whole.grad, None
    return torch.zeros_like(whole) if gradient is None else gradient


def units(parts: Sequence[CutParameter], most: int, **of_group: Any) -> list[Unit]:
    """Parts in their order, those of one dtype and device together, up to ``most`` bytes each."""
    kinds: dict[tuple[torch.dtype, torch.device], list[list[CutParameter]]] = {}
    filled: dict[tuple[torch.dtype, torch.device], int] = {}
    for part in parts:
        kind = part.parameter.dtype, part.parameter.device
        size = part.parameter.numel() * part.parameter.element_size()
        if kind not in kinds or filled[kind] + size > most:
            kinds.setdefault(kind, []).append([])
            filled[kind] = 0
        kinds[kind][-1].append(part)
        filled[kind] += size
    return [Unit(held, **of_group) for lists in kinds.values() for held in lists]
