"""A step that takes its own update: what it finds, what it steps and what it leaves."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import replace

import torch

from ..collection import afresh, weakly
from ..errors import GraphError, OptimizerStepInBuild, ScalerInBuild
from ..ir.aliasing import has_strides
from ..ir.program import OutputSpec, Role
from ..live.step import Leaf, Step
from ..options.options import Options
from ..structure import Unfit
from ..structure.nested import map_nested
from .amp import Autocast
from .ends import escaped
from .history import Histories
from .host.carried import Carried
from .host.host import Action, Host, meta_of
from .host.kept import tensors_inside
from .host.leftovers import Leftovers
from .host.sources import Sources
from .host.trees import Trees
from .inputs import Inputs
from .ops import refusals
from .ops.recorder import Recorder
from .ops.refusals import own_step_refused, scaler_calls
from .results import output_of, result_of
from .tape.tape import Ref
from .tape.trail import Trail
from .update.numbers import Numbers
from .update.own_steps import OwnSteps


class Driven:
    """The update that `build` takes itself in one call; idle while the update is the Graph's."""

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
        """True when earlier calls left the update to the Graph."""
        self.own = OwnSteps(step, recorder, trail, numbers, autocast, options, weakly(self._begin))
        self.carried = Carried(step.containers, step.rebound)
        self._histories = Histories(self.carried.values, recorder.line_of)
        self._leftovers = Leftovers(weakly(self._meet))
        for _, leaf in step.tensors():
            self.add(leaf, leaf.value)

    def __bool__(self) -> bool:
        """True when `build` takes the steps of its optimizers itself, or may."""
        return self._step.driven or self.own.began

    def add(self, leaf: Leaf, met: torch.Tensor) -> None:
        """One more tensor of the step: a state, an argument, or one from outside."""
        self._leftovers.add(leaf)
        self._histories.met(leaf, met)

    def _meet(self, tensor: torch.Tensor) -> None:
        if has_strides(tensor) and not self._recorder.gave_up:
            self._recorder.index(tensor)

    def input(self, tensor: torch.Tensor) -> Leaf | None:
        """A leaf for memory that nobody knew, where it is a gradient that was there."""
        return self._leftovers.input(tensor) if self else None

    def may_undo(self, error: BaseException) -> bool:
        """What a function's own code raises leaves what it leaves in eager; so do updates."""
        return not self.own.began and (isinstance(error, GraphError) or not self._step.driven)

    def _begin(self, optimizer: torch.optim.Optimizer) -> None:
        refusal = own_step_refused(self._step, optimizer, self._options, self.late)
        if refusal:
            raise OptimizerStepInBuild(refusal, where=self._trail.line)

    @contextmanager
    def watching(
        self, unscale: Callable[[torch.amp.GradScaler, torch.optim.Optimizer], None], *, heard: bool
    ) -> Iterator[None]:
        """While `build` runs. ``unscale``: what ``scaler.unscale_`` of the Graph's scaler does.

        Raises:
            OptimizerStepInBuild, ScalerInBuild: what `build` does is the Graph's to do.
        """
        self.own.heard = heard
        scaled: list[ScalerInBuild] = []
        scalers: AbstractContextManager[None] = nullcontext()
        if not self._step.driven:
            scalers = scaler_calls(self._step.scaler, self._trail, unscale, scaled)
        with ExitStack() as stack:
            for watch in (self.own.active(), self._leftovers.watched(), scalers):
                stack.enter_context(watch)
            try:
                yield
            except BaseException as error:
                if self.may_undo(error):
                    self.own.put_back()
                    self.carried.put_back()
                raise
        if scaled and not self:
            raise afresh(scaled[0])

    def refuse_escaped(self, returned: Sequence[torch.Tensor]) -> None:
        """Refuse what the step returns or keeps of a transform of torch.func."""
        left = [("a result of the step", tensor) for tensor in returned]
        left += ((c.place.name, t) for c in self.carried.changes() for t in tensors_inside(c.now))
        if name := escaped(self._step, left):
            self._recorder.refuse(refusals.escaped(name))

    @property
    def in_eager(self) -> Host:
        """What is said of a step that no program repeats."""
        return Host(stepped=tuple(self.own.stepped))

    def host(
        self,
        inputs: Inputs,
        pinned: Sequence[torch.Tensor],
        outputs: list[tuple[OutputSpec, object]],
        tensors: list[torch.Tensor],
        trees: Trees,
    ) -> Host:
        """What comes besides the program; what it returns for that joins outputs and tensors.

        Args:
            inputs: all of them; of those from outside, what the step replaces becomes an argument.
            pinned: tensors that have to be those again, wherever they lie besides.
            trees: to make again what it leaves.
        """
        left, users, free = self._leftovers, len(tensors), inputs.free
        for tensor in self.carried.assigned_tensors():
            self._recorder.index(tensor)  # one that only changes its place is met here
        known = [leaf for leaf, _ in inputs]
        own = {id(leaf) for leaf, _ in free}
        given = [leaf for leaf in known if leaf.role is Role.INPUT and id(leaf) not in own]
        free[:] = self.carried.inputs(free, [leaf.value for leaf in given], pinned)
        given += [leaf for leaf, _ in free if leaf.role is Role.INPUT]
        sources = Sources(known, given, users)
        why = left.why(sources.before)
        try:
            assigned = [*self.carried.assigned(sources, trees), *inputs.attached(sources.of, trees)]
        except Unfit as unfit:
            why = why or unfit.what
        if why:
            self._recorder.give_up(why)
            return self.in_eager
        if why := self._histories.why(self.carried.changes()):
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
        return Host(
            actions,
            tuple(assigned),
            (*left.entry(), *self.carried.entry),
            tuple((replace(leaf, value=None), meta_of(leaf.value)) for leaf in read),
            frozenset(self.own.moved),
            tuple(self.own.stepped),
            (*self.carried.together, *left.together(all_inputs)),
        )
