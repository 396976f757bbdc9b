"""The ops of a program as columns, and costs of each module."""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import fx

from ...costs.by_module import kept_by_module, seconds_by_module, work_by_module
from ...costs.op_calls import Work, work_by_node
from ...costs.owners import Owners
from ...ir import text
from ...ir.each import is_each, is_item
from ...ir.ops import base_name
from ...ir.program import Phase, Program, provenance
from .places import Places
from .source import Source
from .timings import Seconds

PHASES = tuple(Phase)
_NONE = Work()


@dataclass
class Spent:
    """Costs of the ops of one module in one step, without its children, by phase."""

    ops: list[int] = field(default_factory=lambda: [0] * len(PHASES))
    seconds: list[float] = field(default_factory=lambda: [0.0] * len(PHASES))
    flops: int = 0
    bytes: int = 0
    kept: int = 0
    """Bytes that its forward part leaves for the backward part, of one micro-batch."""


@dataclass(frozen=True)
class Ops:
    """Columns of the ops of a program."""

    columns: dict[str, list[Any]]
    """One entry for each op; ``module`` counts from the source's rows, -1 for none of them."""
    by_module: dict[str, Spent]
    """By the path of a row; under the empty path, what belongs to none."""
    work: Work
    """All of it."""


def ops_of(program: Program, source: Source, seconds: Seconds, places: Places) -> Ops:
    """The ops of a program. ``seconds``: of each node in one step, by its name."""
    work, owners = work_by_node(program), Owners(program)
    rows = {row.path: number for number, row in enumerate(source.modules)}
    columns: dict[str, list[Any]] = {name: [] for name in _COLUMNS}
    by_module: dict[str, Spent] = {}
    took_of = _with_results(program, seconds.by_node)
    for node, lines in statements(program).items():
        origin, taken = provenance(node), work.get(node, _NONE)
        module, phase = source.place(owners.module(node)), PHASES.index(origin.phase)
        cells = (
            node.name,
            base_name(node.target),
            phase,
            rows.get(module, -1),
            origin.made_by,
            "several" if is_each(node) else text.value_type(node.meta.get("val")),
            lines,
            places.stack(origin.frames),
            taken.flops,
            taken.bytes,
            took_of.get(node),
        )
        for name, cell in zip(_COLUMNS, cells, strict=True):
            columns[name].append(cell)
        by_module.setdefault(module, Spent()).ops[phase] += 1
    times = seconds_by_module(program, seconds.by_node)
    for (path, of), took in (*times.items(), *seconds.besides.items()):
        by_module.setdefault(source.place(path), Spent()).seconds[PHASES.index(of)] += took
    for path, phases in work_by_module(program).items():
        spent = by_module.setdefault(source.place(path), Spent())
        whole = sum(phases.values(), _NONE)
        spent.flops += whole.flops
        spent.bytes += whole.bytes
    for path, kept in kept_by_module(program).items():
        by_module.setdefault(source.place(path), Spent()).kept += kept
    return Ops(columns, by_module, sum(work.values(), _NONE))


_COLUMNS = (
    *("name", "op", "phase", "module", "pass", "type"),
    *("text", "stack", "flops", "bytes", "seconds"),
)


def _with_results(program: Program, seconds: Mapping[str, float]) -> dict[fx.Node, float]:
    """Costs of each op, with those of unpacking its results."""
    found: dict[fx.Node, float] = {}
    for node in program.nodes:
        if node.name in seconds:
            source = _tuple(node)
            owner = node if source is None else source
            found[owner] = found.get(owner, 0.0) + seconds[node.name]
    return found


def statements(program: Program) -> dict[fx.Node, str]:
    """Each op with its lines of the program's text, those of its rows and results included."""
    top = {node for node in program.nodes if node.op == "call_function" and not is_item(node)}
    found: dict[fx.Node, list[str]] = {}
    owner = None
    for node, line in text.lines(program):
        if node in top:
            source = _tuple(node)
            owner = node if source is None else source
        elif (
            node is not None
            and node.op in ("output", "get_attr", "placeholder")
            and (node.graph is program.gm.graph)
        ):
            owner = None
        if owner is not None:
            found.setdefault(owner, []).append(line)
    return {node: _dedented(lines) for node, lines in found.items()}


def _tuple(node: fx.Node | None) -> fx.Node | None:
    """The op of which the node is one of several results; None for an op."""
    if node is None or node.target is not operator.getitem:
        return None
    source = node.args[0]
    if isinstance(source, fx.Node) and isinstance(source.meta.get("val"), (tuple, list)):
        return source
    return None


def _dedented(lines: Sequence[str]) -> str:
    return "\n".join(line.removeprefix("    ") for line in lines)
