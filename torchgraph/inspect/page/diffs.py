"""The program before and after each pass, as differences of its text."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from ...ir import text
from ...ir.program import PassRecord, Program
from ...passes import Pass, run
from .numbered import Numbered
from .source import Programs

_CONTEXT = 2
_ROWS = 6000
"""Lines of all differences together before the rest is only counted."""


@dataclass(frozen=True)
class Diffs:
    """The changes of each pass to the text of the program."""

    lines: list[str]
    """Each line once."""
    by_pass: list[dict[str, Any]]
    """``hunks``: where, a sign for each line, and its number; ``left``: lines not shown."""
    note: str = ""
    """Why there are none."""


def diffs(programs: Programs, history: Sequence[PassRecord]) -> Diffs:
    """Run the passes again on their input. ``history``: their edits in the first run.

    A pass that a user wrote runs again, too. Where one fails, or does something else than it did,
    the note says so, and what it left until then is shown.
    """
    found = _Differences(programs)
    options = replace(programs.options.passes, dump="")
    try:
        run(programs.start(), programs.passes, options, on_pass=found.look)
    except Exception as error:  # a pass of the user's that may only run once
        return Diffs(list(found.lines), found.by_pass, f"A pass failed when it ran again: {error}")
    if found.record != [(one.name, one.edits) for one in history]:
        return Diffs([], [], "The passes did something else when they ran again.")
    return Diffs(list(found.lines), found.by_pass)


class _Differences:
    def __init__(self, programs: Programs) -> None:
        self.lines = Numbered[str]()
        self.by_pass: list[dict[str, Any]] = []
        self.record: list[tuple[str, int]] = []
        self._before = _text(programs.captured)
        self._rows = 0

    def look(self, one: Pass, program: Program) -> None:
        """Record the text of the program after each pass."""
        edits = program.history[-1].edits
        self.record.append((one.name, edits))
        # One that takes rows apart changes the text without an edit.
        after = _text(program) if edits or not one.rows else self._before
        matcher = difflib.SequenceMatcher(None, self._before, after, autojunk=False)
        hunks, left = [], 0
        for group in matcher.get_grouped_opcodes(_CONTEXT):
            if self._rows >= _ROWS:
                left += sum(max(c[2] - c[1], c[4] - c[3]) for c in group if c[0] != "equal")
                continue
            hunks.append(self._hunk(group, after))
        self.by_pass.append({"name": one.name, "hunks": hunks, "left": left})
        self._before = after

    def _hunk(self, group: Sequence[tuple[str, int, int, int, int]], after: list[str]) -> Any:
        signs, lines = "", list[int]()
        for kind, first, last, new_first, new_last in group:
            if kind != "insert":
                signs += (" " if kind == "equal" else "-") * (last - first)
                lines += map(self.lines.number, self._before[first:last])
            if kind in ("insert", "replace"):
                signs += "+" * (new_last - new_first)
                lines += map(self.lines.number, after[new_first:new_last])
        self._rows += len(lines)
        shown = max(0, len(lines) - max(0, self._rows - _ROWS))
        at = f"line {group[0][1] + 1}, then {group[0][3] + 1}"
        return {"at": at, "signs": signs[:shown], "lines": lines[:shown], "cut": len(lines) - shown}


def _text(program: Program) -> list[str]:
    return [line for _, line in text.lines(program)]
