"""Kinds of differences between two recordings, and the reasons for eager that they give."""

from __future__ import annotations

from typing import Any, NamedTuple

from ...errors import AttributeReadAndWritten, EagerWarning, MovingConstant, SourceLine
from ...guards import Name, Read
from ...guards.aspects import is_number
from ...lines import is_installed
from ...reasons import Because, Reason


class Said(NamedTuple):
    """A reason for eager, in words for the user."""

    why: Because
    about: str = ""
    """The subject of a warning that is given once, whatever its value."""
    kind: type[EagerWarning] = EagerWarning
    fix: str = ""
    """The fix, where it is not that of the kind."""


class Difference(NamedTuple):
    """The first difference between two recordings."""

    reason: Reason
    what: str
    where: SourceLine | None = None
    read: Read | Name | None = None
    """The attribute or name with another value, as it is now."""
    cause: str = ""
    """The changing value that the difference may depend on."""
    varies: bool = False
    """True for a data value that hardly comes twice."""
    fix: str = ""
    """A fix that is more specific than that of the reason."""

    @property
    def is_of_contents(self) -> bool:
        """True for an object that the step changes."""
        moved = self.reason is Reason.MOVED
        return moved and isinstance(self.read, Name) and not is_number(self.read.found)

    @property
    def is_of_state(self) -> bool:
        """True where one program for each state may serve."""
        return self.reason in (Reason.DATA, Reason.TRAINS)

    @property
    def never_settles(self) -> bool:
        """True for a varying number; a growing cache would be a structure."""
        if isinstance(self.read, Name):
            found: Any = self.read.found
            number = is_number(found) and found[0] is not str  # a text is one of few
        else:
            number = self.read is not None and type(self.read[-1]) in (int, float)
        counter = self.reason is Reason.MOVED and number
        return counter or self.reason is Reason.CONSTANT

    @property
    def at(self) -> str:
        """The line in words, to append."""
        return f" (at {self.where})" if self.where else ""

    @property
    def _path(self) -> str:
        if self.read is None or isinstance(self.read, Name):
            return self.read.shown if self.read else ""
        return ".".join((self.read[0], self.read[2]))

    def said(self) -> Said:
        """The reason for eager where calls go on to differ in this."""
        what, at, reason = self.what, self.at, self.reason
        # Nobody changes a line of a package that is installed.
        installed = self.where is not None and is_installed(self.where.filename)
        outside = Reason.NO_PROGRAM.way_out if installed else ""
        if reason is Reason.STRUCTURE:
            why = f"it is not the same from call to call, {what}{at}"
            if not self.cause:
                return Said(Because(reason, why))
            why = f"{why}; it moves what it reads: {self.cause}"
            return Said(Because(Reason.MOVED, why), "", AttributeReadAndWritten)
        if reason is Reason.ASSIGNED:
            found = self.read.found if isinstance(self.read, Name) else None
            filled = isinstance(found, tuple) and not is_number(found)
            assigned = "changed" if filled else "assigned anew"
            fix = outside or reason.way_out
            why = f"{what}, {assigned} between calls, until it stays as it is: {fix}"
            return Said(Because(reason, why), self._path)
        if reason is Reason.TRAINS:
            why = f"{what} as it begins, again and again: {reason.way_out}"
            return Said(Because(reason, why), "requires_grad")
        if reason is Reason.DATA:
            sized = self.where is not None and "one_hot(" in self.where.text
            usual = outside or reason.way_out
            fix = self.fix or ("give one_hot its num_classes" if sized else usual)
            why = f"{what}{at}, again and again: {fix}"
            return Said(Because(reason, why), f"a value{at}")
        kind = AttributeReadAndWritten if reason is Reason.MOVED else MovingConstant
        return Said(Because(reason, f"from call to call, {what}{at}"), "", kind, outside)
