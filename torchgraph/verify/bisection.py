"""Bisection over passes and their edits for the one that brought a fault."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from ..errors import GraphError
from ..ir import text
from ..ir.program import Program
from ..options.options import PassOptions
from ..passes import Pass, run
from ..passes.runner import select
from .divergence import Culprit
from .rank_agreement import SingleRank


@dataclass
class Bisection:
    """Search for the first edit of a pass after which the program is wrong."""

    captured: Program
    passes: Sequence[Pass]
    options: PassOptions
    is_wrong: Callable[[Program], bool]
    """On some rank."""
    ranks: SingleRank

    def culprit(self) -> Culprit | None:
        """The first pass and edit after which it is wrong; None when it is wrong before passes."""
        chosen = select(tuple(self.passes), self.options)[: self.options.max_passes]
        if not self.ranks.alike([one.name for one in chosen]):
            return None  # the same number of passes is not the same program
        if not chosen or self._wrong(0, None) or not self._wrong(len(chosen), None):
            return None
        number = _first(len(chosen), lambda count: self._wrong(count, None))
        before = sum(record.edits for record in self._made(number - 1, None).history)
        whole = self._made(number, None)
        edits = self.ranks.most(whole.history[-1].edits)
        name = chosen[number - 1].name
        if not edits or self._wrong(number, before) or not self._wrong(number, before + edits):
            return Culprit(name, number, None, edits, before)
        edit = _first(edits, lambda count: self._wrong(number, before + count))
        earlier = self._made(number, before + edit - 1)
        changed = _changed(earlier, self._made(number, before + edit))
        return Culprit(name, number, edit, edits, before, changed)

    def _wrong(self, passes: int, edits: int | None) -> bool:
        try:
            made = self._made(passes, edits)
        except GraphError:  # a program that breaks a rule
            made = None
        if self.ranks.any(made is None) or made is None:
            return True
        try:
            return self.is_wrong(made)
        except GraphError:  # one that cannot be computed
            return True

    def _made(self, passes: int, edits: int | None) -> Program:
        limits = [limit for limit in (edits, self.options.max_edits) if limit is not None]
        most = min(limits) if limits else None
        options = replace(self.options, max_passes=passes, max_edits=most, dump="")
        return run(self.captured, self.passes, options)


def _first(count: int, wrong: Callable[[int], bool]) -> int:
    """The first number that is wrong while the one before is right; 0 is right."""
    right, bad = 0, count
    while bad - right > 1:
        middle = (right + bad) // 2
        right, bad = (right, middle) if wrong(middle) else (middle, bad)
    return bad


def _changed(before: Program, after: Program) -> tuple[str, ...]:
    """The nodes of ``after`` that are new, or whose text is."""
    known = {line for _, line in text.lines(before)}
    found = [node.name for node, line in text.lines(after) if node and line not in known]
    return tuple(dict.fromkeys(found))
