"""Steps that call ``optimizer.step()`` themselves: their gradients, updates and side effects."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import replace

import torch
from torch import nn

from ..collection import afresh, weakly
from ..effects.entry_state import tensors_inside
from ..effects.side_effects import Action, SideEffects, meta_of
from ..effects.trees import Trees
from ..errors import GraphError, OptimizerStepInBuild, ScalerInBuild
from ..ir.aliasing import has_strides
from ..ir.program import OutputSpec, Role
from ..live.step import Leaf, Step
from ..objects import is_a
from ..options.options import Options
from ..structure import Unfit
from ..structure.nested import map_nested
from .amp import Autocast
from .history import Histories
from .inputs import Inputs
from .ops import refusals
from .ops.recorder import Recorder
from .ops.refusals import own_step_refused, scaler_calls
from .rebound import escaped
from .results import output_of, result_of
from .side_effects.grad_fields import GradFields
from .side_effects.sources import Sources
from .side_effects.stored_tensors import StoredTensors
from .tape.tape import Ref
from .tape.trail import Trail
from .update.numbers import Numbers
from .update.own_steps import OwnSteps

_MAKES_PARAMETER = (
    "the step keeps an nn.Parameter that it makes, in whose place a program leaves a tensor"
)


class OwnUpdate:
    """The update that `build` itself makes in one call; idle while the Graph makes it."""

    def __init__(
        self,
        step: Step,
        recorder: Recorder,
        trail: Trail,
        numbers: Numbers,
        autocast: Autocast,
        options: Options,
    ) -> None:
        self._step, self._recorder, self._trail, self._options = step, recorder, trail, options
        self.late = False
        """True when the Graph made the update in earlier calls."""
        self.own = OwnSteps(step, recorder, trail, numbers, autocast, options, weakly(self._begin))
        self.stored_tensors = StoredTensors(step.containers, step.rebound)
        self._histories = Histories(self.stored_tensors.values, recorder.line_of)
        self._grad_fields = GradFields(weakly(self._meet))
        for _, leaf in step.tensors():
            self.add(leaf, leaf.value)

    def __bool__(self) -> bool:
        """True when `build` takes the steps of its optimizers itself, or may."""
        return self._step.own_update or self.own.began

    def add(self, leaf: Leaf, met: torch.Tensor) -> None:
        """Register a tensor of the step: a state, an argument, or a free one."""
        self._grad_fields.add(leaf)
        self._histories.met(leaf, met)

    def _meet(self, tensor: torch.Tensor) -> None:
        if has_strides(tensor) and not self._recorder.gave_up:
            self._recorder.index(tensor)

    def input(self, tensor: torch.Tensor) -> Leaf | None:
        """A leaf for unknown memory that is a gradient from before the step."""
        return self._grad_fields.input(tensor) if self else None

    def may_undo(self, error: BaseException) -> bool:
        """False for a function's own error, after which eager's effects stay, and after updates."""
        return not self.own.began and (isinstance(error, GraphError) or not self._step.own_update)

    def _begin(self, optimizer: torch.optim.Optimizer) -> None:
        refusal = own_step_refused(self._step, optimizer, self._options, self.late)
        if refusal:
            raise OptimizerStepInBuild(refusal, where=self._trail.line)

    @contextmanager
    def watching(
        self,
        unscale: Callable[[torch.amp.GradScaler, torch.optim.Optimizer], None],
        *,
        observed: bool,
    ) -> Iterator[None]:
        """Watch the block of `build`. ``unscale``: the ``unscale_`` of the Graph's scaler.

        Raises:
            OptimizerStepInBuild, ScalerInBuild: what `build` does is the Graph's to do.
        """
        self.own.observed = observed
        scaled: list[ScalerInBuild] = []
        scalers: AbstractContextManager[None] = nullcontext()
        if not self._step.own_update:
            scalers = scaler_calls(self._step.scaler, self._trail, unscale, scaled)
        with ExitStack() as stack:
            for watch in (self.own.active(), self._grad_fields.watched(), scalers):
                stack.enter_context(watch)
            try:
                yield
            except BaseException as error:
                if self.may_undo(error):
                    self.own.put_back()
                    self.stored_tensors.put_back()
                raise
        if scaled and not self:
            raise afresh(scaled[0])

    def refuse_escaped(self, returned: Sequence[torch.Tensor]) -> None:
        """Refuse wrapped tensors of torch.func that the step returns or keeps."""
        left = [("a result of the step", tensor) for tensor in returned]
        left += (
            (c.place.name, t) for c in self.stored_tensors.changes() for t in tensors_inside(c.now)
        )
        if name := escaped(self._step, left):
            self._recorder.refuse(refusals.escaped(name))

    @property
    def in_eager(self) -> SideEffects:
        """The side effects of a step that no program repeats."""
        return SideEffects(stepped=tuple(self.own.stepped))

    def side_effects(
        self,
        inputs: Inputs,
        pinned: Sequence[torch.Tensor],
        outputs: list[tuple[OutputSpec, object]],
        tensors: list[torch.Tensor],
        trees: Trees,
    ) -> SideEffects:
        """The side effects of the step; outputs for them are added to ``outputs`` and ``tensors``.

        Args:
            inputs: all inputs; free tensors that the step replaces become arguments.
            pinned: tensors that a name guards by identity.
            trees: takes apart the objects that it leaves.
        """
        left, users, free = self._grad_fields, len(tensors), inputs.free
        for tensor in self.stored_tensors.assigned_tensors():
            self._recorder.index(tensor)  # one that only changes its place is met here
        known = [leaf for leaf, _ in inputs]
        lay = {id(leaf.value) for leaf in known}
        kept = self.stored_tensors.assigned_tensors()
        if any(is_a(one, nn.Parameter) and id(one) not in lay for one in kept):
            self._recorder.give_up(_MAKES_PARAMETER, lenient=True)
            return self.in_eager
        own = {id(leaf) for leaf, _ in free}
        given = [leaf for leaf in known if leaf.role is Role.INPUT and id(leaf) not in own]
        free[:] = self.stored_tensors.inputs(free, [leaf.value for leaf in given], pinned)
        given += [leaf for leaf, _ in free if leaf.role is Role.INPUT]
        sources = Sources(known, given, users)
        why = left.why(sources.before)
        try:
            assigned = [
                *self.stored_tensors.assigned(sources, trees),
                *inputs.attached(sources.of, trees),
            ]
        except Unfit as unfit:
            why = why or unfit.what
        if why:
            self._recorder.give_up(why)
            return self.in_eager
        if why := self._histories.why(self.stored_tensors.changes()):
            self._recorder.give_up(why, passing=True)
            return self.in_eager
        assigned += left.left(sources.output)
        actions = tuple(
            Action(
                one.step, *map_nested(given, torch.Tensor, lambda t: sources.output("scheduler", t))
            )
            for one, *given in self.own.actions
        )
        outputs[users:users] = [
            (output_of(name, tensor), Ref(self._recorder.index(tensor)))
            for name, tensor in sources.late
        ]
        tensors += [result_of(tensor) for _, tensor in sources.late]
        read = [leaf for leaf, _ in free if leaf.role is Role.INPUT]
        all_inputs = [leaf for leaf in known if id(leaf) not in own] + [leaf for leaf, _ in free]
        return SideEffects(
            actions,
            tuple(assigned),
            (*left.entry(), *self.stored_tensors.entry),
            tuple((replace(leaf, value=None), meta_of(leaf.value)) for leaf in read),
            frozenset(self.own.moved),
            tuple(self.own.stepped),
            (*self.stored_tensors.together, *left.together(all_inputs)),
        )
