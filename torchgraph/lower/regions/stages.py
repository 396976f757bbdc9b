"""Stages: each block of a program, and what lies between blocks, runs as regions of its own.

Between stages memory can be freed, and states can be written: a parameter is updated after the
stage that completes its gradient, which then is not kept until the end of the step.
"""

from __future__ import annotations

from collections.abc import Sequence, Set as AbstractSet
from itertools import accumulate

from torch import fx

from ..._torch import OpOverload
from ...ir.aliasing import alias_sources, storages_of
from ...ir.nodes import operands
from ...ir.program import Program
from ...passes.fusions.model_update.optimizers import RULES
from .. import blocks
from ..cost import seconds_by_node
from ..raising import may_raise
from ..row_parts import split_rows
from .checked import check_index, computes

_UPDATES = frozenset(rule.op for rule in RULES.values())

Stages = dict[fx.Node, int]
"""Op -> the number of its stage; ascending in the program's order."""


def stages_of(program: Program, ops: Sequence[fx.Node]) -> Stages:
    """The stage of each op; one for all where nothing repeats enough to be compiled once."""
    borders = set(blocks.starts(ops, seconds_by_node(program)))
    numbers = accumulate(int(position in borders) for position in range(len(ops)))
    return dict(zip(ops, numbers, strict=True))


def repeat_views(program: Program, stages: Stages, outside: AbstractSet[fx.Node]) -> None:
    """Give each stage views of its own: compiled code that returned one would return a copy."""
    made: dict[tuple[fx.Node, int], fx.Node] = {}

    def own(source: fx.Node, reader: fx.Node) -> fx.Node:
        stage = stages[reader]
        if stages.get(source, stage) == stage or source in outside or not _is_view(source):
            return source
        if (source, stage) not in made:
            args, kwargs = fx.map_arg((source.args, source.kwargs), lambda one: own(one, reader))
            with program.gm.graph.inserting_before(reader):
                copy = program.gm.graph.create_node("call_function", source.target, args, kwargs)
            copy.meta.update(source.meta)
            made[source, stage], stages[copy] = copy, stage
        return made[source, stage]

    for node in [node for node in stages if node not in outside]:
        replaced = {source: own(source, node) for source in node.all_input_nodes}
        if any(source is not other for source, other in replaced.items()):
            node.args, node.kwargs = fx.map_arg((node.args, node.kwargs), replaced.__getitem__)


def _is_view(node: fx.Node) -> bool:
    return isinstance(node.target, OpOverload) and bool(alias_sources(node))


def update_early(program: Program, stages: Stages) -> dict[fx.Node, list[fx.Node]]:
    """Split the calls that update many parameters: one for each stage that completes gradients.

    Returns:
        New call -> the readers of what it writes: where it runs after them, it writes in place.
    """
    raising = max((stages[node] for node in stages if _may_raise_late(node)), default=0)
    readers = _readers(stages)
    waits: dict[fx.Node, list[fx.Node]] = {}
    for node in [node for node in stages if node.target in _UPDATES]:
        columns = [operands(node, place) for place in range(len(node.args))]
        rows = list(zip(*(column for column in columns if column), strict=True))
        shared = [value for value in node.kwargs.values() if isinstance(value, fx.Node)]
        groups: dict[int, list[int]] = {}
        for number, row in enumerate(rows):
            read = (one for storage in storages_of(row) for one in readers.get(storage, ()))
            needed = (stages.get(one, 0) for one in (*row, *shared, *read))
            groups.setdefault(max(raising, *needed), []).append(number)
        if len(groups) > 1:
            stage, graph = stages.pop(node), program.gm.graph
            for call in split_rows(graph, node, list(groups.values()), len(rows)):
                stages[call], held = stage, storages_of(call.all_input_nodes)
                waits[call] = [one for storage in held for one in readers.get(storage, ())]
    return waits


def _may_raise_late(node: fx.Node) -> bool:
    """True for what may raise, but for checks of what the step is given, which come first."""
    checks_inputs = node.target is check_index and (
        computes(node) or all(one.op == "placeholder" for one in node.all_input_nodes)
    )
    return may_raise(node) and not checks_inputs


def _readers(stages: Stages) -> dict[int, list[fx.Node]]:
    """Storage -> the ops that read it, without views of it and updates."""
    found: dict[int, list[fx.Node]] = {}
    for node in stages:
        if node.target not in _UPDATES and not alias_sources(node):
            for storage in storages_of(node.all_input_nodes):
                found.setdefault(storage, []).append(node)
    return found
