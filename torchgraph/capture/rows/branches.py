"""Values that Python read during an optimizer's step, computed apart from the step's rows.

RAdam asks each parameter's step counter whether the variance is known. The answer is the same for
all rows of a kind, and it has to be looked for before any row is done.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from itertools import count

from ..._torch import pytree
from ...ir.effects import other_form
from ...record.tape.tape import Entry, Ref, Tape, refs
from ..graph_of import flat, written_by
from .row_keys import Row


class Lookouts:
    """Copies of what single rows compute of their counters, which write nothing."""

    def __init__(self, tape: Tape) -> None:
        self.layouts = [*tape.layouts]
        """The layouts of the values of the tape, then those of the copies."""
        self.entries: list[Entry] = []
        self.copies: dict[int, int] = {}
        """The index of a value that Python read -> the index of its copy."""
        known = (layout.storage for layout in tape.layouts if layout is not None)
        self._storages = count(max(known, default=0) + 1)

    def add(self, row: Row, looked_at: Iterable[int], counters: set[int]) -> bool:
        """Add the computation of a row's looked-at numbers; False where counters do not give them.

        ``counters``: the values of small states.
        """
        wanted = set(looked_at)
        needed: list[Entry] = []
        for entry in reversed(row.entries):
            if wanted & {*flat(entry.outs), *written_by(entry)}:
                needed.insert(0, entry)
                wanted |= {ref.index for ref in refs((entry.args, entry.kwargs))}
        read = wanted.intersection(row.inputs)
        if not {i for entry in needed for i in flat(entry.outs)}.issuperset(looked_at):
            return False  # it is nothing that the row computes
        if not read <= counters or self._has_views(wanted, row.entries):
            return False
        if not all(map(self._has_copy, needed)):
            return False
        new: dict[int, int] = {}
        self.entries += [self._copied(entry, new) for entry in needed]
        self.copies |= {index: new[index] for index in looked_at}
        return True

    def _has_copy(self, entry: Entry) -> bool:
        """False where the functional form differs from the in-place one, which rounds."""
        layouts = [self.layouts[ref.index] for ref in refs((entry.args, entry.kwargs))]
        dtypes = {layout.dtype for layout in layouts if layout is not None}
        return not written_by(entry) or (len(dtypes) == 1 and other_form(entry.target) is not None)

    def _has_views(self, values: set[int], entries: list[Entry]) -> bool:
        """True where an op shows the memory of one of these by another name."""
        memory = {layout.storage for i in values if (layout := self.layouts[i]) is not None}
        results = {i for entry in entries for i in flat(entry.outs)} - values
        layouts = (self.layouts[i] for i in results)
        return any(layout is not None and layout.storage in memory for layout in layouts)

    def _copied(self, entry: Entry, new: dict[int, int]) -> Entry:
        """A copy of the entry that reads copied values and writes nothing."""
        args, kwargs = pytree.tree_map_only(
            Ref, lambda ref: Ref(new.get(ref.index, ref.index)), (entry.args, entry.kwargs)
        )
        new |= {index: self._like(index) for index in flat(entry.outs)}
        outs = pytree.tree_map_only(int, new.__getitem__, entry.outs)
        target = other_form(entry.target) if written_by(entry) else entry.target
        return replace(entry, target=target, args=args, kwargs=kwargs, outs=outs)

    def _like(self, index: int) -> int:
        layout = self.layouts[index]
        if layout is not None:
            layout = layout._replace(storage=next(self._storages), offset=0)
        self.layouts.append(layout)
        return len(self.layouts) - 1
