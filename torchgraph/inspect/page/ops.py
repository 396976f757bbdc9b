"""The ops of a program as columns, and the user's lines that they come from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch import fx

from ...costs.op_calls import Work, work_by_node
from ...costs.owners import Owners
from ...errors import SourceLine
from ...ir import text
from ...ir.each import is_each, is_item
from ...ir.nodes import whole_of
from ...ir.ops import base_name
from ...ir.program import Phase, Program, provenance
from .numbered import Numbered
from .source import Source

PHASES = tuple(Phase)
_COLUMNS = (
    *("name", "op", "phase", "module", "pass", "type"),
    *("text", "stack", "flops", "bytes", "seconds"),
)


@dataclass(frozen=True)
class Ops:
    """Columns of the ops of a program."""

    columns: dict[str, list[Any]]
    """One entry for each op; ``module`` counts from the source's rows, -1 for none of them.

    ``stack`` is a number among ``stacks``, -1 for an op without a line of the user's.
    """
    lines: Numbered[SourceLine]
    stacks: Numbered[tuple[int, ...]]
    """The numbers of the lines of each, innermost first."""


def ops_of(program: Program, source: Source, seconds: Mapping[str, float]) -> Ops:
    """The ops of a program. ``seconds``: of each node in one step, by its name."""
    work, owners, took_of = work_by_node(program), Owners(program), _by_op(program, seconds)
    rows = {row.path: number for number, row in enumerate(source.modules)}
    found = Ops({name: [] for name in _COLUMNS}, Numbered(), Numbered())
    for node, lines in _statements(program).items():
        origin, taken = provenance(node), work.get(node, Work())
        stack = tuple(map(found.lines.number, origin.frames))
        cells = (
            node.name,
            base_name(node.target),
            PHASES.index(origin.phase),
            rows.get(source.places.of(owners.module(node)), -1),
            origin.made_by,
            "several" if is_each(node) else text.value_type(node.meta.get("val")),
            "\n".join(line.removeprefix("    ") for line in lines),
            found.stacks.number(stack) if stack else -1,
            taken.flops,
            taken.bytes,
            took_of.get(node),
        )
        for column, cell in zip(found.columns.values(), cells, strict=True):
            column.append(cell)
    return found


def _by_op(program: Program, seconds: Mapping[str, float]) -> dict[fx.Node, float]:
    """Seconds of each op, with those of taking its results apart."""
    found: dict[fx.Node, float] = {}
    for node in program.nodes:
        if node.name in seconds:
            op = whole_of(node)
            found[op] = found.get(op, 0.0) + seconds[node.name]
    return found


def _statements(program: Program) -> dict[fx.Node, list[str]]:
    """Each op with its lines of the program's text, those of its rows and results included."""
    found: dict[fx.Node, list[str]] = {}
    owner = None
    for node, line in text.lines(program):
        if node is not None and node.graph is program.gm.graph and not is_item(node):
            owner = whole_of(node) if node.op == "call_function" else None
        if owner is not None:
            found.setdefault(owner, []).append(line)
    return found
