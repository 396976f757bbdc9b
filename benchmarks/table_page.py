"""What is published of the results: docs/speed.md, its pictures, and the table of the README."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from . import record
from .cases import LARGE, SIX
from .contenders import DEFAULT_BACKEND, EAGER
from .pictures import Plot, draw
from .table_cases import ENTRIES

_ROOT = Path(__file__).parents[1]
_FUSED, _COMPILE = "eager fused", "compile fused"
_SERIES = (_FUSED, _COMPILE, "torchgraph aten", "torchgraph inductor", DEFAULT_BACKEND)
_BEGIN, _END = "<!-- by python -m benchmarks.table --page -->\n", "<!-- end -->\n"
PUBLISHED = (*SIX, *LARGE)
"""The models of `benchmarks.step` that the README shows: all small ones and all large ones."""


def write() -> list[Path]:
    """Write all of it anew; the files."""
    for path, text in rendered().items():
        path.write_text(text, encoding="utf-8")
    return list(rendered())


def rendered() -> dict[Path, str]:
    """File -> what belongs into it."""
    steps, table = _results("step", PUBLISHED), _results("table", ENTRIES)
    docs, readme = _ROOT / "docs", _ROOT / "README.md"
    found = {docs / "speed.svg": draw(_steady(steps))}
    if table:
        found[docs / "speed-steady.svg"] = draw(_speeds(table))
        found[docs / "speed-start.svg"] = draw(_starts(table))
        found[docs / "speed-memory.svg"] = draw(_peaks(table))
    found[docs / "speed.md"] = _page(steps, table)
    before, _, rest = readme.read_text(encoding="utf-8").partition(_BEGIN)
    after = rest.partition(_END)[2]
    found[readme] = f"{before}{_BEGIN}{_short(steps)}{_END}{after}"
    return found


def _results(benchmark: str, names: Iterable[str]) -> dict[str, dict[str, Any]]:
    """Model -> the result that its file holds, of the models that have one."""
    paths = {name: record.RESULTS / f"{benchmark}-cpu-{name}.json" for name in names}
    texts = {name: path.read_text("utf-8") for name, path in paths.items() if path.exists()}
    return {name: json.loads(text) for name, text in texts.items()}


def _contenders(result: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {one["name"]: one for one in result["models"][0]["contenders"]}


# --- pictures ------------------------------------------------------------------------------------


def _about(results: dict[str, dict[str, Any]]) -> str:
    """Versions, processor and threads, once for all."""
    about = {
        f"torch {one['versions']['torch']}, {one['machine']['cpu']}, "
        f"{one['machine']['threads']} thread{'s' * (one['machine']['threads'] > 1)} on "
        f"{one['machine']['cores']} cores"
        for one in results.values()
    }
    return "; ".join(sorted(about))


def _speed(result: dict[str, Any]) -> dict[str, float]:
    return {
        name: one["speed_against_eager"]
        for name, one in _contenders(result).items()
        if name in _SERIES
    }


def _steady(steps: dict[str, dict[str, Any]]) -> Plot:
    rows = {name: _speed(one) for name, one in steps.items()}
    series = [one for one in _SERIES if one not in ("torchgraph aten", "torchgraph inductor")]
    rows = {name: {one: row[one] for one in series} for name, row in rows.items()}
    title = "Training steps a second against eager, with AdamW: to the right is faster"
    return Plot(title, f"CPU: {_about(steps)}", rows, series, (1, 1.5, 2, 3), "x", even=1)


def _speeds(table: dict[str, dict[str, Any]]) -> Plot:
    rows = {name: _speed(one) for name, one in table.items()}
    title = "Steady state: steps a second against eager; to the right is faster"
    return Plot(title, f"CPU: {_about(table)}", rows, _SERIES, (0.8, 1, 1.5, 2, 3), "x", even=1)


def _starts(table: dict[str, dict[str, Any]]) -> Plot:
    rows = {
        name: {one: found["start_seconds"] for one, found in _contenders(result).items()}
        for name, result in table.items()
    }
    title = "The first 20 steps, from empty caches: seconds; to the left is sooner"
    about = f"CPU, wall clock, while other work ran: {_about(table)}"
    return Plot(title, about, rows, _SERIES, (0.1, 1, 10, 100), " s")


def _peaks(table: dict[str, dict[str, Any]]) -> Plot:
    rows = {
        name: {one: peak(found) for one, found in _contenders(result).items()}
        for name, result in table.items()
    }
    title = "Peak resident memory of the process over its steps; to the left is less"
    about = f"CPU, torch and its imports included: {_about(table)}"
    return Plot(title, about, rows, _SERIES, (300, 400, 600, 1000), " MB")


# --- words ---------------------------------------------------------------------------------------


def even(one: dict[str, Any]) -> str:
    """From which step on it is ahead of eager, for people."""
    if one["name"] == EAGER:
        return ""
    return "never" if one["break_even"] is None else f"{one['break_even']:,}"


def peak(one: dict[str, Any]) -> float:
    """The peak of the process over its steps, in megabytes."""
    return float(one["memory"]["steps"] or one["memory"]["start"]) / 1e6


def _short(steps: dict[str, dict[str, Any]]) -> str:
    """The README's table."""
    lines = [
        f"Milliseconds a step; {_about(steps)}.",
        "*Fused* is `AdamW(fused=True)`.",
        "",
        "| model | parameters | eager | fused | compiled, fused | torchgraph | against eager |",
        "|---|---|---|---|---|---|---|",
    ]
    for name, result in steps.items():
        found, model = _contenders(result), result["models"][0]
        times = [
            f"{1e3 * found[one]['seconds_per_step']['median']:.3g}"
            for one in (EAGER, _FUSED, _COMPILE, DEFAULT_BACKEND)
        ]
        speed = found[DEFAULT_BACKEND]["speed_against_eager"]
        size = f"{model['parameters'] / 1e6:.2f}M"
        lines.append(f"| {' | '.join([name, size, *times])} | {speed:.2f}x |")
    return "\n".join([*lines, ""])


def _page(steps: dict[str, dict[str, Any]], table: dict[str, dict[str, Any]]) -> str:
    missing = [name for name in ENTRIES if name not in table]
    parts = [_INTRODUCTION, _short(steps), "\n", _SOURCES]
    parts += [f"{_line(name, 'step', one)}\n" for name, one in steps.items()]
    parts.append(_TWENTY)
    if table:
        parts.append(_PICTURES)
        parts += _rows(table)
    if missing:
        parts.append(f"\nNot measured yet: {', '.join(missing)}.\n")
    return "".join(parts)


def _line(name: str, benchmark: str, one: dict[str, Any]) -> str:
    machine, file = one["machine"], f"{benchmark}-cpu-{name}.json"
    return (
        f"| [{name}](../benchmarks/results/{file}) | {one['models'][0]['about']} | "
        f"{one['date'][:10]} | {machine['threads']} | {machine['load']:.1f} |"
    )


def _rows(table: dict[str, dict[str, Any]]) -> Sequence[str]:
    parts = ["\n| model | what | date | threads | load |\n|---|---|---|---|---|\n"]
    parts += [f"{_line(name, 'table', one)}\n" for name, one in table.items()]
    parts.append(
        "\n| model | contender | first step, s | first 20, s | even with eager from step "
        "| ms a step | against eager | peak, MB |\n|---|---|---|---|---|---|---|---|\n"
    )
    for name, result in table.items():
        for one in _contenders(result).values():
            parts.append(_cells(name, one))
        for contender, why in result["models"][0]["skipped"].items():
            parts.append(f"| {name} | {contender} | skipped: {why} | | | | | |\n")
    return parts


def _cells(name: str, one: dict[str, Any]) -> str:
    shown = one["name"]
    if one["switched"] is False and one["switch_at"]:
        shown += f", before its switch at call {one['switch_at']:,}"
    cells = [
        name,
        shown,
        f"{one['first_step_seconds']:.2f}",
        f"{one['start_seconds']:.2f}",
        even(one),
        f"{1e3 * one['seconds_per_step']['median']:.3g}",
        f"{one['speed_against_eager']:.2f}x",
        f"{peak(one):.0f}",
    ]
    return f"| {' | '.join(cells)} |\n"


_INTRODUCTION = """\
# Speed

**There are no GPU figures yet**: nothing has run on one. All below is of CPUs, of machines with
two cores that other work ran on, too; what counts is the ratio within a row, whose contenders
took turns.

Each is a whole training step: forward, backward, and AdamW.

![Steps a second against eager, by model and contender](speed.svg)

"""
_SOURCES = """\
`torchgraph` is `auto`, the default, in its steady state: after its [switch](backends.md) to
compiled code. By itself it switches thousands of calls after the first; for these figures at the
16th (`switch_at=16`). Before that it runs `aten`, with eager's bits.
`python -m benchmarks.step` measures them.

| result | what | date | threads | load |
|---|---|---|---|---|
"""
_TWENTY = """
## Twenty models, and what the start costs

`python -m benchmarks.table` trains twenty models of vision, language, audio, graphs,
reinforcement learning and diffusion. Each contender has a process of its own, with empty caches:
the first step, the steps until the time that it took is no more than eager's, the steady state in
turns with the others, and the peak of resident memory (`VmHWM`) over its steps. `aten` gives
eager's losses to the bit in each of its first steps, or nothing is measured.

With `--threads 1 --clock cpu` the steady state is processor time of the one thread: other work on
the machine still makes it longer, but for all contenders, which take turns. The start is always
wall clock, and so are the steps to be even: on a loaded machine an upper bound. `auto` before its
switch runs the very program of `aten`: what lies between their figures is the machine's noise.
"""
_PICTURES = """
![Steady state of the models, against eager](speed-steady.svg)

![Seconds of the first 20 steps](speed-start.svg)

![Peak memory](speed-memory.svg)
"""
