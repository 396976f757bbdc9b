"""Cuts a program into regions, each compiled as one function, and the ops that stay outside.

Outside stay numbers and what they are read from, draws when they must be eager's, collectives, and
our own ops over lists of tensors, which are one kernel already. Everything else joins the region of
its level: ops outside of level n run before region n, which runs before those of level n + 1.
A small program has one region: forward and backward. Blocks that repeat begin levels (`stages`).
So does what the backward recomputes within a stage, one for each checkpointed region: within one
region the compiler would compute it once. So does what a collective is to run beside: in one region
with its argument, it would have run before.
Predicates stay outside, and so do ops whose result's size depends on data, and those that may raise
but for those whose indices are checked before; a region before the last predicate writes no state.
Compiled code knows memory, and not the bit that says that it is to be read conjugated or negated:
ops that meet such a value stay outside, too. So do the copies by which states change places: the
compiler drops a copy, and would write what the next state is to become.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Iterator, Sequence

import torch
from torch import fx
from torch.fx.node import ArgumentT

from ..._torch import OpOverload, graph_module, schema_of, storage_id
from ...ir import effects
from ...ir.aliasing import alias_sources, refresh_views, storages_of, waits_for
from ...ir.nodes import operand
from ...ir.program import OutputKind, Program, TensorMeta, provenance
from ...ir.values import leaves, sized_by_data
from ..expects import expects_of, guards
from ..numbers import numbers
from ..raising import may_raise
from . import fast_draws
from .checked import computes, with_checks
from .exclusions import exclusion
from .region import Crossing, Region, RegionGraph
from .rematerialized import merge_copies
from .repeats import RepeatedPart, repeats
from .stages import repeat_views, stages_of, update_early
from .travels import begun_early, views_between, wait_late

aten = torch.ops.aten

_BLANK = frozenset({"aten::empty", "aten::empty_like", "aten::empty_strided", "aten::new_empty"})
"""Uninitialized memory: of their arguments only the metadata count."""
_LIKE = frozenset(
    {"aten::rand_like", "aten::randn_like", "torchgraph::bernoulli", "torchgraph::normal"}
)
"""Draws that need nothing but the metadata of their first argument."""

_IN_CHUNKS = frozenset({"torchgraph::linear_cross_entropy"})
"""Ops that are loops over products: compiled code would only call them."""


def cut(program: Program, part: int = 0, *, eager_draws: bool) -> tuple[Program, list[Region]]:
    """A copy of a functional program whose tensor ops are calls of regions, and these.

    Args:
        part: of a step that accumulates gradients: which of its parts ``program`` is.
        eager_draws: random numbers are drawn outside of the regions, in the program's order.
    """
    program = program.copy()
    refresh_views(program)
    return _Cut(program, part, eager_draws).run()


class _Cut:
    def __init__(self, program: Program, part: int, eager_draws: bool) -> None:
        self._program = program
        self._part = part
        self._eager_draws = eager_draws
        self._checks = with_checks(program)
        self._ops = _ops(program)
        self._stages = stages_of(program, self._ops)
        merge_copies(program, self._stages)
        self._readers = update_early(program, self._stages)
        self._ops = _ops(program)
        self._sources_of_numbers = _sources_of_numbers(self._ops)
        self._swapped = _swapped(program)
        self._outside: set[fx.Node] = set()
        for check in (check for checks in self._checks.values() for check in checks):
            self._outside |= computes(check)
        for node in self._ops:
            if self._stays_outside(node):
                self._outside.add(node)
        self._outside.update(views_between(self._ops, self._outside))
        repeat_views(program, self._stages, self._outside)
        self._ops = _ops(program)
        self._guards, self._waits = guards(program), waits_for(program.nodes)
        self._level = self._levels()
        self._proven = max((self._level[node] for node in expects_of(program)), default=0)
        """The first level whose region runs when all predicates have held."""
        self._graph = fx.Graph()
        self._copies: dict[fx.Node, fx.Node] = {}
        self._regions: list[Region] = []

    def run(self) -> tuple[Program, list[Region]]:
        for node in self._program.placeholders:
            self._copies[node] = self._graph.node_copy(node)
        for level in range(max(self._level.values(), default=0) + 1):
            here = [node for node in self._ops if self._level[node] == level]
            for node in here:
                if node in self._outside:
                    self._copies[node] = self._copy(node)
            inside = [node for node in here if node not in self._outside]
            if inside:
                self._copy_region(inside, level)
        self._graph.output(self._copied(self._program.results))
        gm = graph_module(self._program.gm, self._graph)
        return Program(gm, self._program.signature), self._regions

    # --- who is where -----------------------------------------------------------------------------

    def _stays_outside(self, node: fx.Node) -> bool:
        if node.op == "get_attr" or node in self._sources_of_numbers or node in self._swapped:
            return True
        if node.target is operator.getitem:
            return node.all_input_nodes[0] in self._outside
        # None: a gradient that nobody wants, of an op that returns several.
        values = [value for value in leaves(node.meta.get("val")) if value is not None]
        if not all(isinstance(value, torch.Tensor) for value in values):
            return True
        met = [*values, *_read_values(node)]
        if any(map(_has_unknown_size, met)) or any(map(_is_lazy, met)):
            return True
        if not isinstance(node.target, OpOverload):
            return True
        found = effects.of(node)
        if found.random and not self._eager_draws:
            return not fast_draws.has_rule(node)
        if not found.pure or _is_one_kernel(node.target) or sized_by_data(node):
            return True
        if self._eager_draws and _name(node) in _BLANK:
            return True
        if _never_inside(node) or self._adds_rows_outside(node):
            return True
        return bool(numbers.moving(node)) and not numbers.takes_tensors(
            node.target, node.meta["val"]
        )

    def _adds_rows_outside(self, node: fx.Node) -> bool:
        """True for rows added into what comes from outside: compiled code would add to a copy."""
        adds = node.target is aten.index_add.default and not node.kwargs
        return adds and node.args[0] in self._outside and len(operand(node).users) == 1

    def _levels(self) -> dict[fx.Node, int]:
        found: dict[fx.Node, int] = {}
        latest_ordered = 0
        latest = beside = stage = 0
        flying = begun_early(self._ops, self._outside)
        begun: dict[RepeatedPart, int] = {}
        repeated = repeats(self._program, self._stages)
        for node in self._ops:
            outside = node in self._outside
            if not outside and self._stages[node] > stage:
                stage, beside = self._stages[node], latest + 1
            level = 0 if outside else beside
            if node in repeated:
                level = begun.setdefault(repeated[node], latest + 1)
            for source in self._sources(node):
                if source in found:
                    waits = outside and source not in self._outside
                    level = max(level, found[source] + waits)
            if outside and effects.of(node).ordered:
                level = latest_ordered = max(level, latest_ordered)
            found[node] = level
            latest = max(latest, level)
            beside = max(beside, level) if node in flying else beside
        wait_late(found, self._outside)
        return found

    def _sources(self, node: fx.Node) -> list[fx.Node]:
        """The nodes that an op has to wait for."""
        if node in self._outside and _name(node) in _BLANK:
            return []
        first = node.args[0] if node.args else None
        needless = first if node in self._outside and _name(node) in _LIKE else None
        read = [source for source in node.all_input_nodes if source is not needless]
        waits = (self._guards, self._checks, self._readers)
        return [*read, *(one for found in waits for one in found.get(node, ()))]

    # --- outside ----------------------------------------------------------------------------------

    def _copied(self, value: ArgumentT) -> ArgumentT:
        return fx.map_arg(value, self._copies.__getitem__)

    def _copy(self, node: fx.Node) -> fx.Node:
        if _name(node) in _BLANK:
            return self._blank(node)
        if _name(node) in _LIKE:
            args = (self._blank(operand(node)), *self._copied(node.args[1:]))
            assert callable(node.target)
            made = self._graph.call_function(node.target, args, self._copied(node.kwargs))
            made.meta.update(node.meta)
            return made
        return self._graph.node_copy(node, self._copies.__getitem__)

    def _blank(self, node: fx.Node) -> fx.Node:
        """Memory of the node's layout: depends on no other node."""
        value = node.meta["val"]
        made = self._graph.call_function(
            aten.empty_strided.default,
            (list(value.shape), list(value.stride())),
            {"dtype": value.dtype, "device": value.device},
        )
        with value.fake_mode:
            own = torch.empty_strided(
                value.shape, value.stride(), dtype=value.dtype, device=value.device
            )
        made.meta.update(val=own, provenance=provenance(node))
        return made

    # --- inside -----------------------------------------------------------------------------------

    def _copy_region(self, nodes: list[fx.Node], level: int) -> None:
        own = set(nodes)
        written = dict(self._written_inside(own, level))
        returned = [
            node
            for node in nodes
            if node not in written.values() and any(user not in own for user in node.users)
        ]
        graph = RegionGraph(nodes, written)
        region = Region(
            len(self._regions),
            graph.write(returned),
            graph.metas(),
            tuple(TensorMeta.of(node.meta["val"]) for node in returned),
            written=graph.written(),
            random=any(effects.of(node).random for node in nodes),
            crossings=tuple(map(Crossing.of, returned)),
            states=tuple(state.name for state in written),
        )
        region.part = self._part
        self._regions.append(region)
        self._call(region, graph, returned, nodes[0])
        for state, value in written.items():
            self._copies[value] = self._copies[state]

    def _call(
        self, region: Region, graph: RegionGraph, returned: Sequence[fx.Node], first: fx.Node
    ) -> None:
        args = [self._copies[node] for node in graph.tensors]
        if graph.vector is not None:
            values = [self._copies[node] for node in graph.numbers]
            vector = graph.vector.meta["val"]
            made = self._graph.call_function(numbers.vector, (values, vector.device))
            made.meta.update(val=vector, provenance=provenance(first))
            args.append(made)
        call = self._graph.call_function(region, tuple(args))
        call.meta["val"] = tuple(node.meta["val"] for node in returned)
        call.meta["provenance"] = provenance(first)
        for position, node in enumerate(returned):
            item = self._graph.call_function(operator.getitem, (call, position))
            item.meta.update(node.meta)
            self._copies[node] = item

    def _is_state_alone(self, value: fx.Node, own: set[fx.Node]) -> bool:
        """True when the value is read outside only as the new value of its state."""
        readers = [user for user in value.users if user not in own]
        once = list(self._program.results).count(value) == 1
        return readers == [self._program.output] and once

    def _written_inside(self, own: set[fx.Node], level: int) -> Iterator[tuple[fx.Node, fx.Node]]:
        """(state, its new value) for states that are read by this region and before, only."""
        if level < self._proven:
            return
        for state, value in self._program.states().items():
            if value not in own:
                continue
            held = state.meta.get("val")
            if not isinstance(held, torch.Tensor) or _is_lazy(held):
                continue
            if not self._is_state_alone(value, own):
                continue
            views = [node for node in self._sharing[storage_id(held)] if node is not state]
            readers = [user for node in (state, *views) for user in node.users]
            readers += [self._waits[user] for user in readers if user in self._waits]
            if (
                own.issuperset(views)
                and value not in views
                and all(user in own or self._runs_before(user, level) for user in readers)
            ):
                yield state, value

    @functools.cached_property
    def _sharing(self) -> dict[int, list[fx.Node]]:
        """The nodes of each memory."""
        found: dict[int, list[fx.Node]] = {}
        for node in self._program.nodes:
            for storage in storages_of(node):
                found.setdefault(storage, []).append(node)
        return found

    def _runs_before(self, node: fx.Node, level: int) -> bool:
        if node.op != "call_function":
            return False
        return self._level[node] < level or (self._level[node] == level and node in self._outside)


def _ops(program: Program) -> list[fx.Node]:
    return [node for node in program.nodes if node.op in ("call_function", "get_attr")]


def _never_inside(node: fx.Node) -> bool:
    """True for an op that compiled code does not know, or computes otherwise.

    The process that compiles knows torch's ops and ours.
    """
    unknown = exclusion(node) is not None or effects.of_users(node.target)
    return unknown or _may_end(node) or _takes_a_flag(node)


def _takes_a_flag(node: fx.Node) -> bool:
    """True for an op that reads a comparison of numbers: regions get numbers as float64."""
    values = (source.meta.get("val") for source in node.all_input_nodes)
    return any(isinstance(value, (bool, torch.SymBool)) for value in values)


def _may_end(node: fx.Node) -> bool:
    """True for an op whose errors compiled code may miss or turn into an abort; ours do raise."""
    return may_raise(node) and not _name(node).startswith("torchgraph::")


def _name(node: fx.Node) -> str:
    return schema_of(node.target).name if isinstance(node.target, OpOverload) else ""


def _read_values(node: fx.Node) -> list[object]:
    return [value for source in node.all_input_nodes for value in leaves(source.meta.get("val"))]


def _has_unknown_size(value: object) -> bool:
    """True for a tensor with a data-dependent shape, as ``nonzero`` returns it."""
    return isinstance(value, torch.Tensor) and any(type(size) is not int for size in value.shape)


def _is_lazy(value: object) -> bool:
    """True for memory that is to be read conjugated or negated."""
    return isinstance(value, torch.Tensor) and (value.is_conj() or value.is_neg())


def _is_one_kernel(op: OpOverload) -> bool:
    """True for an op of ours over lists, which lowering lets write in place, or in chunks."""
    if op.namespace != "torchgraph":
        return False
    return effects.other_form(op) is not None or schema_of(op).name in _IN_CHUNKS


def _swapped(program: Program) -> set[fx.Node]:
    """Copies of a state, or of an argument, to another state, and nothing computed in between."""
    found: set[fx.Node] = set()
    for out, value in program.returns():
        chain: list[fx.Node] = []
        node: object = value if out.kind is OutputKind.UPDATE else None
        while isinstance(node, fx.Node) and (came := _copied_from(node)) is not None:
            chain.append(node)
            node = came
        if isinstance(node, fx.Node) and node.op == "placeholder":
            found.update(chain)
    return found


def _copied_from(node: fx.Node) -> object:
    """The source of a copy or view; None for an op that computes."""
    if node.target is aten.copy.default:
        return node.args[1]
    if node.target is aten.clone.default:
        return node.args[0]
    return next(iter(alias_sources(node)), None) if node.op == "call_function" else None


def _sources_of_numbers(ops: Sequence[fx.Node]) -> set[fx.Node]:
    """The tensors that numbers are read from: step counters on the host."""
    found: set[fx.Node] = set()
    for node in reversed(ops):
        if node in found or (numbers.is_number(node) and node.op == "call_function"):
            found.update(node.all_input_nodes)
    return found
