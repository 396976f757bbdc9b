"""Traces the optimizers' steps: the user's own ``step()``, over symbolic hyper-parameters."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Any

import torch

from .. import ops
from .._symbolic import clip_grad_norm
from .._torch import OpOverload, storage_id
from ..errors import UnsupportedOptimizer
from ..optim.rules import check, eager_branches
from ..options import Options
from ..program import Role
from .scaler import Scaling
from .standins import StandIns
from .step import SCALER, Leaf, Step
from .trail import Trail


@dataclass(frozen=True)
class Created:
    """A slot that the traced step created: a tensor where the optimizer's state had none."""

    fqn: str
    optimizer: int
    owner: Any
    """The fqn of the parameter, or the optimizer's own key where it is no tensor."""
    key: Any
    value: Any


@dataclass(frozen=True)
class Write:
    """A Python value that the traced step leaves in the optimizer: written again after each run."""

    fqn: str
    optimizer: int
    owner: Any
    """As for `Created`; None: in param group ``group``."""
    group: int
    key: Any
    value: Any


class OptimizerTrace:
    """One step of every optimizer of the Graph, inside the running trace."""

    def __init__(
        self,
        scanned: Step,
        holders: StandIns,
        standins: list[Any],
        trail: Trail,
        options: Options,
        scaling: Scaling,
        tensors: Callable[[], Iterable[tuple[Leaf, Any]]],
        writes: Callable[[], AbstractContextManager[set[int]]],
    ) -> None:
        self._step = scanned
        self._tensors = tensors
        self._writes = writes
        self._options = options
        self._holders = holders
        self._standins = standins
        self._trail = trail
        self._scaling = scaling
        self._fqns = {id(standins[i]): leaf.fqn for i, leaf in scanned.tensors()}
        self._positions = {leaf.fqn: i for i, leaf in scanned.tensors()}
        self.gradients: dict[int, torch.Tensor] = {}
        """By the id of a parameter's stand-in."""
        self.norms: dict[str, torch.Tensor] = {}
        """Of the gradients of each param group, where asked for."""
        self.before: dict[str, torch.Tensor] = {}
        """Under a GradScaler, the states before the optimizers step."""
        self.written: dict[str, set[int]] = {}
        """Under a GradScaler, which optimizers' steps, with their hooks, write a tensor."""
        self.writes: list[Write] = []
        self.slot_orders: list[tuple[int, Any, tuple[Any, ...]]] = []
        """(optimizer, owner, keys) wherever the step made new slots: their order is eager's."""

    def run(self, wanted: Iterable[torch.Tensor] = ()) -> None:
        """Unscale, clip, scale the learning rate and step, each for all optimizers in turn.

        ``wanted``: parameters whose gradients, as the optimizers read them, go to ``gradients``.
        """
        optimizers = self._step.optimizers
        with self._trail.update():
            for optimizer in optimizers:
                check(optimizer)
                if self._options.micro_batches > 1:
                    self._mark(optimizer, ops.accumulated)
            with eager_branches(optimizers):
                unscale(optimizers, self._scaling, self._options)
                if self._options.gradient_norms:
                    self._measure()
                clip_gradients(optimizers, self._parameters(), self._options)
                for parameter in wanted:
                    assert parameter.grad is not None
                    self.gradients[id(parameter)] = parameter.grad.detach().clone()
                if self._scaling.dynamic:
                    self._mark_states()
                for number, optimizer in enumerate(optimizers):
                    if self._options.marks_gradients:
                        self._mark(optimizer, ops.gradient)
                    with self._noting_writes(number):
                        scaled_step(optimizer)
            self._scaling.update()
            self._keep_rebound_slots()

    def changed_numbers(self) -> list[tuple[Leaf, Any]]:
        """Python numbers of the optimizers that the step changed, with their new values."""
        return [
            (leaf, now)
            for position, leaf in enumerate(self._step.leaves)
            if not isinstance(leaf.value, torch.Tensor)
            and not leaf.fqn.startswith(SCALER)
            and (now := self._now(leaf)) is not self._standins[position]
        ]

    def created(self) -> list[Created]:
        """Slots that did not exist before; also notes new plain values as writes."""
        found = []
        known = {leaf.fqn for leaf in self._step.leaves} | {s.fqn for s in self._step.statics}
        for number, parameter, slots in self._states():
            prefix = f"optimizer.{number}.state.{parameter}"
            if any(f"{prefix}.{key}" not in known for key in slots):
                self.slot_orders.append((number, parameter, tuple(slots)))
            for key, value in slots.items():
                fqn = f"{prefix}.{key}"
                if isinstance(value, torch.Tensor):
                    if fqn not in known and id(value) not in self._fqns:
                        found.append(Created(fqn, number, parameter, key, value))
                elif fqn not in known and not isinstance(value, (list, dict, tuple)):
                    self.writes.append(Write(fqn, number, parameter, -1, key, value))
                elif isinstance(value, (list, dict, tuple)):
                    self._refuse_nested(fqn, value, known)
        self._changed_statics()
        return found

    def _refuse_nested(self, fqn: str, value: Any, known: set[str]) -> None:
        if not any(name.startswith(f"{fqn}.") for name in known) and value:
            raise UnsupportedOptimizer(
                f"{fqn} is created as a {type(value).__name__} by the first step; torchgraph "
                "creates single tensors and numbers only.",
                fix="run one eager step first, so that the state exists.",
            )

    def _changed_statics(self) -> None:
        for static in self._step.statics:
            parts = static.fqn.split(".")
            if parts[2] != "param_groups":
                continue
            number, group = int(parts[1]), int(parts[3])
            now = self._step.optimizers[number].param_groups[group].get(static.path[0])
            if len(static.path) == 1 and now is not static.value and now != static.value:
                self.writes.append(Write(static.fqn, number, None, group, static.path[0], now))

    def _states(self) -> Iterator[tuple[int, Any, dict[Any, Any]]]:
        for number, state in enumerate(self._holders.states):
            for key, slots in state.items():
                yield number, self._fqns.get(id(key), key), slots

    def _now(self, leaf: Leaf) -> Any:
        if ".param_groups." in leaf.fqn:
            return leaf.read()
        number = int(leaf.fqn.split(".")[1])
        prefix = f"optimizer.{number}.state."
        for owner, parameter, slots in self._states():
            if owner == number and leaf.fqn.startswith(f"{prefix}{parameter}."):
                found: Any = slots
                for key in leaf.path:
                    found = found[key]
                return found
        return None

    def _mark(self, optimizer: torch.optim.Optimizer, mark: OpOverload) -> None:
        """Let what follows read each gradient through a node that says whose it is."""
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    parameter.grad = mark(parameter.grad, self._fqns[id(parameter)])

    def _parameters(self) -> list[torch.Tensor]:
        """The stand-ins of the parameters in the order of their modules."""
        tensors = self._step.tensors()
        return [self._standins[i] for i, leaf in tensors if leaf.role is Role.PARAMETER]

    def _measure(self) -> None:
        for number, optimizer in enumerate(self._step.optimizers):
            for index, group in enumerate(optimizer.param_groups):
                found = [p.grad for p in group["params"] if p.grad is not None]
                if found:
                    norm = torch.nn.utils.get_total_norm(found)
                    self.norms[f"optimizer.{number}.param_groups.{index}"] = norm

    def _mark_states(self) -> None:
        """Note what tensors hold now: `build` may have written them."""
        with torch.no_grad():
            for leaf, standin in self._tensors():
                if leaf.role in (Role.PARAMETER, Role.SLOT, Role.BUFFER, Role.FREE):
                    self.before[leaf.fqn] = ops.before_update(standin)

    @contextmanager
    def _noting_writes(self, number: int) -> Iterator[None]:
        """Under a GradScaler, which tensors the block writes: a skipped step leaves them alone."""
        with self._writes() as written:
            yield
        if self._scaling.dynamic:
            for leaf, standin in self._tensors():
                if storage_id(standin) in written:
                    self.written.setdefault(leaf.fqn, set()).add(number)

    def _keep_rebound_slots(self) -> None:
        for number, parameter, slots in self._states():
            for key, value in slots.items():
                if not isinstance(value, torch.Tensor) or id(value) in self._fqns:
                    continue
                position = self._positions.get(f"optimizer.{number}.state.{parameter}.{key}")
                if position is None:
                    continue
                standin = self._standins[position]
                if (standin.shape, standin.dtype) == (value.shape, value.dtype):
                    with torch.no_grad():
                        standin.copy_(value)
                    slots[key] = standin


def step(
    optimizers: Sequence[torch.optim.Optimizer],
    parameters: Sequence[torch.Tensor],
    scaling: Scaling,
    options: Options,
) -> tuple[int, ...]:
    """What one call of a Graph does with its optimizers, in eager; the numbers of those skipped."""
    unscale(optimizers, scaling, options)
    clip_gradients(optimizers, parameters, options)
    skipped = tuple(number for number, found in scaling.found.items() if found.item())
    for number, optimizer in enumerate(optimizers):
        if number not in skipped:
            scaled_step(optimizer)
    scaling.update()
    return skipped


def unscale(
    optimizers: Sequence[torch.optim.Optimizer], scaling: Scaling, options: Options
) -> None:
    """Unscale the gradients of all optimizers."""
    for number, optimizer in enumerate(optimizers):
        scaling.unscale(number, optimizer, explicit=options.clips or _clips(optimizer))


def clip_gradients(
    optimizers: Sequence[torch.optim.Optimizer],
    parameters: Sequence[torch.Tensor],
    options: Options,
) -> None:
    """Clip the gradients of all optimizers. ``parameters``: in the order of the modules."""
    for optimizer in optimizers:
        clip(optimizer)
    if options.clips:
        owned = {id(p) for opt in optimizers for group in opt.param_groups for p in group["params"]}
        together = [parameter for parameter in parameters if id(parameter) in owned]
        if options.clip_norm is not None:
            torch.nn.utils.clip_grad_norm_(together, *options.clip_norm)
        if options.clip_value is not None:
            torch.nn.utils.clip_grad_value_(together, options.clip_value)


def _clips(optimizer: torch.optim.Optimizer) -> bool:
    keys = {"clip_grad_max_norm", "clip_grad_norm_type"}
    return any(keys & group.keys() for group in optimizer.param_groups)


def clip(optimizer: torch.optim.Optimizer) -> None:
    """Clip the gradients of each param group that asks for it by its norm."""
    for group in optimizer.param_groups:
        if "clip_grad_max_norm" in group or "clip_grad_norm_type" in group:
            max_norm = group.get("clip_grad_max_norm", 1.0)
            norm_type = float(group.get("clip_grad_norm_type", 2.0))
            clip_grad_norm(group["params"], max_norm, norm_type)


def scaled_step(optimizer: torch.optim.Optimizer) -> None:
    """``optimizer.step()`` with each group's lr multiplied by its ``lr_scale``."""
    with _scaled_lr(optimizer):
        optimizer.step()


class _scaled_lr:
    """OneFlow's ``lr_scale``: multiplies a group's lr inside the Graph only."""

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self._groups = [group for group in optimizer.param_groups if "lr_scale" in group]

    def __enter__(self) -> None:
        self._lrs = [group["lr"] for group in self._groups]
        for group in self._groups:
            group["lr"] = group["lr"] * group["lr_scale"]

    def __exit__(self, *error: object) -> None:
        for group, lr in zip(self._groups, self._lrs, strict=True):
            group["lr"] = lr
