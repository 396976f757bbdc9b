"""All that one recording asks of the process: guards, reasons for eager, what replays leave out.

What was asked for is asked again before each call. What the step itself leaves otherwise, and what
is another at each call, keeps it in eager.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import NamedTuple

from ... import environment
from ..._torch.listening import is_listening
from ...collection import weakly
from ...errors import SourceLine
from ...guards import Name
from ...live.inputs import Call
from ...reasons import Because, Reason
from ..ops.generators import without_python_draws
from ..ops.recorder import Recorder
from ..reads.names import NameWatch
from ..tape.trail import Trail
from . import files, settings
from .files import Files
from .lines import line
from .log_lines import only_logs, runs_log
from .logs import Logs
from .reached import Reached


class Said(NamedTuple):
    """Something that no replay does: a line that logs, a function that it does not call."""

    what: str
    where: SourceLine | None

    def __str__(self) -> str:
        return f"{self.what} (at {self.where})" if self.where else self.what


class LeftOut(NamedTuple):
    """What no replay does."""

    logs: Sequence[Said] = ()
    """Lines that log."""
    unknown: Sequence[Said] = ()
    """Functions in C that were reached, and that nobody knows."""


class Asking:
    """What one recording asks.

    Args:
        names: what the step reads by name; tells of each value that it leads to.
        trail: where the step is.
    """

    def __init__(self, names: NameWatch, trail: Trail) -> None:
        self.reached = Reached()
        names.frames.passes_over, trail.only_logs = only_logs, runs_log
        self._drawing = names.frames.drawing
        names.meet, names.made = self.reached.meet, self.reached.made
        self.logs: dict[Said, None] = {}
        """In their order."""
        self._files = Files(weakly(self._of_file), weakly(self._writes), weakly(self._starts))
        self._logs = Logs(weakly(self._log))

    @contextmanager
    def active(self, recorder: Recorder, call: Call) -> Iterator[None]:
        """Hear what the block asks, and where it draws.

        Raises:
            RandomStateTouched: it draws as no program can.
        """
        self.reached.settings = {one.words: one.ask() for one in settings.settings()}
        for value in (*call.args, *call.kwargs.values()):
            self.reached.meet(value, None)
        with ExitStack() as stack:
            stack.enter_context(without_python_draws(self._drawing, recorder))
            stack.enter_context(environment.heard(self._variable, self._variables))
            stack.enter_context(self._files.heard())
            stack.enter_context(self._logs.heard())
            yield
            recorder.draws.finish()
        self._left(recorder)

    def _left(self, recorder: Recorder) -> None:
        """What is otherwise now than the step found it."""
        if (drawn := self.reached.drawn()) is not None:
            what, where = drawn
            why = f"{what}{_at(where)}: draw or read before the call, and pass what comes of it"
            recorder.give_up(Because(Reason.PROCESS, why), lenient=True)
        if (clock := self.reached.clock) is not None:
            what, where = clock
            why = (
                f"the step asks {what}{_at(where)}, which gives another value at each call: ask "
                "outside of the step, and pass what it decides as an argument"
            )
            recorder.give_up(Because(Reason.PROCESS, why), lenient=True)
        before = self.reached.settings
        others = (one.words for one in settings.settings() if one.ask() != before[one.words])
        changed = next(others, None)
        moved = (changed, None) if changed is not None else self.reached.moved()
        if moved is not None:
            what, where = moved
            why = (
                f"the step leaves {what} otherwise than it was{_at(where)}: set it before the "
                "call, or set it back in the step"
            )
            recorder.give_up(Because(Reason.PROCESS, why), passing=True)
        self.reached.guard_states()

    def names(self) -> list[Name]:
        """The guards that ask again."""
        return self.reached.names()

    @property
    def left_out(self) -> LeftOut:
        """What no replay does."""
        for where in self.reached.written:
            self._writes(where)
        unknown = [Said(what, where) for what, where in self.reached.unknown.items()]
        return LeftOut(tuple(self.logs), unknown)

    # --- what is heard ----------------------------------------------------------------------------

    def _variable(self, name: str) -> None:
        ask = functools.partial(environment.variable, name)
        self._ask(("variable", name), f"the variable {name} of the environment", ask)

    def _variables(self) -> None:
        self._ask(("variables",), "the environment", environment.variables)

    def _ask(self, key: tuple[object, ...], words: str, ask: Callable[[], object]) -> None:
        if is_listening():
            self.reached.ask(key, words, ask, line())

    def _of_file(self, kind: str, path: object, where: SourceLine | None) -> None:
        self.reached.opened.add(path)
        words = {"folder": "the working directory", "list": f"what lies in {path}"}
        asks = files.asking(kind, path)
        self.reached.ask((kind, path), words.get(kind, f"the file {path}"), asks, where)

    def _writes(self, where: SourceLine | None) -> None:
        self._log("a file is written", where)

    def _starts(self, what: str, where: SourceLine | None) -> None:
        self.reached.clock = self.reached.clock or (what, where)

    def _log(self, what: str, where: SourceLine | None) -> None:
        self.logs.setdefault(Said(what, where))


def _at(where: SourceLine | None) -> str:
    return f" (at {where})" if where else ""
