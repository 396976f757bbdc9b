"""The sharded parameters of one Graph."""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.optim import Optimizer

from ..._torch import storage_id
from ..._torch.distributed import collectives, fsdp, tensors
from ..._torch.distributed.held import is_dtensor, layout_of, local
from ..._torch.tensors import run_last_hooks
from ...errors import NotSupported
from ..parallel import DataParallel, Zero
from .access import let_read_whole
from .peers import Peers
from .pieces import Pieces
from .replaced import replace_parameters
from .unit import CutParameter, Unit, units


class Shards:
    """Sharded parameters: gathered when a module reads them, their gradients reduced.

    Modules read a parameter by its name, and get the whole of it; ``module.parameters()``,
    optimizers and ``state_dict()`` have the DTensor.
    """

    def __init__(self, zero: Zero, parallel: DataParallel, wrapped: Sequence[Any] = ()) -> None:
        """``wrapped``: modules whose parameters `fully_shard` has sharded."""
        self.zero, self._parallel, self._wrapped = zero, parallel, wrapped
        self._units: list[Unit] = []
        self._place: dict[int, tuple[Unit, int]] = {}
        """By the identity of a parameter: its unit, and which of its parts it is."""
        self._stepping = False
        self._other: Any = None
        """The mesh over which some parameters are tensor parallel; None where none is."""

    def cover(
        self, staged: Mapping[nn.Module, int | None], optimizers: Sequence[Optimizer]
    ) -> bool:
        """Shard the parameters that optimizers update and that are not sharded yet. Collective.

        True when there was one.

        Args:
            staged: all modules, in order, each with its pipeline stage, if it has one.
        """
        if self._wrapped:  # what is outside of these is nobody's, as in eager
            fsdp.reshard(self._wrapped)
            return False
        groups = [group for one in optimizers for group in one.param_groups]
        updated = {id(parameter) for group in groups for parameter in group["params"]}
        found: dict[int, torch.Tensor] = {}
        stages: defaultdict[int, set[int]] = defaultdict(set)
        for module, stage in staged.items():
            for parameter in module.parameters(recurse=False):
                if id(parameter) in updated and self._may_cut(parameter):
                    found.setdefault(id(parameter), parameter)
                    stages[id(parameter)] |= set() if stage is None else {stage}
        if not found:
            return False
        old = list(found.values())
        inner = (layout_of(one).mesh for one in old if is_dtensor(one))
        self._other = self._other or next(inner, None)
        parts = [self._part(one, frozenset(stages[id(one)])) for one in old]
        self._move_slots(optimizers, parts, old)
        made = {id(one): part.parameter for one, part in zip(old, parts, strict=True)}
        replace_parameters(made, old, staged, optimizers)
        self._add(units(parts, self._parallel.bucket_bytes[-1], self._peers()))
        for module in staged:
            let_read_whole(module, self._read, self._place)
        return True

    def take(self, found: Iterable[tuple[Any, ...]], modules: Sequence[nn.Module]) -> None:
        """Take over parameters that were sharded before: lists of them with peers and precision."""
        for parts, *of_unit in found:
            self._add(units(parts, sys.maxsize, *of_unit))
        for module in modules:
            let_read_whole(module, self._read, self._place)

    @property
    def groups(self) -> list[str]:
        """The names of the process groups over which gradients are reduced."""
        names = [name for unit in self._units for name in (unit.peers.group, unit.peers.alike)]
        return [name for name in dict.fromkeys(names) if name]

    def holds(self, parameter: torch.Tensor) -> bool:
        """True for a parameter that is sharded, or that is small and whole on each rank."""
        return id(parameter) in self._place

    # --- a step -----------------------------------------------------------------------------------

    @contextmanager
    def step(self) -> Iterator[None]:
        """In the block, gradients are kept whole until they are reduced."""
        self._stepping = True
        try:
            with fsdp.hooks_at_rest(self._wrapped):
                yield
        finally:
            self._stepping = False
            left = any(any(unit.has_gradients()) for unit in self._units)
            for unit in self._units:
                unit.forget()
        if left:
            raise NotSupported(
                "ZeRO: gradients that no_sync kept from being reduced are left after the step.",
                fix="let the last backward() of each call run outside of no_sync.",
            )

    def refuse_write(self, tensor: torch.Tensor) -> None:
        """Refuse a write into a gathered parameter: it would change no shard.

        Raises: NotSupported.
        """
        memory = storage_id(tensor)
        for unit in self._units:
            unit.stale |= any(storage_id(part.parameter) == memory for part in unit.parts)
            if (part := unit.has_own(memory)) is not None:
                raise _written(f"a parameter of shape {tuple(part.parameter.shape)}")

    def spoil(self) -> None:
        """End of a backward pass: writes of shards are allowed from now on."""
        for unit in self._units:
            unit.spoil()

    def unreduced(self) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        """(parameter, the gathered tensor that holds its gradient)."""
        for unit in self._units:
            unit.has_gradients()  # those of what was gathered before are among them then
            pairs = zip(unit.parts, unit.whole, strict=False)
            yield from ((part.parameter, whole) for part, whole in pairs if whole.grad is not None)

    def reduce(self, agreed: Callable[[Sequence[bool]], Sequence[int]]) -> None:
        """Put the means of all unreduced gradients into ``.grad``, or add them to it.

        From the last unit to the first, as a backward pass makes them.

        Args:
            agreed: of whether each parameter has a gradient here, those that have one anywhere.
        """
        if any(unit.moved() for unit in self._units):
            raise _written("a parameter")
        if not fsdp.sync(self._wrapped):
            for unit in self._units:
                unit.keep()
            return
        has = [found for unit in self._units for found in unit.has_gradients()]
        used, end = set(agreed(has)), len(has)
        for unit in reversed(self._units):
            first = end - len(unit.parts)
            mine = [number in used for number in range(first, end)]
            end = first
            if any(mine):
                unit.gathered()
            for parameter, mean in unit.reduce(mine):
                with torch.no_grad():
                    parameter.grad = mean if parameter.grad is None else parameter.grad + mean
                if not unit.peers.hooked:
                    run_last_hooks(parameter)

    @property
    def names(self) -> list[str]:
        """The names of the parameters, in their order, equal on all ranks."""
        return [str(number) for number in range(sum(len(unit.parts) for unit in self._units))]

    # --- pieces -----------------------------------------------------------------------------------

    def _read(self, parameter: torch.Tensor, runs: bool) -> torch.Tensor:
        """The value of a parameter for a module that reads it; ``runs``: its forward runs."""
        place = self._place.get(id(parameter))
        if self._stepping and runs and place is not None:
            unit, number = place
            return unit.gathered()[number]
        if self._wrapped or not (runs and is_dtensor(parameter)):
            return parameter
        inner = None if place is None else place[0].parts[place[1]].inner  # None: of a copy
        return tensors.whole_with_history(parameter, self._mesh(parameter), inner)

    def _may_cut(self, parameter: torch.Tensor) -> bool:
        """True for a parameter that is whole on each rank of the group and not sharded yet."""
        if not is_dtensor(parameter):
            return True
        if id(parameter) in self._place:
            return False
        mesh = layout_of(parameter).mesh
        return tensors.joint(self._mesh(parameter), mesh) is not None

    def _part(self, parameter: torch.Tensor, stages: frozenset[int]) -> CutParameter:
        pieces, inner = self._pieces(parameter), layout_of(parameter)
        dim = None if pieces is None else pieces.dim
        return CutParameter(self._distributed(parameter, dim), pieces, inner, stages)

    def _distributed(self, tensor: torch.Tensor, dim: int | None) -> torch.Tensor:
        """A tensor as a DTensor over the mesh of all parameters, so that one norm covers all."""
        other = layout_of(tensor).mesh if is_dtensor(tensor) else self._other
        return tensors.distributed(tensor, self._mesh(tensor), dim, other)

    def _pieces(self, parameter: torch.Tensor) -> Pieces | None:
        """The sharding of a parameter; None for one that stays whole on each rank."""
        ranks, here = self._parallel.ranks, local(parameter)
        if here.numel() // ranks < self.zero.shard_min_size:
            return None
        taken = tensors.cut_dims(parameter)
        rows = (dim for dim in range(here.ndim) if dim not in taken)
        dim = next((dim for dim in rows if here.shape[dim] >= ranks), None)
        return None if dim is None else Pieces(here.shape, dim, ranks)

    def _peers(self) -> Peers:
        group, ranks = self._parallel.group, self._parallel.ranks
        rank = dist.get_group_rank(collectives.group_of(group), dist.get_rank())
        return Peers(group, ranks, rank, self.zero.stage > 1, ranks)

    def _add(self, made: Sequence[Unit]) -> None:
        self._units += made
        for unit in made:
            for number, part in enumerate(unit.parts):
                self._place[id(part.parameter)] = unit, number

    def _move_slots(
        self,
        optimizers: Iterable[Optimizer],
        parts: Sequence[CutParameter],
        old: Sequence[torch.Tensor],
    ) -> None:
        """Shard the optimizer state of a parameter as the parameter is sharded."""
        made = {id(one): part for one, part in zip(old, parts, strict=True)}
        for optimizer in optimizers:
            state: Any = optimizer.state
            for parameter in [key for key in state if id(key) in made]:
                part = made[id(parameter)]
                state[part.parameter] = {
                    name: self._slot(value, parameter, part)
                    for name, value in state.pop(parameter).items()
                }

    def _slot(self, value: Any, parameter: torch.Tensor, part: CutParameter) -> Any:
        if not isinstance(value, torch.Tensor) or value.shape != parameter.shape:
            return value
        dim = None if part.pieces is None else part.pieces.dim
        return self._distributed(value, dim)

    def _mesh(self, tensor: torch.Tensor) -> Any:
        given = self._parallel.mesh
        return given or tensors.mesh_of(self._parallel.group, tensor.device.type)


def _written(what: str) -> NotSupported:
    return NotSupported(
        f"ZeRO: the step writes {what} where modules compute with the whole of it, and the parts "
        "that ranks keep would stay as they are.",
        fix="write to it outside of the step, or leave config.enable_zero out; a parameter of less "
        "than shard_min_size elements for each rank stays whole.",
    )
