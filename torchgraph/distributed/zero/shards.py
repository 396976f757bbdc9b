"""The parameters of one Graph that lie in parts, one on each rank."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.optim import Optimizer

from ..._torch.distributed import collectives, fsdp, tensors
from ..._torch.distributed.held import is_dtensor
from ...errors import NotSupported
from ..parallel import DataParallel, Zero
from .access import let_read_whole
from .pieces import Pieces
from .replaced import replace_parameters
from .unit import CutParameter, Unit, units


class Shards:
    """Parameters in parts: gathered when a module reads them, their gradients reduced.

    Modules read a parameter by its name, and get the whole of it; ``module.parameters()``,
    optimizers and ``state_dict()`` have the DTensor.
    """

    def __init__(self, zero: Zero, parallel: DataParallel, wrapped: Sequence[Any] = ()) -> None:
        """``wrapped``: modules whose parameters `fully_shard` has cut."""
        self.zero, self._parallel, self._wrapped = zero, parallel, wrapped
        self._units: list[Unit] = []
        self._place: dict[int, tuple[Unit, int]] = {}
        """By the identity of a parameter: its unit, and which of its parts it is."""
        self._stepping = False

    def cover(self, modules: Sequence[nn.Module], optimizers: Sequence[Optimizer]) -> bool:
        """Cut the parameters that optimizers update, those that are not yet. Collective.

        True when there was one.
        """
        if self._wrapped:  # what is outside of these is nobody's, as in eager
            fsdp.reshard(self._wrapped)
            return False
        groups = [group for one in optimizers for group in one.param_groups]
        updated = {id(parameter) for group in groups for parameter in group["params"]}
        found: dict[int, torch.Tensor] = {}
        for module in modules:
            for parameter in module.parameters(recurse=False):
                if id(parameter) in updated and not is_dtensor(parameter):
                    found.setdefault(id(parameter), parameter)
        if not found:
            return False
        old = list(found.values())
        parts = [self._part(parameter) for parameter in old]
        self._move_slots(optimizers, parts, old)
        made = {id(one): part.parameter for one, part in zip(old, parts, strict=True)}
        replace_parameters(made, old, modules, optimizers)
        self._add(units(parts, self._parallel.bucket_bytes[-1], **self._of_group()))
        for module in modules:
            let_read_whole(module, self._read, self._place)
        return True

    def take(self, lists: Sequence[Sequence[CutParameter]], modules: Sequence[nn.Module]) -> None:
        """Keep parts that were cut before, those of a list gathered together."""
        for parts in lists:
            self._add(units(parts, sys.maxsize, **self._of_group()))
        for module in modules:
            let_read_whole(module, self._read, self._place)

    @property
    def group(self) -> str:
        """The name of the process group over which they lie."""
        return self._parallel.group

    def holds(self, parameter: torch.Tensor) -> bool:
        """True for a parameter that lies in parts, or that is small and whole on each rank."""
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

    def unreduced(self) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        """(parameter, the whole tensor that has its gradient)."""
        for unit in self._units:
            pairs = zip(unit.parts, unit.whole, strict=False)
            yield from ((part.parameter, whole) for part, whole in pairs if whole.grad is not None)

    def reduce(self, agreed: Callable[[Sequence[bool]], Sequence[int]]) -> None:
        """Put the means of all whole gradients into ``.grad``, or add them to what is there.

        From the last unit to the first, as a backward pass makes them.

        Args:
            agreed: of whether each parameter has a gradient here, those that have one anywhere.
        """
        if not fsdp.sync(self._wrapped):
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

    @property
    def names(self) -> list[str]:
        """What stands for each parameter, in their order, on all ranks alike."""
        return [str(number) for number in range(sum(len(unit.parts) for unit in self._units))]

    # --- pieces -----------------------------------------------------------------------------------

    def _read(self, parameter: torch.Tensor, runs: bool) -> torch.Tensor:
        """What a module gets by the name of a parameter; ``runs``: a module runs."""
        place = self._place.get(id(parameter))
        if self._stepping and place is not None:
            unit, number = place
            return unit.gathered()[number]
        if self._wrapped or not (runs and is_dtensor(parameter)):
            return parameter
        return tensors.whole_with_history(parameter, self._parallel.ranks)

    def _part(self, parameter: torch.Tensor) -> CutParameter:
        pieces = self._pieces(parameter)
        dim = None if pieces is None else pieces.dim
        made = tensors.distributed(parameter, self._mesh(parameter), dim)
        return CutParameter(made, pieces)

    def _pieces(self, parameter: torch.Tensor) -> Pieces | None:
        """How a parameter is cut; None for one that stays whole on each rank."""
        ranks = self._parallel.ranks
        if parameter.numel() // ranks < self.zero.shard_min_size:
            return None
        rows = enumerate(parameter.shape)
        dim = next((dim for dim, size in rows if size >= ranks), None)
        return None if dim is None else Pieces(parameter.shape, dim, ranks)

    def _of_group(self) -> dict[str, Any]:
        group = self._parallel.group
        rank = dist.get_group_rank(collectives.group_of(group), dist.get_rank())
        own = {"ranks": self._parallel.ranks, "rank": rank}
        return {"group": group, **own, "scatters": self.zero.stage > 1}

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
        """What an optimizer has for a parameter is cut as the parameter is."""
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
        return tensors.distributed(value, self._mesh(value), dim)

    def _mesh(self, tensor: torch.Tensor) -> Any:
        given = self._parallel.mesh
        return given or tensors.mesh_of(self._parallel.group, tensor.device.type)
