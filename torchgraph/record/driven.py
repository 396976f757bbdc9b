"""A step that takes its own update: what it finds, what it steps and what it leaves."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import replace
from typing import Any

import torch

from .._torch import storage_id
from ..capture.step import Leaf, Step
from ..errors import GraphError, OptimizerStepInBuild, ScalerInBuild
from ..options import Options
from ..program import OutputKind, OutputSpec, Role
from ..structure import Unfit
from . import refusals
from .alias import AliasSlot, alias_of
from .amp import Autocast
from .carried import Carried
from .ends import escaped
from .history import Histories
from .host import Action, ArgumentSlot, Assigned, Host, OutputSlot, meta_of
from .kept import tensors_of
from .leftovers import Leftovers
from .nested import map_nested
from .numbers import Numbers
from .own_steps import OwnSteps
from .recorder import Recorder
from .refusals import own_step_refused, scaler_calls
from .tape import Ref
from .trail import Trail


class Driven:
    """Of one call; also of one whose update is the Graph's, until `build` steps an optimizer."""

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
        self.own = OwnSteps(step, recorder, trail, numbers, autocast, options, self._begin)
        self.carried = Carried(step.containers, step.rebound)
        self._histories = Histories(self.carried.values, recorder.line_of)
        self._leftovers = Leftovers(recorder.memory)
        for _, leaf in step.tensors():
            self.add(leaf, leaf.value)

    def __bool__(self) -> bool:
        """True when `build` takes the steps of its optimizers itself, or may."""
        return self._step.driven or self.own.began

    def add(self, leaf: Leaf, met: torch.Tensor) -> None:
        """One more tensor of the step: a state, an argument, or one from outside."""
        self._leftovers.add(leaf)
        self._histories.met(leaf, met)

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
    def watching(self, unscale: Any, *, heard: bool) -> Iterator[None]:
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
            raise scaled[0]

    def refuse_escaped(self, returned: Sequence[torch.Tensor]) -> None:
        """Refuse what the step returns or keeps of a transform of torch.func."""
        left = [("a result of the step", tensor) for tensor in returned]
        left += ((c.place.name, t) for c in self.carried.changes() for t in tensors_of(c.now))
        if name := escaped(self._step, left):
            self._recorder.refuse(refusals.escaped(name))

    @property
    def in_eager(self) -> Host:
        """What is said of a step that no program repeats."""
        return Host(stepped=tuple(self.own.stepped))

    def host(
        self,
        free: list[tuple[Leaf, int]],
        inputs: Iterable[tuple[Leaf, int]],
        outputs: list[tuple[OutputSpec, Any]],
        tensors: list[torch.Tensor],
        attached: Callable[[Callable[..., Any]], Iterable[Assigned]],
    ) -> Host:
        """What comes besides the program; what it returns for that joins outputs and tensors.

        Args:
            free: tensors from outside; those that the step replaces become arguments.
            inputs: all of them, with those from outside.
            attached: what the step has put on arguments, by where a tensor comes from.
        """
        left, users = self._leftovers, len(tensors)
        for tensor in self.carried.assigned_tensors():
            self._recorder.index(tensor)  # one that only changes its place is met here
        known = [leaf for leaf, _ in inputs]
        own = {id(leaf) for leaf, _ in free}
        given = [leaf for leaf in known if leaf.role is Role.INPUT and id(leaf) not in own]
        free[:] = self.carried.inputs(free, [leaf.value for leaf in given])
        given += [leaf for leaf, _ in free if leaf.role is Role.INPUT]
        values = [leaf.value for leaf in known]
        before = {storage_id(value) for value in values if isinstance(value, torch.Tensor)}
        late: list[tuple[str, torch.Tensor]] = []

        def slot(name: str, tensor: torch.Tensor) -> OutputSlot:
            late.append((name, tensor))
            return OutputSlot(users + len(late) - 1)

        position = {id(leaf.value): number for number, leaf in enumerate(given)}

        aliases: dict[int, AliasSlot] = {}

        def source(name: str, tensor: torch.Tensor) -> OutputSlot | ArgumentSlot | AliasSlot:
            argument = position.get(id(tensor))
            if argument is not None:
                return ArgumentSlot(argument)
            alias = alias_of(tensor, known) if storage_id(tensor) in before else None
            if alias is None:
                return slot(name, tensor)
            return aliases.setdefault(id(tensor), replace(alias, number=len(aliases)))

        def owned(tensor: torch.Tensor) -> bool:
            there = id(tensor) not in position and storage_id(tensor) in before
            return there and alias_of(tensor, known) is None

        carried, why = self.carried.assigned(source, owned)
        why = left.why(before) or why
        try:
            carried += attached(source)
        except Unfit as unfit:
            why = f"what it puts on an argument {unfit.what}"
        if why:
            self._recorder.give_up(why)
            return self.in_eager
        why = self._histories.why(self.carried.changes())
        if why:
            self._recorder.give_up(why, passing=True)
            return self.in_eager
        assigned = [*carried, *left.left(slot)]
        actions = tuple(
            Action(one.step, *map_nested(given, torch.Tensor, lambda t: slot("scheduler", t)))
            for one, *given in self.own.actions
        )
        outputs[users:users] = [
            (OutputSpec(OutputKind.USER, name), Ref(self._recorder.index(tensor)))
            for name, tensor in late
        ]
        tensors += [tensor.detach() for _, tensor in late]
        read = [leaf for leaf, _ in free if leaf.role is Role.INPUT]
        all_of_them = [leaf for leaf in known if id(leaf) not in own] + [leaf for leaf, _ in free]
        return Host(
            actions,
            tuple(assigned),
            left.entry(present=False),
            left.entry(present=True),
            self.carried.entry,
            tuple((replace(leaf, value=None), meta_of(leaf.value)) for leaf in read),
            frozenset(self.own.moved),
            tuple(self.own.stepped),
            (*self.carried.together, *left.together(all_of_them)),
        )
