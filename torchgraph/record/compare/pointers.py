"""Numbers that move by themselves: the pointer of a queue, in a buffer, that Python reads."""

from __future__ import annotations

from ...errors import SourceLine
from ...ir.program import Role
from ..tape.tape import refs
from .outcome import Outcome

_MOST = 64
"""Values that lead to one that Python reads; more make no pointer."""


def moving_buffer(outcome: Outcome, line: SourceLine | None) -> str:
    """The buffer that the value which Python reads in ``line`` is made of, and of nothing else."""
    looked_at = {e.looked_at for e in outcome.tape.expectations if e.provenance.line == line}
    made_by: dict[int, set[int]] = {}
    for entry in outcome.tape.entries:
        if isinstance(entry.outs, int):
            found = {ref.index for ref in refs((entry.args, entry.kwargs))}
            made_by.setdefault(entry.outs, set()).update(found - {entry.outs})
    reached: set[int] = set()
    waiting = list(looked_at)
    while waiting and len(reached) < _MOST:
        index = waiting.pop()
        if index not in reached:
            reached.add(index)
            waiting += made_by.get(index, ())
    leaves = [leaf for leaf, index in outcome.leaves if index in reached]
    if waiting or not leaves or any(leaf.role is not Role.BUFFER for leaf in leaves):
        return ""
    return leaves[0].fqn
