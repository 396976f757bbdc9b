"""Spot checks: a call that a program would serve runs in eager, and the program on copies."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import torch
from torch.optim import Optimizer

from ..._torch.compiled import uncompiled
from ..._torch.patching import patching
from ...collection import paused
from ...distributed.collective_log import CollectiveLog
from ...errors import ConfirmWarning, SharedMemory, SourceLine, StepFailed, warn
from ...ir.program import Role
from ...library import ValueMoved
from ...live.inputs import Call
from ...live.step import Step
from ...lower import Target
from ...lower.cost import cost
from ...replay.as_eager import as_eager
from ...replay.code import Code
from ...replay.cuda.cuda_graph import Calls
from ...replay.interrupts import CUT_SHORT
from ...replay.replay import Replay
from ...verify.confirm import Left, Start, asks_once, blame, miscompiled, unlike
from ...verify.first_difference import place_of
from ...verify.memory import copied_bytes, fits
from ...verify.repeats import Unrepeated, unrepeated
from ..in_eager import is_bare, run_bare
from ..programs import Programs
from .schedule import FEW_FROM, RARE_BELOW, SpotChecks

BY_ATEN = "Such calls go on in the aten program, which does."
IN_EAGER = "Such calls go on in eager."
MOVED = (
    "It computes what was recorded: something that the step reads has changed, and nothing has "
    "told of it. Pass it as an argument, or keep it in a tensor."
)


class EagerCall(NamedTuple):
    """A call that ran in eager where a program would have served it."""

    returned: Any
    left: Left | None
    """None where the call is no evidence about the program: a skipped step, for one."""
    loss: torch.Tensor | None = None
    stepped: Sequence[Optimizer] = ()


class Wrong(NamedTuple):
    """A difference between a program and eager, found by a spot check."""

    what: str
    where: SourceLine | None
    compiled: bool = False
    """True where the `aten` program gives what eager does, and compiled code does not."""
    as_recorded: bool = False
    """True where it computes what was recorded: the step computes something else now."""
    odd: Unrepeated | None = None
    """An op of the step that gives other bits when it is called again."""


class SpotChecker:
    """Runs a call in eager now and then, and compares what its program does."""

    def __init__(self, programs: Programs) -> None:
        self._programs, self._live, self._cache = programs, programs.live, programs.cache
        self._together, self._recordings = programs.together, programs.recordings
        self.schedule = SpotChecks(self._live.options.look_again)
        self._aten: WeakKeyDictionary[Replay, Code] = WeakKeyDictionary()
        """For programs that run Inductor's code, the same on `aten`."""
        self._known: WeakKeyDictionary[Replay, tuple[bool, Mapping[torch.device, int]]]
        self._known = WeakKeyDictionary()
        """By program: if its collectives can be repeated, and the bytes that a check copies."""
        self._predicted: WeakKeyDictionary[Replay, float] = WeakKeyDictionary()
        """By program: seconds of a step."""

    def start_if_due(self, replay: Replay, call: Call) -> Start | None:
        """Copies of the start of a call that is to be checked; None for another call.

        Raises:
            ValueMoved, SharedMemory: the program does not serve the call.
        """
        hits = self._cache.hits
        if hits < self.schedule.from_hits:
            return None
        if replay.audit is not None and replay.audit.is_due:  # this call is compared in any case
            return None
        if not self.schedule.wants(replay, self._cache, hits, self._leaves_out):
            return None
        return self._start(replay, call)

    def _leaves_out(self, replay: Replay) -> bool:
        seconds, compiled = self._seconds(replay), replay.inductor_since is not None
        few, rare = compiled or seconds >= FEW_FROM, compiled and seconds < RARE_BELOW
        return self.schedule.leaves_out(few=few, rare=rare)

    def _seconds(self, replay: Replay) -> float:
        """Seconds of a step, as predicted."""
        if replay not in self._predicted:
            self._predicted[replay] = cost(replay.aten_program).step_seconds
        return self._predicted[replay]

    def _start(self, replay: Replay, call: Call) -> Start | None:
        """Copies that a spot check starts from; None where they cannot be made.

        Raises:
            ValueMoved, SharedMemory: the program does not serve the call.
        """
        replay.numbers(call)
        self.schedule.note = ""
        options = self._live.options
        known = self._known.get(replay)
        if known is None:
            program = replay.captured.program
            known = self._known[replay] = (asks_once(program), copied_bytes(program))
        if not known[0] or any(stage.ranks for stage in options.stages):
            self.schedule.note = "ranks meet in each micro-batch"
        elif (options.amp is not None and options.autocast is None) or options.gradient_norms:
            self.schedule.note = "casts and norms that eager does not make are asked for"
        elif options.outputs_buffer_size:
            self.schedule.note = "results are handed out in buffers that take turns"
        elif not fits(known[1]):
            self.schedule.note = "no memory for copies of what the program writes"
        else:
            try:
                return Start.of(replay.leaves, call, [replay])
            except (MemoryError, torch.OutOfMemoryError):
                self.schedule.note = "no memory for copies of what the program writes"
        self.schedule.put_off(self._cache.hits)
        return None

    def check(self, replay: Replay, call: Call, start: Start | None) -> Any:
        """A call in eager; then its program runs on copies, and must come to the same.

        ``start``: copies of what it starts from; None: they are made now.
        """
        start = start or self._start(replay, call)
        self._cache.bring_home()
        call, self._live.signals.torn = call.noted(), ""
        with self._live.signals:
            with ExitStack() as turn:
                free = turn.enter_context(patching.alone())
                self.schedule.put_off(self._cache.hits)  # should it raise, another call is checked
                ran = self._eagerly(replay, call, patched=free)
            try:
                if start is not None and ran.left is not None:
                    self._judge(replay, call, start, ran.left)
                elif not self.schedule.note:
                    self.schedule.note = "the step was skipped"
            finally:  # whatever comes of that, Ctrl-C or a warning that is an error
                if ran.left is not None:
                    ran.left.collectives.clear()
                self._live.progress.count(replay.serves)
                if self._live.optimizers:  # only now: a rate may lie in a tensor that is compared
                    self._live.schedulers.step(lambda: ran.loss, list(ran.stepped))
                self._live.signals.torn = ""
                self._cache.hit()
                self._cache.forget_casts()
                self.schedule.made(replay, self._cache, self._cache.hits)
        return ran.returned

    # --- in eager ---------------------------------------------------------------------------------

    def _eagerly(self, replay: Replay, call: Call, *, patched: bool) -> EagerCall:
        options = self._live.options
        free = [leaf.value for leaf in replay.leaves if leaf.role is Role.FREE]
        bare = self._live.own_update and is_bare(call, options) and not list(self._live.schedulers)
        if bare and not self._together.takes_part:
            return self._bare(replay, call, free, patched=patched)
        with self._live.scaler_started(), paused():  # a Graph that raises is put back
            step, meets = self._live.scan(), self._together.takes_part
            outcome = self._live.take(step, call, meets, False, free, compared=True)
            stepped = outcome.stepped_of(self._live.optimizers) if self._live.optimizers else []
        if not outcome.stepped or outcome.eager:
            return EagerCall(outcome.returned, None, outcome.loss, stepped)
        moved = replay.captured.side_effects.moved
        left = Left(outcome.returned, moved, outcome.tape.collectives, None, outcome.out_tree)
        return EagerCall(outcome.returned, left, outcome.loss, stepped)

    def _bare(
        self, replay: Replay, call: Call, free: list[torch.Tensor], *, patched: bool
    ) -> EagerCall:
        """The user's function, with nothing around it that is not eager's."""
        step = self._step_of(replay)
        around = self._live.building(patched=patched), self._live.opened(False)
        with around[0], around[1], uncompiled(), self._live.replicated(step):
            returned, tree = run_bare(self._live.build, call, step, ends=True, owned=free)
        self._live.signals.torn = CUT_SHORT
        return EagerCall(
            returned,
            Left(returned, replay.captured.side_effects.moved, CollectiveLog(), None, tree),
        )

    def _step_of(self, replay: Replay) -> Step:
        """The states of a step: those that the last recorded call had, if they are there still."""
        known = None if self._live.last_call is None else self._live.last_call[0].step
        if known is not None:
            now = {id(leaf.value) for leaf in replay.leaves}
            if all(id(leaf.value) in now for _, leaf in known.tensors()):
                return known
        return self._live.scan()

    # --- comparing --------------------------------------------------------------------------------

    def _judge(self, replay: Replay, call: Call, start: Start, left: Left) -> None:
        """Compare, and let calls like it go on without what is wrong."""
        try:
            wrong = self._wrong(replay, call, start, left)
        except (ValueMoved, SharedMemory, StepFailed) as other:  # then eager runs the call
            self.schedule.note = f"the program does not serve such a call: {other}"
            return
        except (MemoryError, torch.OutOfMemoryError):
            self.schedule.note = "no memory to run the program on copies"
            return
        except Exception as error:  # eager has made the step: whatever it is, that stands
            self._together.explain(error)
            wrong = Wrong(f"it fails with {type(error).__name__}: {error}", None)
        if wrong is None:
            self.schedule.confirmed += 1
            return
        wrong = wrong._replace(odd=unrepeated(replay, start, call))
        self._go_on_without(replay, call, wrong)

    def _wrong(self, replay: Replay, call: Call, start: Start, left: Left) -> Wrong | None:
        begin = start.copied()
        what = unlike(self._reference(replay), begin, call, left)
        if what:
            place = place_of(replay, start, call, what.partition(" differs from eager's")[0])
            return Wrong(f"{what}{place.what}", place.where, as_recorded=place.as_recorded)
        if replay.inductor_since is None:
            return None
        differs = miscompiled(replay, start, call)
        return None if differs is None else Wrong(str(differs), differs.where, compiled=True)

    def _reference(self, replay: Replay) -> Replay:
        """The `aten` version of a program, which has to match eager."""
        options = self._live.options
        found = as_eager(replay, options)
        if found is not replay or replay.inductor_since is None:
            return found
        heuristic = replay.cudnn_heuristic
        options = replace(options, cuda_graph="off", cudnn_heuristic=heuristic)
        if replay not in self._aten:
            lower = self._cache.graphs.lower
            self._aten[replay] = lower(replay.aten_program, "spot check", Target(options))
        captured = replace(replay.captured, leaves=list(replay.leaves))
        return Replay(captured, self._aten[replay], options, Calls())

    def _go_on_without(self, replay: Replay, call: Call, wrong: Wrong) -> None:
        since = self.schedule.since(replay)
        if wrong.compiled and replay.audit is not None:
            since = min(since, replay.runs - (replay.inductor_since or 0))
            replay.audit.dropped(wrong.what, replay.runs + 1)
            replay.stay_on_aten()
            who, fault = "Compiled code", f"{BY_ATEN} {blame(self._live.options, wrong.odd)}"
        else:
            why = f"in a later call its program did not compute what eager does: {wrong.what}"
            why = why if wrong.odd is None else str(wrong.odd)
            self._recordings.distrust(self._programs.key(call), replay, why)
            who = "A program"
            told = wrong.odd is not None or not wrong.as_recorded
            fault = f"{IN_EAGER} {blame(self._live.options, wrong.odd) if told else MOVED}"
        what = self._recordings.fallback.spelled(wrong.what)
        calls = "call" if since == 1 else f"{since:,} calls"
        at = f"\n  at {wrong.where}" if wrong.where is not None else ""
        warn(
            f"{who} does not compute what eager does: {what}.{at}\nThis call ran in eager to "
            f"be compared, and what it gave is eager's; what the last {calls} by this program "
            f"({replay.serves}) gave may be wrong. {fault}",
            ConfirmWarning,
        )
