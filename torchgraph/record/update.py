"""The optimizers' part of a recorded step: their own ``step()``, over numbers that move."""

from __future__ import annotations

import inspect
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import torch

from .. import ops
from .._listening import not_listening
from .._symbolic import symbolic_python_math
from .._torch import OpOverload
from ..capture.optimizers import clip_gradients, scaled_step, unscale
from ..capture.scaler import Scaling
from ..capture.step import SCALER, Leaf, Step
from ..optim import fused
from ..optim.rules import check, eager_branches
from ..options import Options
from ..program import OutputKind, OutputSpec, Role
from . import number
from .places import assign
from .recorder import Recorder
from .tape import OptimizerStep, Ref
from .trail import Trail


class Numbers:
    """The Python numbers of a step: they move while its ops are heard."""

    def __init__(self, step: Step, recorder: Recorder) -> None:
        self._step = step
        self.values: list[Any] = []
        """By leaf: a tensor, or a number that moves."""
        self.index: list[int] = []
        """By leaf, its value on the tape."""
        for leaf in step.leaves:
            if isinstance(leaf.value, torch.Tensor):
                self.index.append(recorder.memory.new(leaf.value))
                self.values.append(leaf.value)
            else:
                self.index.append(recorder.tape.add(None))
                self.values.append(number.make(leaf.value, Ref(self.index[-1]), recorder))
        self.changed: list[tuple[Leaf, Any]] = []
        """Those that the step changed, with what they are now: a `Ref`, or a constant."""

    @contextmanager
    def in_place(self) -> Iterator[None]:
        """Where the optimizers keep their numbers, put those that move."""
        places = [
            (leaf, value)
            for leaf, value in zip(self._step.leaves, self.values, strict=True)
            if not isinstance(value, torch.Tensor) and not leaf.fqn.startswith(SCALER)
        ]
        nested = [(leaf.root, leaf.path[0]) for leaf, _ in places if len(leaf.path) > 1]
        containers = [(root, key, root[key]) for root, key in nested]
        for leaf, value in places:
            assign(leaf.root, leaf.path, value)
        try:
            yield
        finally:
            for leaf, value in places:
                self._take_back(leaf, value)
            for root, key, before in containers:
                if _same(root.get(key), before):
                    root[key] = before
            for optimizer in self._step.optimizers:
                _sweep(optimizer)

    def _take_back(self, leaf: Leaf, value: Any) -> None:
        try:
            now = leaf.read()
        except (KeyError, IndexError, TypeError):
            return  # the place is gone: the next recording sees another structure
        if now is value:
            assign(leaf.root, leaf.path, leaf.value)
            return
        node = number.node_of(now)
        if node is not None:
            assign(leaf.root, leaf.path, node.value)
            self.changed.append((leaf, node.ref))
        elif isinstance(now, (int, float)) and type(now) is type(leaf.value):
            self.changed.append((leaf, now))


def _same(now: Any, before: Any) -> bool:
    if isinstance(now, (list, tuple)):
        alike = type(now) is type(before) and len(now) == len(before)
        return alike and all(map(_same, now, before))
    if isinstance(now, dict):
        alike = isinstance(before, dict) and list(now) == list(before)
        return alike and all(map(_same, now.values(), before.values()))
    return now is before or (isinstance(now, (int, float)) and repr(now) == repr(before))


def _sweep(optimizer: torch.optim.Optimizer) -> None:
    """Numbers that the step put elsewhere are plain ones again."""
    own = vars(optimizer)
    for holder in (*optimizer.param_groups, *optimizer.state.values(), own):
        if isinstance(holder, dict):
            for key, value in list(holder.items()):
                if key not in ("params", "param_groups", "state") and _holds_number(value):
                    holder[key] = number.bare(value)


def _holds_number(value: Any) -> bool:
    if isinstance(value, (list, tuple)):
        return any(map(_holds_number, value))
    if type(value) is dict:
        return any(map(_holds_number, value.values()))
    return number.node_of(value) is not None


class Update:
    """Unscales, clips, scales the learning rates and steps, each for all optimizers in turn."""

    def __init__(
        self,
        step: Step,
        trail: Trail,
        options: Options,
        scaling: Scaling,
        recorder: Recorder,
        tensors: Callable[[], Iterable[Leaf]],
    ) -> None:
        self._step = step
        self._trail = trail
        self._options = options
        self._scaling = scaling
        self._recorder = recorder
        self._tensors = tensors
        self.gradients: dict[int, torch.Tensor] = {}
        """What optimizers read, by the id of the parameter, where it is asked for."""
        self.outputs: list[tuple[OutputSpec, Any]] = []
        """BEFORE, SKIP and NORM."""
        self.written: dict[str, set[int]] = defaultdict(set)
        """Under a GradScaler, which optimizers' steps, with their hooks, write a tensor."""
        self.skipped: frozenset[int] = frozenset()

    def run(self, wanted: Iterable[torch.Tensor]) -> None:
        """``wanted``: parameters whose gradients, as the optimizers read them, are returned."""
        optimizers = self._step.optimizers
        for optimizer in optimizers:
            check(optimizer)
            if self._options.micro_batches > 1:
                self._mark(optimizer, ops.accumulated)
        with ExitStack() as stack:
            stack.enter_context(eager_branches(optimizers))
            stack.enter_context(fused.recorded())
            stack.enter_context(symbolic_python_math(_namespaces(optimizers)))
            unscale(optimizers, self._scaling, self._options)
            if self._options.gradient_norms:
                self._measure()
            clip_gradients(optimizers, self._parameters(), self._options)
            for parameter in wanted:
                assert parameter.grad is not None
                self.gradients[id(parameter)] = parameter.grad.detach().clone()
            if self._scaling.dynamic:
                self._mark_states()
            with not_listening():
                hit = (n for n, found in self._scaling.found.items() if found.item())
                self.skipped = frozenset(hit)
            for number_, optimizer in enumerate(optimizers):
                if number_ in self.skipped:
                    continue
                if self._options.marks_gradients:
                    self._mark(optimizer, ops.gradient)
                with self._noting_writes(number_), self._noting_step(optimizer):
                    scaled_step(optimizer)
        self._scaling.update()
        for number_, found in self._scaling.found.items():
            spec = OutputSpec(OutputKind.SKIP, f"optimizer.{number_}")
            self.outputs.append((spec, self._ref(found)))

    def _ref(self, tensor: torch.Tensor) -> Ref:
        return Ref(self._recorder.index(tensor))

    def _mark(self, optimizer: torch.optim.Optimizer, mark: OpOverload) -> None:
        """Let what follows read each gradient through an op that says whose it is."""
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    with torch.no_grad():
                        fqn = self._step.parameter_fqn(parameter)
                        parameter.grad = mark(parameter.grad, fqn)

    def _parameters(self) -> list[torch.Tensor]:
        """In the order of their modules."""
        return [leaf.value for _, leaf in self._step.tensors() if leaf.role is Role.PARAMETER]

    def _measure(self) -> None:
        for n, optimizer in enumerate(self._step.optimizers):
            for index, group in enumerate(optimizer.param_groups):
                found = [p.grad for p in group["params"] if p.grad is not None]
                if found:
                    name = f"optimizer.{n}.param_groups.{index}"
                    norm = torch.nn.utils.get_total_norm(found)
                    self.outputs.append((OutputSpec(OutputKind.NORM, name), self._ref(norm)))

    def _mark_states(self) -> None:
        """Note what tensors hold now: `build` may have written them."""
        with torch.no_grad():
            for leaf in self._tensors():
                if leaf.role in (Role.PARAMETER, Role.SLOT, Role.BUFFER, Role.FREE):
                    mark = ops.before_update(leaf.value.detach())
                    spec = OutputSpec(OutputKind.BEFORE, leaf.fqn)
                    self.outputs.append((spec, self._ref(mark)))

    @contextmanager
    def _noting_step(self, optimizer: torch.optim.Optimizer) -> Iterator[None]:
        tape, find = self._recorder.tape, self._recorder.memory.find
        gradients = {
            self._step.parameter_fqn(parameter): find(parameter.grad)
            for group in optimizer.param_groups
            for parameter in group["params"]
            if parameter.grad is not None
        }
        known = {name: index for name, index in gradients.items() if index is not None}
        start, values = len(tape.entries), len(tape.layouts)
        yield
        name = type(optimizer).__name__.lower()
        now = len(tape.entries), len(tape.layouts)
        tape.steps.append(OptimizerStep(name, start, now[0], values, now[1], known))

    @contextmanager
    def _noting_writes(self, n: int) -> Iterator[None]:
        recorder = self._recorder
        outer, recorder.written = recorder.written, set()
        try:
            yield
        finally:
            inner, recorder.written = recorder.written, outer | recorder.written
        if self._scaling.dynamic:
            for leaf in self._tensors():
                if recorder.memory.storage(leaf.value) in inner:
                    self.written[leaf.fqn].add(n)


def _namespaces(optimizers: Sequence[torch.optim.Optimizer]) -> list[dict[str, Any]]:
    """Where the optimizers' steps look up ``max`` and ``min``."""
    steps = {
        vars(cls)["step"] for opt in optimizers for cls in type(opt).__mro__ if "step" in vars(cls)
    }
    found = {id(space): space for step in steps for space in [inspect.unwrap(step).__globals__]}
    return list(found.values())
