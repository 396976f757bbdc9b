"""The Graph's update in a recorded step: the optimizers' ``step()`` over symbolic numbers."""

from __future__ import annotations

import inspect
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from types import FunctionType
from typing import Any

import torch

from ... import library
from ..._torch import OpOverload
from ..._torch.distributed.held import local, locally
from ..._torch.listening import is_listening, not_listening
from ..._torch.optimizers import groups_of, step_hooks
from ..._torch.symbolic import symbolic_python_math
from ...ir import names
from ...ir.program import OutputKind, OutputSpec, Role
from ...live.optimizers import average, clip_gradients, scaled_step, unscale
from ...live.scaler import Scaling
from ...live.step import Leaf, Step
from ...optimizers import fused
from ...optimizers.rules import eager_branches
from ...options.options import Options
from ..chains.resolve import is_library
from ..ops.recorder import Recorder
from ..tape.functions import following
from ..tape.tape import OptimizerStep, Ref
from ..tape.trail import Trail
from .closure import Evaluations
from .trial import tried


class Update:
    """The update of one step: unscale, clip, scale learning rates and step."""

    def __init__(
        self,
        step: Step,
        trail: Trail,
        options: Options,
        scaling: Scaling,
        recorder: Recorder,
        tensors: Callable[[], Iterable[Leaf]],
        evaluations: Evaluations,
    ) -> None:
        self._step = step
        self._trail = trail
        self._options = options
        self._scaling = scaling
        self._recorder = recorder
        self._tensors = tensors
        self._evaluations = evaluations
        self.gradients: dict[int, torch.Tensor] = {}
        """The gradients that optimizers read, by the id of the parameter, where requested."""
        self.outputs: list[tuple[OutputSpec, Ref]] = []
        """BEFORE, SKIP and NORM."""
        self.written: dict[str, set[int]] = defaultdict(set)
        """Under a GradScaler, which optimizers' steps, with their hooks, write a tensor."""
        self.skipped: frozenset[int] = frozenset()

    def run(self, wanted: Iterable[torch.Tensor]) -> None:
        """Run the update; keep the gradients of the parameters ``wanted``."""
        optimizers = self._step.optimizers
        if self._options.adds_up_apart:
            self._mark_sums()
        average(optimizers, self._step.replicas)
        written_down = is_listening() and not self._recorder.gave_up
        with ExitStack() as stack:
            stack.enter_context(eager_branches(optimizers))
            stack.enter_context(fused.recorded())
            stack.enter_context(symbolic_math(optimizers * written_down))
            trying = tried(optimizers * written_down, self._recorder, lambda optimizer: None)
            stack.enter_context(trying)
            unscale(optimizers, self._scaling, self._options)
            if self._options.gradient_norms:
                self._measure()
            self._clip()
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
                    mark_gradients(library.gradient, optimizer, self._step)
                noted = noting_step(self._step, self._recorder, self._trail, optimizer)
                with self._noting_writes(number_), noted:
                    scaled_step(optimizer, *self._evaluations.closure(optimizer, self._evaluated))
        self._scaling.update()
        for number_, found in self._scaling.found.items():
            spec = OutputSpec(OutputKind.SKIP, names.optimizer(number_))
            self.outputs.append((spec, self._ref(found)))

    def _clip(self) -> None:
        clip_gradients(self._step.optimizers, self._parameters(), self._options)

    def _evaluated(self) -> None:
        """Average and clip gradients that a closure has computed anew."""
        average(self._step.optimizers, self._step.replicas)
        self._clip()

    def _ref(self, tensor: torch.Tensor) -> Ref:
        return Ref(self._recorder.index(tensor))

    def _mark_sums(self) -> None:
        """Mark the gradients, summed over all micro-batches."""
        for optimizer in self._step.optimizers:
            mark_gradients(library.accumulated, optimizer, self._step)
        for parameter, whole in self._step.replicas.unreduced():
            _mark_gradient(library.accumulated, whole, self._step.parameter_fqn(parameter))

    def _parameters(self) -> list[torch.Tensor]:
        """The parameters in the order of their modules."""
        return [leaf.value for _, leaf in self._step.tensors() if leaf.role is Role.PARAMETER]

    def _measure(self) -> None:
        for n, optimizer in enumerate(self._step.optimizers):
            for index, group in enumerate(groups_of(optimizer)):
                found = [p.grad for p in group["params"] if p.grad is not None]
                if found:
                    spec = OutputSpec(OutputKind.NORM, names.group(n, index))
                    norm = torch.nn.utils.get_total_norm(found)
                    self.outputs.append((spec, self._ref(norm)))

    def _mark_states(self) -> None:
        """Record the states before the update; `build` may have written them."""
        with torch.no_grad():
            for leaf in self._tensors():
                if leaf.role in (Role.PARAMETER, Role.SLOT, Role.BUFFER, Role.FREE):
                    mark = library.before_update(local(leaf.value).detach())
                    spec = OutputSpec(OutputKind.BEFORE, leaf.fqn)
                    self.outputs.append((spec, self._ref(mark)))

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


def trained(optimizer: torch.optim.Optimizer) -> list[torch.Tensor]:
    """The optimizer's parameters that have a gradient."""
    own = (p for group in groups_of(optimizer) for p in group["params"])
    return [parameter for parameter in own if parameter.grad is not None]


def made_in_build(step: Step) -> Iterator[torch.optim.Optimizer]:
    """The optimizers that update a parameter which the scan of the step has not met."""
    for optimizer in step.optimizers:
        if any(id(parameter) not in step.index for parameter in trained(optimizer)):
            yield optimizer


def mark_gradients(mark: OpOverload, optimizer: torch.optim.Optimizer, step: Step) -> None:
    """Let later reads of each gradient pass through an op that names its parameter."""
    for parameter in trained(optimizer):
        _mark_gradient(mark, parameter, step.parameter_fqn(parameter))


def _mark_gradient(mark: OpOverload, parameter: torch.Tensor, fqn: str) -> None:
    assert parameter.grad is not None
    with torch.no_grad():
        parameter.grad = locally(lambda gradient: mark(gradient, str(fqn)), parameter.grad)


@contextmanager
def noting_step(
    step: Step, recorder: Recorder, trail: Trail, optimizer: torch.optim.Optimizer
) -> Iterator[None]:
    """Record the span of the tape that is the step of ``optimizer``, or of the one it wraps."""
    tape, find = recorder.tape, recorder.memory.find
    gradients = {
        step.parameter_fqn(p): find(p.grad) for p in trained(optimizer) if p.grad is not None
    }
    known = {name: index for name, index in gradients.items() if index is not None}
    start, values, noted = len(tape.entries), len(tape.layouts), len(tape.steps)
    with nullcontext() if runs_users_code(optimizer) else trail.from_one_line():
        yield
    name = type(optimizer).__name__.lower()
    now = len(tape.entries), len(tape.layouts)
    if now[0] > start and len(tape.steps) == noted:
        tape.steps.append(OptimizerStep(name, start, now[0], values, now[1], known))


def runs_users_code(optimizer: torch.optim.Optimizer) -> bool:
    """True for a user's optimizer class, or one with step hooks."""
    hooked = any(map(bool, step_hooks(optimizer)))
    return hooked or not all(is_library(base.__module__) for base in type(optimizer).__mro__)


@contextmanager
def symbolic_math(optimizers: Sequence[torch.optim.Optimizer]) -> Iterator[None]:
    """Let the numeric functions that steps of these optimizers call accept symbolic numbers.

    Those of users may call any, and are followed as all lines of the user are.
    """
    of_users = [one for one in optimizers if runs_users_code(one)]
    of_torch = [one for one in optimizers if not runs_users_code(one)]
    followed = following(_namespaces(of_users)) if of_users else nullcontext()
    with symbolic_python_math(_namespaces(of_torch)), followed:
        yield


def _namespaces(optimizers: Sequence[torch.optim.Optimizer]) -> list[dict[str, Any]]:
    """The globals in which the optimizers' methods look up ``max``, ``min`` and ``type``."""
    classes = {cls for opt in optimizers for cls in type(opt).__mro__}
    methods = (
        inspect.unwrap(one) for cls in classes for one in vars(cls).values() if callable(one)
    )
    spaces = (method.__globals__ for method in methods if isinstance(method, FunctionType))
    return list({id(space): space for space in spaces}.values())
