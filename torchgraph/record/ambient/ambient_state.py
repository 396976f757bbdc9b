"""Ambient process state of one recording: guards on it, reasons for eager, effects not replayed.

The guards are evaluated before each call. A step that leaves the state changed, or reads what
differs at each call, stays in eager.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import NamedTuple

from ... import environment
from ..._torch.listening import is_listening
from ...errors import SourceLine
from ...guards import Name
from ...live.inputs import Call
from ...reasons import Because, Reason
from ..ops.generators import without_python_draws
from ..ops.recorder import Recorder
from ..reads.names import NameWatch
from ..tape.trail import Trail
from . import settings
from .files import Files
from .log_lines import only_logs, runs_log
from .logs import Logs
from .reachable import Reached, line

_DRAWN = "{what}{at}: draw or read before the call, and pass what comes of it"
_SETS = (
    "the step reaches {what}{at}, which sets a generator of the whole process; a program does not: "
    "seed outside of the step"
)
_CLOCK = (
    "the step asks {what}{at}, which gives another value at each call: ask outside of the step, "
    "and pass what it decides as an argument"
)
_HANDS_OVER = (
    "the step lets another thread work by {what}{at}: no program calls that, nor knows what it "
    "reads. Let it work before the call, and pass what comes of it"
)
_MOVED = (
    "the step leaves {what} otherwise than it was{at}: set it before the call, or set it back in "
    "the step"
)


class Said(NamedTuple):
    """A side effect or a call that replays omit, with the user's line."""

    what: str
    where: SourceLine | None

    def __str__(self) -> str:
        return f"{self.what} (at {self.where})" if self.where else self.what


class LeftOut(NamedTuple):
    """The side effects and calls of a step that replays omit."""

    logs: Sequence[Said] = ()
    """Lines that log."""
    unknown: Sequence[Said] = ()
    """Functions in C that were reached, and may be impure."""


class AmbientState:
    """Recorder of the process state that one step reads or changes.

    Args:
        names: the watch of reads by name, which reports each value that a name resolves to.
        trail: the source location of the step.
    """

    def __init__(self, names: NameWatch, trail: Trail) -> None:
        self.reached = Reached()
        names.frames.passes_over, trail.only_logs = only_logs, runs_log
        self._frames = names.frames
        names.follow.meet, names.follow.made = self.reached.meet, self.reached.made

    @contextmanager
    def active(self, recorder: Recorder, call: Call) -> Iterator[None]:
        """Record the process state that the block reads, and its random draws.

        Raises:
            RandomStateTouched: it draws as no program can.
        """
        self.reached.settings = {one.words: one.ask() for one in settings.settings()}
        for value in (*call.args, *call.kwargs.values()):
            self.reached.meet(value, None)
        with ExitStack() as stack:
            stack.enter_context(without_python_draws(self._frames.drawing, recorder))
            stack.enter_context(environment.heard(self._variable, self._variables))
            stack.enter_context(Files(self.reached).observed())
            stack.enter_context(Logs(self.reached, recorder.undo).observed())
            yield
            recorder.draws.finish()
        self._left(recorder)

    def _left(self, recorder: Recorder) -> None:
        """Give the recording up where the block left process state changed."""
        reached = self.reached
        before = reached.settings
        changed = (one.words for one in settings.settings() if one.ask() != before[one.words])
        moved = next(((words, None) for words in changed), None) or reached.moved()
        for found, says, lenient in (
            (reached.drawn(), _DRAWN, True),
            (reached.clock, _CLOCK, True),
            (self._frames.hands_over, _HANDS_OVER, True),
            (reached.sets, _SETS, True),
            (moved, _MOVED, False),
        ):
            if found is not None:
                what, where = found
                why = says.format(what=what, at=f" (at {where})" if where else "")
                because = Because(Reason.PROCESS, why)
                recorder.give_up(because, lenient=lenient, passing=not lenient)
        reached.guard_states(draws=recorder.draws.any)

    def names(self) -> list[Name]:
        """The guards on the answers."""
        return list(self.reached.answers.values())

    @property
    def left_out(self) -> LeftOut:
        """The side effects and calls that replays omit."""
        logs, unknown = self.reached.logs, self.reached.unknown
        return LeftOut([Said(*one) for one in logs], [Said(*one) for one in unknown.items()])

    # --- what is recorded -------------------------------------------------------------------------

    def _variable(self, name: str) -> None:
        ask = functools.partial(environment.variable, name)
        self._ask(("variable", name), f"the variable {name} of the environment", ask)

    def _variables(self) -> None:
        self._ask(("variables",), "the environment", environment.variables)

    def _ask(self, key: tuple[object, ...], words: str, ask: Callable[[], object]) -> None:
        if is_listening():
            self.reached.ask(key, words, ask, line())
