"""The plots of a page, in Vega-Lite's JSON format."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ...debug.figures import Figures
from ...debug.units import BYTES
from ...ir.program import Phase
from ..facts import StageTime
from .convert import Spec
from .memory import KINDS, OverTime
from .ops import PHASES

ByModule = Mapping[str, Mapping[Phase, Figures]]
PLOTS = ("memory", "modules", "phases", "stages")
_SCHEMA = "https://vega.github.io/schema/vega-lite/v6.json"
_COLOURS = ("#4c78a8", "#f58518", "#54a24b", "#9d755d", "#b279a2")
_MODULES = 24
_BAR = 20
"""Pixels of a bar, with the room around it."""
_NOBODY = "(no module)"


def memory(found: OverTime) -> Spec:
    """Bytes that are allocated while each op runs, by kind."""
    _, unit = BYTES.scaled(found.peak)
    scale = BYTES.base ** BYTES.names.index(unit)
    points = found.points()
    ends = [*(at for at, _ in points[1:]), len(found.moments)]
    used = [i for i, _ in enumerate(KINDS) if any(moment.taken[i] for _, moment in points)]
    names = [KINDS[i] for i in used]
    rows: list[dict[str, Any]] = [
        {
            "at": at,
            "end": end,
            "node": moment.node,
            "module": moment.module or _NOBODY,
            "part": moment.part or "the step",
            "total": moment.total / scale,
            **{KINDS[i]: moment.taken[i] / scale for i in used},
        }
        for (at, moment), end in zip(points, ends, strict=True)
    ]
    at = {"field": "at", "type": "quantitative", "title": "op", "scale": {"nice": False}}
    number: Spec = {"type": "quantitative", "format": ".3~f"}
    shown: list[Spec] = [{"field": f, "type": "nominal"} for f in ("node", "module", "part")]
    shown += [{"field": "total", "title": f"all, {unit}", **number}]
    shown += [{"field": KINDS[i], "title": f"{KINDS[i]}, {unit}", **number} for i in used]
    area = {
        "transform": [
            {"fold": names, "as": ["kind", "taken"]},
            {"calculate": f"indexof({names}, datum.kind)", "as": "rank"},
        ],
        "mark": {"type": "area", "interpolate": "step-after"},
        "encoding": {
            "x": at,
            "y": {"field": "taken", "type": "quantitative", "title": unit, "stack": "zero"},
            "color": _colours("kind", names, _legend("allocated by")),
            "order": {"field": "rank", "type": "quantitative"},
        },
    }
    # A column for each point takes the mouse: of the nearest point Vega-Lite 6.4 loses the names.
    hover = {"type": "point", "on": "pointerover", "clear": "pointerout"}
    column = {
        "params": [{"name": "hover", "select": hover}],
        "mark": {"type": "rect", "cursor": "pointer"},
        "encoding": {
            "x": at,
            "x2": {"field": "end"},
            "y": {"value": 0},
            "y2": {"value": "height"},
            "opacity": {"condition": {"param": "hover", "empty": False, "value": 0.3}, "value": 0},
            "tooltip": shown,
        },
    }
    return _plot("Memory of a step, as planned", rows, layer=[area, column], height=260)


def modules(figures: ByModule, kind: str) -> Spec:
    """Milliseconds of each module's own ops, the longest first. ``kind``: their source."""
    longest = sorted(figures.items(), key=lambda one: -sum(_seconds([one[1]]).values()))
    named = [(module or _NOBODY, _seconds([one])) for module, one in longest[:_MODULES]]
    rest = [one for _, one in longest[_MODULES:]]
    if rest:
        named.append((f"({len(rest)} more modules)", _seconds(rest)))
    rows = [
        {"module": module, "phase": phase.value, "ms": 1e3 * took}
        for module, taken in named
        for phase, took in taken.items()
        if took
    ]
    return _bars(f"Time by module, {kind}", rows, "module", [module for module, _ in named])


def phases(figures: ByModule, kind: str) -> Spec:
    """Milliseconds of forward, backward and update."""
    taken = {phase.value: took for phase, took in _seconds(figures.values()).items() if took}
    rows = [{"phase": phase, "ms": 1e3 * took} for phase, took in taken.items()]
    return _bars(f"Time by phase, {kind}", rows, "phase", list(taken))


def _seconds(figures: Iterable[Mapping[Phase, Figures]]) -> dict[Phase, float]:
    found = dict.fromkeys(PHASES, 0.0)
    for phases in figures:
        for phase, one in phases.items():
            found[phase] += one.seconds
    return found


def stages(found: Sequence[StageTime]) -> Spec:
    """Milliseconds of each stage of the compilation; of one that has parts, those."""
    leaves = [
        stage
        for number, stage in enumerate(found)
        if not any(one.name.startswith(f"{stage.name} ") for one in found[number + 1 : number + 2])
    ]
    rows = [{"stage": stage.name, "ms": 1e3 * stage.seconds} for stage in leaves]
    return _bars("Compilation by stage", rows, "stage", [stage.name for stage in leaves])


def _bars(title: str, rows: Sequence[Mapping[str, Any]], field: str, order: Sequence[str]) -> Spec:
    names = [phase.value for phase in PHASES]
    legend = {} if field == "phase" else _legend("phase")
    by_phase = any("phase" in row for row in rows)
    told = dict.fromkeys((field, "phase") if by_phase else (field,))
    y = {"field": field, "type": "nominal", "sort": list(order), "title": None}
    encoding: Spec = {
        "y": {**y, "axis": {"labelLimit": 260, "labelOverlap": False}},
        "x": {"field": "ms", "type": "quantitative", "title": "milliseconds"},
        "color": _colours("phase", names, legend) if by_phase else {"value": _COLOURS[0]},
        "tooltip": [
            *({"field": name, "type": "nominal"} for name in told),
            {"field": "ms", "type": "quantitative", "format": ".4~f"},
        ],
    }
    if by_phase:
        rows = [{**row, "rank": names.index(row["phase"])} for row in rows]
        encoding["order"] = {"field": "rank", "type": "ordinal"}
    return _plot(
        title, rows, mark={"type": "bar"}, encoding=encoding, height=_BAR * max(1, len(order))
    )


def _colours(field: str, names: Sequence[str], legend: Spec) -> Spec:
    known = dict(zip(KINDS, _COLOURS, strict=True))
    scale = {"domain": list(names), "range": [known[name] for name in names]}
    return {"field": field, "type": "nominal", "scale": scale, "legend": legend or None}


def _legend(title: str) -> Spec:
    return {"orient": "top", "title": title}


def _plot(title: str, rows: Sequence[Mapping[str, Any]], **parts: Any) -> Spec:
    return {
        "$schema": _SCHEMA,
        "title": {"text": title, "anchor": "start"},
        "width": 720,
        "data": {"values": list(rows)},
        "config": {"view": {"stroke": None}},
        **parts,
    }
