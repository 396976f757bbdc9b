"""The update once per kind of parameter: equal rows of a recorded step become one node.

An optimizer's step does the same ops to parameter after parameter. Where the recording shows no
flow between them, those with equal ops, settings and layouts are rows of one `Each`, whatever the
order in which the step came to them: parameters that share memory later are another program's.
On the CPU: on a GPU optimizers take lists of parameters, and the host keeps numbers of single ones.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import chain
from operator import attrgetter

import torch

from ..._torch import pytree
from ...ir import effects
from ...ir.each import Each, by_output
from ...ir.names import parameter_of
from ...ir.program import OutputSpec, Phase, Role
from ...live.step import Leaf
from ...record.tape.tape import Entry, Expectation, OptimizerStep, Ref, Tape, refs
from ..graph_of import flat, is_known_before, is_unset, written_by
from .bodies import Bodies
from .branches import Lookouts
from .row_keys import Row, Tokens, row_of
from .singles import with_singles

_AS_STRIDED = torch.ops.aten.as_strided.default


class _Mixed(Exception):
    """Rows are not independent: a value flows between parameters, or may do so."""


def per_kind(
    tape: Tape, leaves: Sequence[tuple[Leaf, int]], outputs: Sequence[tuple[OutputSpec, object]]
) -> Tape:
    """The tape with one entry for each kind of parameter; the tape itself where there is none.

    ``leaves`` and ``outputs`` are those of the step, as for `graph_of`.
    """
    for number in reversed(range(len(tape.steps))):
        singles, step = with_singles(tape, tape.steps[number])
        try:
            tape = _Kinds(singles, step, leaves, outputs).tape() or tape
        except _Mixed:
            continue
    return tape


class _Kinds:
    """The kinds of rows in one optimizer's step."""

    def __init__(
        self,
        tape: Tape,
        step: OptimizerStep,
        leaves: Sequence[tuple[Leaf, int]],
        outputs: Sequence[tuple[OutputSpec, object]],
    ) -> None:
        self._tape = tape
        self._step = step
        self._leaves = {index: leaf for leaf, index in leaves}
        self._own: dict[tuple[str, int], str] = {}
        """Memory, or a number -> the parameter that it belongs to."""
        self._bodies = Bodies(tape, step, self._leaves)
        self._enter_owned()
        self._common: list[int] = []
        """Places of entries that are about no parameter."""
        self._same = dict(_equal_constants(tape))
        """A value that no parameter owns -> the first that is equal to it."""
        self._computed: dict[object, int] = {}
        self._entries: dict[int, Entry] = {}
        self._places: dict[str, list[int]] = {}
        self._foreign = set(map(self._key, range(step.values)))
        for place in range(step.start, step.end):
            self._follow(place)
        self._kept = self._read_later(outputs)
        self._kinds = self._by_kind()
        self._lookouts = self._looked_at()

    def tape(self) -> Tape | None:
        """A tape with one entry for each kind; None where there is none."""
        made: list[Entry] = []
        for rows in self._kinds:
            each = self._each(rows) if len(rows) > 1 else None
            made += [each] if each else [entry for row in rows for entry in row.entries]
        if len(made) == sum(map(len, self._places.values())):
            return None
        return self._with(made)

    # --- whose is what ----------------------------------------------------------------------------

    def _enter_owned(self) -> None:
        names = {leaf.fqn for leaf in self._leaves.values() if leaf.role is Role.PARAMETER}
        names |= self._step.gradients.keys()
        for index, leaf in self._leaves.items():
            name = parameter_of(leaf.fqn) or leaf.fqn
            if name in names:
                self._give(index, name)
        for name, index in self._step.gradients.items():
            self._give(index, name)

    def _key(self, index: int) -> tuple[str, int]:
        layout = self._tape.layouts[index]
        return ("number", index) if layout is None else ("memory", layout.storage)

    def _owner(self, index: int) -> str | None:
        return self._own.get(self._key(index))

    def _give(self, index: int, name: str) -> None:
        layout = self._tape.layouts[index]
        dense = layout is None or (layout.storage >= 0 and layout.device.type == "cpu")
        if not dense or self._own.setdefault(self._key(index), name) != name:
            raise _Mixed

    def _follow(self, place: int) -> None:
        entry = self._entries[place] = self._with_same(self._tape.entries[place])
        if effects.of_target(entry.target).ordered or entry.target is _AS_STRIDED:
            raise _Mixed  # its offset counts from the start of the memory, which rows may share
        owners = {self._owner(ref.index) for ref in refs((entry.args, entry.kwargs))} - {None}
        written = written_by(entry)
        if len(owners) > 1 or (written and not owners):
            raise _Mixed
        if not owners:
            self._common.append(place)
            self._compute(entry)
            return
        (name,) = owners
        assert name is not None
        if any(self._owner(index) is None for index in written):
            raise _Mixed
        for index in flat(entry.outs):
            if self._owner(index) is None and self._key(index) in self._foreign:
                raise _Mixed  # a view of what nobody owns
            self._give(index, name)
        self._places.setdefault(name, []).append(place)

    def _with_same(self, entry: Entry) -> Entry:
        """Replace arguments by the first of equal constants, such as a number's tensor per row."""
        if not any(ref.index in self._same for ref in refs((entry.args, entry.kwargs))):
            return entry
        args, kwargs = pytree.tree_map_only(
            Ref, lambda ref: Ref(self._same.get(ref.index, ref.index)), (entry.args, entry.kwargs)
        )
        return replace(entry, args=args, kwargs=kwargs)

    def _compute(self, entry: Entry) -> None:
        if isinstance(entry.outs, int) and not is_unset(entry.target):
            key = (entry.target, Tokens(self._owner).of((entry.args, entry.kwargs)))
            first = self._computed.setdefault(key, entry.outs)
            if first != entry.outs:
                self._same[entry.outs] = first

    def _read_later(self, outputs: Sequence[tuple[OutputSpec, object]]) -> set[int]:
        """The values that rows make and anything after the step reads."""
        tape, step = self._tape, self._step
        made = range(step.values, step.values_after)
        later = [(entry.args, entry.kwargs) for entry in tape.entries[step.end :]]
        read = {ref.index for ref in refs([*later, *(value for _, value in outputs)])}
        return {index for index in read if index in made and self._owner(index) is not None}

    def _looked_at(self) -> Lookouts:
        """The values of single rows that Python read."""
        step, lookouts = self._step, Lookouts(self._tape)
        looked_at: dict[str, set[int]] = {}
        for found in self._tape.expectations:
            owner = self._owner(found.looked_at)
            made = found.looked_at >= step.values and found.looked_at < step.values_after
            if owner is None or not (self._is_inside(found) or made):
                continue
            if not self._is_inside(found) or self._tape.layouts[found.looked_at] is not None:
                raise _Mixed
            looked_at.setdefault(owner, set()).add(found.looked_at)
        counters = {i for i, leaf in self._leaves.items() if is_known_before(leaf)}
        for row in chain.from_iterable(self._kinds):
            values = looked_at.pop(row.parameter, ())
            if values and not lookouts.add(row, values, counters):
                raise _Mixed
        if looked_at:
            raise _Mixed
        return lookouts

    def _is_inside(self, found: Expectation) -> bool:
        return self._step.start < found.place <= self._step.end

    def _by_kind(self) -> list[list[Row]]:
        kinds: dict[object, list[Row]] = {}
        for name, places in self._places.items():
            entries = [self._entries[place] for place in places]
            gradient = self._step.gradients.get(name)
            kind, row = row_of(self._tape, name, entries, self._owner, self._kept, gradient)
            kinds.setdefault(kind, []).append(row)
        return list(kinds.values())

    # --- kinds ------------------------------------------------------------------------------------

    def _each(self, rows: list[Row]) -> Entry | None:
        """The entry of a kind; None where its ops have no functional form."""
        body = self._bodies.of(rows)
        if body is None:
            return None
        first = rows[0]
        each = Each(self._step.name, body, [row.parameter for row in rows], len(first.inputs))
        kept = by_output([row.kept for row in rows])
        numbers = {i: self._bodies.number(i) for i in kept if self._tape.layouts[i] is None}
        outs = [*kept, *[None] * len(each.written) * len(rows)] if kept else None
        columns = [[Ref(row.inputs[i]) for row in rows] for i in range(len(first.inputs))]
        args = (columns, [Ref(index) for index in first.shared])
        here = replace(first.entries[0].provenance, module="", phase=Phase.UPDATE, calls=())
        return Entry(each, args, {}, outs, here, numbers or None)

    # --- the new tape -----------------------------------------------------------------------------

    def _with(self, made: list[Entry]) -> Tape:
        tape, start, end = self._tape, self._step.start, self._step.end
        common = [tape.entries[place] for place in self._common]
        looks = self._lookouts.entries
        entries = [*tape.entries[:start], *common, *looks, *made, *tape.entries[end:]]

        def place(old: int) -> int:
            if old <= start:
                return old
            if old > end:
                return old + len(entries) - len(tape.entries)
            return start + sum(at < old for at in self._common)

        def moved(found: Expectation) -> Expectation:
            copy = self._lookouts.copies.get(found.looked_at)
            if copy is None or not self._is_inside(found):
                return found._replace(place=place(found.place))
            return found._replace(place=start + len(common) + len(looks), looked_at=copy)

        expectations = sorted(map(moved, tape.expectations), key=attrgetter("place"))
        layouts = self._lookouts.layouts
        return replace(tape, layouts=layouts, entries=entries, expectations=expectations)


def _equal_constants(tape: Tape) -> Iterator[tuple[int, int]]:
    """Pairs of a one-element constant and the first one that is equal to it."""
    met: dict[object, int] = {}
    for index, held in tape.constants.items():
        if held.numel() == 1:
            key = (held.dtype, held.shape, held.device, repr(held.item()))
            first = met.setdefault(key, index)
            if first != index:
                yield index, first
