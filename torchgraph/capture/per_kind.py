"""The update once per kind of parameter: equal rows of a recorded step become one node.

An optimizer's step does the same ops to parameter after parameter. Where the recording shows no
flow between them, those with equal ops, settings and layouts are rows of one `Each`, whatever the
order in which the step came to them: parameters that share memory later are another program's.
On the CPU: on a GPU optimizers take lists of parameters, and the host keeps numbers of single ones.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import count
from typing import Any, NamedTuple

import torch

from .. import effects
from .._torch import known_values, pytree
from ..each import Each, by_output
from ..errors import GraphError
from ..program import OutputKind, OutputSpec, Phase, Program, Provenance, Role
from ..record.number import stand_in
from ..record.tape import Entry, Layout, OptimizerStep, Ref, Tape, refs
from ..values import same_layout
from .functionalize import functionalize
from .graph_of import flat, graph_of, is_unset, written_by
from .singles import with_singles
from .step import Leaf

_AS_STRIDED = torch.ops.aten.as_strided.default


class _Mixed(Exception):
    """Something flows between parameters, or nobody can tell."""


class _Row(NamedTuple):
    """What a step does to one parameter."""

    parameter: str
    entries: list[Entry]
    inputs: list[int]
    """The values that are the parameter's own."""
    shared: list[int]
    kept: list[int]
    """What is read after the step: a counter in a Python number, a slot that is made anew."""


def per_kind(
    tape: Tape, leaves: Sequence[tuple[Leaf, int]], outputs: Sequence[tuple[OutputSpec, Any]]
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


class _Tokens:
    """Arguments of one row's ops, with its own values by number: equal for rows of one kind."""

    def __init__(self, owner: Callable[[int], str | None]) -> None:
        self._owner = owner
        self.inputs: dict[int, int] = {}
        self.made: dict[int, int] = {}
        self.shared: dict[int, None] = {}

    def of(self, value: Any) -> Any:
        if isinstance(value, Ref):
            return self._value(value.index)
        if isinstance(value, (list, tuple)):
            return (type(value), *map(self.of, value))
        if isinstance(value, dict):
            return tuple((key, self.of(item)) for key, item in value.items())
        return (type(value), repr(value) if isinstance(value, float) else value)

    def results(self, entry: Entry) -> Any:
        """Those of an op: values that are new, or that it has written."""
        found = flat(entry.outs)
        for index in found:
            if index not in self.inputs:
                self.made.setdefault(index, len(self.made))
        return tuple(map(self._value, found))

    def _value(self, index: int) -> tuple[str, int]:
        if index in self.made:
            return ("made", self.made[index])
        if self._owner(index) is None:
            self.shared[index] = None
            return ("shared", index)
        return ("input", self.inputs.setdefault(index, len(self.inputs)))


class _Kinds:
    """One optimizer's step."""

    def __init__(
        self,
        tape: Tape,
        step: OptimizerStep,
        leaves: Sequence[tuple[Leaf, int]],
        outputs: Sequence[tuple[OutputSpec, Any]],
    ) -> None:
        self._tape = tape
        self._step = step
        self._leaves = {index: leaf for leaf, index in leaves}
        self._own: dict[tuple[str, int], str] = {}
        """Memory, or a number -> the parameter that it belongs to."""
        self._numbers: dict[int, Any] = {}
        """What numbers were, by value."""
        self._enter_owned()
        self._common: list[int] = []
        """Places of entries that are about no parameter."""
        self._same = dict(_equal_constants(tape))
        """A value that no parameter owns -> the first that is equal to it."""
        self._computed: dict[Any, int] = {}
        self._entries: dict[int, Entry] = {}
        self._places: dict[str, list[int]] = {}
        self._foreign = set(map(self._key, range(step.values)))
        for place in range(step.start, step.end):
            self._follow(place)
        self._kept = self._read_later(outputs)

    def tape(self) -> Tape | None:
        """With an entry for each kind; None where there is none."""
        described = [
            self._described(name, [self._entries[place] for place in places])
            for name, places in self._places.items()
        ]
        kinds: dict[Any, list[_Row]] = {}
        for kind, row in described:
            kinds.setdefault(kind, []).append(row)
        made: list[Entry] = []
        for rows in kinds.values():
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
            name = leaf.fqn if leaf.fqn in names else _owner(leaf, names)
            if name:
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
        """On the first of equal values: a number that is made a tensor for each row is one."""
        if not any(ref.index in self._same for ref in refs((entry.args, entry.kwargs))):
            return entry
        args, kwargs = pytree.tree_map_only(
            Ref, lambda ref: Ref(self._same.get(ref.index, ref.index)), (entry.args, entry.kwargs)
        )
        return replace(entry, args=args, kwargs=kwargs)

    def _compute(self, entry: Entry) -> None:
        if isinstance(entry.outs, int) and not is_unset(entry.target):
            key = (entry.target, _Tokens(self._owner).of((entry.args, entry.kwargs)))
            first = self._computed.setdefault(key, entry.outs)
            if first != entry.outs:
                self._same[entry.outs] = first

    def _read_later(self, outputs: Sequence[tuple[OutputSpec, Any]]) -> set[int]:
        """What rows make and something else reads. Refused is what Python looks at."""
        tape, step = self._tape, self._step
        made = range(step.values, step.values_after)
        for found in tape.expectations:
            inside = step.start < found.place <= step.end
            after = found.place > step.end and found.looked_at in made
            if (inside or after) and self._owner(found.looked_at) is not None:
                raise _Mixed
        later = [(entry.args, entry.kwargs) for entry in tape.entries[step.end :]]
        read = {ref.index for ref in refs([*later, *(value for _, value in outputs)])}
        return {index for index in read if index in made and self._owner(index) is not None}

    # --- kinds ------------------------------------------------------------------------------------

    def _described(self, name: str, entries: list[Entry]) -> tuple[Any, _Row]:
        """A row, and a key that is equal for rows of one kind."""
        tokens = _Tokens(self._owner)
        key: list[Any] = []
        for entry in entries:
            given = tokens.of((entry.args, entry.kwargs))
            key.append((entry.target, given, type(entry.number), tokens.results(entry)))
        gradient = self._step.gradients.get(name)
        like = None if gradient is None else self._tape.layouts[gradient]
        storages: dict[int, int] = {}
        for index in (*tokens.inputs, *tokens.made):
            key.append(_layout(self._tape.layouts[index], like, storages))
        kept = [index for index in tokens.made if index in self._kept]
        key.append(tokens.of([Ref(index) for index in kept]))
        return tuple(key), _Row(name, entries, list(tokens.inputs), list(tokens.shared), kept)

    def _each(self, rows: list[_Row]) -> Entry | None:
        """The entry of a kind; None where its ops have no functional form."""
        longest = max(rows, key=lambda row: self._elements(row.inputs))
        body = self._body(longest)
        if body is None:
            return None
        names = [row.parameter for row in rows]
        each = Each(self._step.name, body, names, len(longest.inputs))
        kept = by_output([row.kept for row in rows])
        numbers = {i: self._number(i) for i in kept if self._tape.layouts[i] is None}
        outs = [*kept, *[None] * len(each.written) * len(rows)] if kept else None
        columns = [[Ref(row.inputs[i]) for row in rows] for i in range(len(longest.inputs))]
        args = (columns, [Ref(index) for index in longest.shared])
        frames = longest.entries[0].provenance.frames
        here = Provenance(phase=Phase.UPDATE, frames=frames)
        return Entry(each, args, {}, outs, here, numbers or None)

    def _elements(self, inputs: Sequence[int]) -> int:
        layouts = [self._tape.layouts[index] for index in inputs]
        return sum(layout.nbytes for layout in layouts if layout is not None)

    def _body(self, row: _Row) -> Program | None:
        leaves = self._inputs([*row.inputs, *row.shared], row.parameter)
        numbered = enumerate(row.kept)
        kept = [(OutputSpec(OutputKind.USER, str(n)), Ref(index)) for n, index in numbered]
        written = graph_of(Tape(self._tape.layouts, row.entries), leaves, kept)
        inputs, specs = [leaf for leaf, _ in leaves], [spec for spec, _ in kept]
        try:
            found = functionalize(written.gm, written.mode, inputs, specs)
        except GraphError:
            return None  # whoever sees the whole step says what is wrong
        assert found is not None
        program, _ = found
        for node in program.nodes:
            value = node.meta.get("val")
            if isinstance(value, (torch.SymFloat, torch.SymInt)):  # a trace has some of its own
                node.meta["val"] = stand_in(known_values(value))
        for node in reversed(list(program.nodes)):
            if node.op == "call_function" and not node.users and effects.of(node).pure:
                program.gm.graph.erase_node(node)
        return program if _keeps_layouts(program) else None

    def _inputs(self, values: Sequence[int], parameter: str) -> list[tuple[Leaf, int]]:
        """What stands for the body's inputs, with names of their own."""
        met: set[str] = set()
        leaves = []
        for index in values:
            plain = name = self._name(index, parameter)
            for number in count(2):
                if name not in met:
                    break
                name = f"{plain}_{number}"
            met.add(name)
            tensor = self._tape.layouts[index] is not None
            role, value = (Role.INPUT, torch.empty(0)) if tensor else (Role.SCALAR, None)
            if value is None:
                value = self._number(index)
            leaves.append((Leaf(name, role, {}, (), value), index))
        return leaves

    def _number(self, index: int) -> Any:
        """What a number was in the recorded step."""
        if index in self._leaves:
            return self._leaves[index].value
        if not self._numbers:
            made = (entry for entry in self._tape.entries if entry.number is not None)
            self._numbers = {entry.outs: entry.number for entry in made}
        return self._numbers[index]

    def _name(self, index: int, parameter: str) -> str:
        """As the body calls an input: ``parameter``, ``gradient``, ``exp_avg``, ``lr``."""
        if self._step.gradients.get(parameter) == index:
            return "gradient"
        leaf = self._leaves.get(index)
        if leaf is None:
            return "number" if self._tape.layouts[index] is None else "tensor"
        if leaf.fqn == parameter:
            return "parameter"
        slot = leaf.fqn.partition(f".state.{parameter}.")[2]
        return slot or ".".join(leaf.fqn.split(".")[4:]) or leaf.fqn

    # --- the new tape -----------------------------------------------------------------------------

    def _with(self, made: list[Entry]) -> Tape:
        tape, start, end = self._tape, self._step.start, self._step.end
        common = [tape.entries[place] for place in self._common]
        entries = [*tape.entries[:start], *common, *made, *tape.entries[end:]]

        def place(old: int) -> int:
            if old <= start:
                return old
            if old > end:
                return old + len(entries) - len(tape.entries)
            return start + sum(at < old for at in self._common)

        expectations = [found._replace(place=place(found.place)) for found in tape.expectations]
        return replace(tape, entries=entries, expectations=expectations)


def _equal_constants(tape: Tape) -> Iterator[tuple[int, int]]:
    """Those of one element, each with the first that is equal to it."""
    met: dict[Any, int] = {}
    for index, held in tape.constants.items():
        if held.numel() == 1:
            key = (held.dtype, held.shape, held.device, repr(held.item()))
            first = met.setdefault(key, index)
            if first != index:
                yield index, first


def _owner(leaf: Leaf, names: set[str]) -> str:
    """The parameter whose slot a leaf is; empty where it is none's."""
    _, _, rest = leaf.fqn.partition(".state.")
    while rest:
        rest = rest.rpartition(".")[0]
        if rest in names:
            return rest
    return ""


def _layout(layout: Layout | None, like: Layout | None, storages: dict[int, int]) -> Any:
    """Equal for values of two rows that ops treat alike; ``like`` is the row's gradient."""
    if layout is None:
        return None
    shape: Any = (layout.shape, layout.stride)
    if not layout.shape:
        shape = "scalar"
    elif like is not None and (layout.shape, layout.stride) == (like.shape, like.stride):
        shape = "as the parameter" if _is_contiguous(layout) else shape
    place = storages.setdefault(layout.storage, len(storages))
    return (shape, place, layout.offset, layout.dtype, layout.device, layout.conj, layout.neg)


def _is_contiguous(layout: Layout) -> bool:
    step = 1
    for size, stride in zip(reversed(layout.shape), reversed(layout.stride), strict=True):
        if stride != step or size == 0:
            return False
        step *= size
    return True


def _keeps_layouts(body: Program) -> bool:
    """True when the new value of each tensor is laid out as the tensor."""
    inputs = {node.name: node.meta["val"] for node in body.placeholders}
    names = {spec.fqn: spec.name for spec in body.signature.inputs}
    outputs = zip(body.signature.outputs, body.results, strict=True)
    updates = [(o, value) for o, value in outputs if o.kind is OutputKind.UPDATE]
    return all(same_layout(inputs[names[o.target]], value.meta["val"]) for o, value in updates)
