"""From a tape to an fx graph that still mutates, with fake values as the step met them."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx
from torch.fx.node import Argument

from .. import library
from .._torch import FakeTensorMode, OpOverload, fake_mode, graph_module, schema_of
from .._torch.ops import schema_if_any
from ..errors import NoProgram
from ..ir import effects, nodes
from ..ir.aliasing import alias_sources
from ..ir.each import Each
from ..ir.program import RECORDED, OutputSpec, Provenance, Role
from ..live.step import Leaf
from ..objects import is_a
from ..record.tape.number import stand_in
from ..record.tape.tape import ANY, Entry, Expectation, Ref, Tape, TensorLayout, refs
from .fakes import Fakes

aten = torch.ops.aten
_ITEM = aten._local_scalar_dense.default
_KNOWN_BEFORE = (Role.SCALAR, Role.SLOT, Role.BUFFER, Role.SCALER)
_LIFTS = frozenset({aten.lift_fresh.default, aten.lift_fresh_copy.default, aten.lift.default})


@dataclass
class Written:
    """A tape as a graph: it still mutates."""

    gm: fx.GraphModule
    mode: FakeTensorMode
    guard_values: list[object]
    """Expected values of the graph's last outputs: branches on numbers that are known before."""


def graph_of(
    tape: Tape,
    leaves: Sequence[tuple[Leaf, int]],
    outputs: Sequence[tuple[OutputSpec, object]],
) -> Written:
    """``leaves``: the inputs with their values; ``outputs``: with a `Ref` or a constant each."""
    return _Writer(tape, leaves).run(outputs)


class _Writer:
    def __init__(self, tape: Tape, leaves: Sequence[tuple[Leaf, int]]) -> None:
        self._tape = tape
        self._leaves = leaves
        self._mode = fake_mode()
        self._fakes = Fakes(self._mode)
        self._graph = fx.Graph()
        self._root = graph_module({}, fx.Graph())
        self._nodes: dict[int, fx.Node] = {}
        self._expected = 0
        self._known = _KnownBefore(tape, leaves)

    def run(self, outputs: Sequence[tuple[OutputSpec, object]]) -> Written:
        for leaf, index in self._leaves:
            self._placeholder(leaf, index)
        for index, held in self._tape.constants.items():
            self._constant(index, held)
        waiting = iter([*self._tape.expectations, None])
        expectation = next(waiting)
        guards: list[tuple[fx.Node, object]] = []
        for place, entry in enumerate([*self._tape.entries, None]):
            while expectation is not None and expectation.place == place:
                guards += self._expect(expectation)
                expectation = next(waiting)
            if entry is not None:
                self._entry(entry)
        results = [self._argument(value) for _, value in outputs]
        self._graph.output([*results, *(node for node, _ in guards)])
        _drop_unread_views(self._graph)
        gm = graph_module(self._root, self._graph)
        return Written(gm, self._mode, [value for _, value in guards])

    # --- inputs -----------------------------------------------------------------------------------

    def _placeholder(self, leaf: Leaf, index: int) -> None:
        node = self._graph.placeholder(f"input_{len(self._nodes)}")
        layout = self._tape.layouts[index]
        if layout is not None:
            self._check_layout(layout, None)
            node.meta["val"] = self._fakes.of(layout)
        else:
            node.meta["val"] = _stand_in(leaf.value)
        self._nodes[index] = node

    def _constant(self, index: int, held: torch.Tensor) -> None:
        name = f"_tensor_constant{index}"
        setattr(self._root, name, held)
        node = self._graph.get_attr(name)
        layout = self._tape.layouts[index]
        assert layout is not None
        node.meta["val"] = self._fakes.apart(layout)
        node.meta["provenance"] = Provenance()
        self._nodes[index] = node

    # --- entries ----------------------------------------------------------------------------------

    def _entry(self, entry: Entry) -> None:
        if entry.target in _LIFTS:
            self._lift(entry)
            return
        args, kwargs = self._argument(entry.args), self._argument(entry.kwargs)
        node = nodes.call(self._graph, entry.target, args, kwargs)
        node.meta["provenance"] = entry.provenance
        if entry.number is not None and not isinstance(entry.target, Each):
            node.meta["val"] = self._value_of(entry)
            self._nodes[entry.outs] = node
            return
        if entry.outs is None:
            return
        _check_results(entry)
        node.meta["val"] = self._value(entry.outs, entry)
        node.meta[RECORDED] = True
        self._name(entry.outs, node, entry)

    def _lift(self, entry: Entry) -> None:
        """A tensor made from Python data: fresh memory in each step."""
        source = self._argument(entry.args[0])
        node = self._graph.call_function(aten.lift_fresh_copy.default, (source,))
        node.meta["provenance"] = entry.provenance
        layout = self._tape.layouts[entry.outs]
        assert layout is not None
        node.meta["val"] = self._fakes.of(layout)
        self._nodes[entry.outs] = node

    def _value_of(self, entry: Entry) -> object:
        number = entry.number
        if entry.target is _ITEM or not isinstance(number, bool):
            return number if isinstance(number, (bool, complex)) else _stand_in(number)
        return number

    def _value(self, outs: Any, entry: Entry) -> object:
        if isinstance(outs, list):
            return type_of_results(entry)([self._value(one, entry) for one in outs])
        if outs is None:
            return None
        layout = self._tape.layouts[outs]
        if layout is None:  # a row's number
            return _stand_in(entry.number[outs])
        self._check_layout(layout, entry)
        return self._fakes.of(layout)

    def _name(self, outs: Any, node: fx.Node, entry: Entry) -> None:
        if not isinstance(outs, list):
            self._nodes.setdefault(outs, node)
            return
        for position, one in enumerate(outs):
            if one is None:
                continue
            part = self._graph.call_function(operator.getitem, (node, position))
            part.meta.update(val=node.meta["val"][position], provenance=entry.provenance)
            self._name(one, part, entry)

    def _argument(self, value: object) -> Any:
        if isinstance(value, Ref):
            return self._nodes[value.index]
        if isinstance(value, (list, tuple)):
            return type(value)([self._argument(item) for item in value])
        if isinstance(value, dict):
            return {key: self._argument(item) for key, item in value.items()}
        return value

    def _check_layout(self, layout: TensorLayout, entry: Entry | None) -> None:
        if layout.storage < 0:
            raise NoProgram(
                "the step makes or reads a tensor that is not dense (sparse, nested or of a "
                "library); a program holds dense ones only.",
                where=None if entry is None else entry.provenance.line,
                fix="use nn.Embedding(sparse=False), or to_dense().",
            )

    # --- expectations -----------------------------------------------------------------------------

    def _expect(self, found: Expectation) -> Iterator[tuple[fx.Node, object]]:
        """A call that looks again; or, for a number that is known before the run, a guard."""
        if self._known.always(found.looked_at):
            return
        node = self._nodes[found.looked_at]
        if self._tape.layouts[found.looked_at] is None:
            if self._known.before(found.looked_at):
                yield node, found.value
                return
            if found.value is ANY:
                return  # an op that raises says so
            self._expect_number(node, found)
        elif isinstance(found.value, torch.Size):
            self._call(library.expect_shape, (node, list(found.value)), found)
        else:
            self._call(library.expect, (node, self._held(found.value)), found)

    def _expect_number(self, node: fx.Node, found: Expectation) -> None:
        value = node.args[0] if node.target is _ITEM else None
        fake = value.meta["val"] if isinstance(value, fx.Node) else None
        if isinstance(fake, torch.Tensor):
            wanted = torch.full(tuple(fake.shape), found.value, dtype=fake.dtype)
            self._call(library.expect, (value, self._held(wanted)), found)
            return
        wanted = torch.tensor(found.value)
        if wanted.dtype is torch.get_default_dtype():
            wanted = torch.tensor(found.value, dtype=torch.float64)
        made = self._graph.call_function(
            aten.scalar_tensor.default, (node,), {"dtype": wanted.dtype}
        )
        made.meta["provenance"] = found.provenance
        with self._mode:
            made.meta["val"] = torch.empty((), dtype=wanted.dtype)
        self._call(library.expect, (made, self._held(wanted)), found)

    def _held(self, value: torch.Tensor) -> fx.Node:
        name = f"_expected{self._expected}"
        self._expected += 1
        setattr(self._root, name, value)
        node = self._graph.get_attr(name)
        with self._mode:
            node.meta["val"] = torch.empty_strided(
                value.shape, value.stride(), dtype=value.dtype, device=value.device
            )
        node.meta["provenance"] = Provenance()
        return node

    def _call(self, op: OpOverload, args: tuple[Argument, ...], found: Expectation) -> None:
        node = self._graph.call_function(op, args)
        node.meta["provenance"] = found.provenance


def _stand_in(value: Any) -> Any:
    return stand_in(int(value) if isinstance(value, int) else float(value))  # NumPy's: bare


def _drop_unread_views(graph: fx.Graph) -> None:
    """Erase unread views, such as eager's detached and transposed gradients."""
    for node in reversed(list(graph.nodes)):
        view = isinstance(node.target, OpOverload) and bool(alias_sources(node))
        if view and not node.users and effects.of_target(node.target).pure:
            graph.erase_node(node)


class _KnownBefore:
    """The values that depend on constants alone, or on numbers that are known before a run."""

    def __init__(self, tape: Tape, leaves: Sequence[tuple[Leaf, int]]) -> None:
        self._always: set[int] = set(tape.constants)
        self._before: set[int] = set(tape.constants)
        self._before |= {index for leaf, index in leaves if is_known_before(leaf)}
        for entry in tape.entries:
            self._follow(entry)

    def always(self, index: int) -> bool:
        """True for what is the same in every step."""
        return index in self._always

    def before(self, index: int) -> bool:
        """True for what can be computed before the step, from small states."""
        return index in self._before

    def _follow(self, entry: Entry) -> None:
        read = {ref.index for ref in refs((entry.args, entry.kwargs))}
        results = set(flat(entry.outs)) | written_by(entry)
        pure = not effects.of_target(entry.target).ordered and not is_unset(entry.target)
        for known in (self._always, self._before):
            if pure and read <= known:
                known |= results
            else:
                known -= results


def is_known_before(leaf: Leaf) -> bool:
    """True for a small state of the host: its value is there before the step runs."""
    value = leaf.value
    small = not is_a(value, torch.Tensor) or (value.ndim == 0 and value.device.type == "cpu")
    return small and leaf.role in _KNOWN_BEFORE


def written_by(entry: Entry) -> set[int]:
    """The values that a call writes."""
    if isinstance(entry.target, Each):
        return {ref.index for ref in entry.target.updates(entry.args[0])}
    if not isinstance(entry.target, OpOverload) or not schema_of(entry.target).is_mutable:
        return set()
    outs = [entry.kwargs.get(a.name) for a in schema_of(entry.target).arguments if a.is_out]
    return {r.index for r in refs([*effects.written_values(entry.target, entry.args), *outs])}


def is_unset(target: object) -> bool:
    """True for an op that makes a tensor and leaves what was in its memory."""
    schema = schema_if_any(target)
    return schema is not None and schema.name.startswith(("aten::empty", "aten::new_empty"))


def flat(outs: Any) -> Iterable[int]:
    """The values that a call returns, those of lists one after the other."""
    if isinstance(outs, list):
        return [index for one in outs for index in flat(one)]
    return [] if outs is None else [outs]


def _check_results(entry: Entry) -> None:
    """Assert that an op returns as many values as its schema says: torch would crash otherwise."""
    schema = schema_if_any(entry.target)
    count = len(entry.outs) if isinstance(entry.outs, list) else 1
    if schema is not None and len(schema.returns) > 1 and len(schema.returns) != count:
        raise AssertionError(f"{entry.target} returns {len(schema.returns)} values, not {count}")


def type_of_results(entry: Entry) -> type:
    """``tuple`` for an op with several results, ``list`` for one that returns a list."""
    schema = schema_if_any(entry.target)
    return list if schema is not None and len(schema.returns) == 1 else tuple
