"""The user's lines, deduplicated: ops refer to them by number."""

from __future__ import annotations

from collections.abc import Sequence

from ...errors import SourceLine


class Places:
    """Lines and stacks of lines, numbered."""

    def __init__(self) -> None:
        self.lines: list[list[str | int]] = []
        """[file, number, function, text] of each."""
        self.stacks: list[list[int]] = []
        """The lines of each, innermost first."""
        self._lines: dict[SourceLine, int] = {}
        self._stacks: dict[tuple[SourceLine, ...], int] = {}

    def stack(self, frames: Sequence[SourceLine]) -> int:
        """The number of a stack; -1 for none."""
        key = tuple(frames)
        if not key:
            return -1
        if key not in self._stacks:
            self._stacks[key] = len(self.stacks)
            self.stacks.append([self._line(frame) for frame in key])
        return self._stacks[key]

    def _line(self, line: SourceLine) -> int:
        if line not in self._lines:
            self._lines[line] = len(self.lines)
            self.lines.append([line.filename, line.lineno, line.function, line.text])
        return self._lines[line]
