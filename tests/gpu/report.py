"""The findings of the stages as a table of at most 60 lines of 80 columns."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

WIDTH, LINES = 80, 60
Row = dict[str, Any]
LETTERS = {
    "eager": "eager",
    "eager fused": "fused",
    "compile fused": "comp.",
    "compile reduce-overhead": "reduce",
    "manual cuda graph": "hand",
    "torchgraph aten": "aten",
    "torchgraph aten fused": "aten+",
    "torchgraph inductor": "induct",
}
"""Contenders as the heads of columns."""


def table(result: Mapping[str, Any]) -> str:
    """The whole result."""
    found: list[str] = []
    wrong: list[str] = []
    for stage in result["stages"]:
        head = f"{stage['name']}: {stage['about']}"
        took = f"{stage['seconds']:.0f} s, expected {stage['expected_seconds']:.0f}"
        found.append(f"{head}  ({took})")
        found += [f"  {line}" for line in _SHOWN.get(stage["name"], _models)(stage)]
        wrong += _wrong(stage)
    room = LINES - len(found) - 2
    if len(wrong) > room:
        wrong = [*wrong[: max(0, room - 1)], f"and {len(wrong) - max(0, room - 1)} more"]
    total = sum(stage["seconds"] for stage in result["stages"])
    found.append(f"in all {total:.0f} s; what is wrong:" if wrong else f"in all {total:.0f} s")
    lines = [*found, *(f"  {line}" for line in wrong)]
    return "\n".join(line[:WIDTH].rstrip() for line in lines[:LINES])


def failed(result: Mapping[str, Any]) -> bool:
    """True where a job or a row is not in order."""
    return any(_wrong(stage) for stage in result["stages"])


def _wrong(stage: Mapping[str, Any]) -> list[str]:
    found = [
        f"{stage['name']} {job['name']}: {job['outcome']}"
        for job in stage["jobs"]
        if job["outcome"] != "ok"
    ]
    found += [
        f"{stage['name']} {job['name']}: {row['name']}: {row['outcome']}"
        for job in stage["jobs"]
        for row in job["rows"]
        if row["outcome"] != "ok"
    ]
    if stage["name"] == "asserts":
        raised = {row["name"]: row.get("raised") for row in _rows(stage)}
        if len(set(raised.values())) > 1:
            found.append(f"asserts: eager raises {raised.get('eager')}, ours {raised.get('graph')}")
    return found


def _rows(stage: Mapping[str, Any]) -> list[Row]:
    return [row for job in stage["jobs"] for row in job["rows"]]


def _columns(rows: Iterable[Iterable[str]], widths: tuple[int, ...]) -> list[str]:
    """Cells side by side, the first ones to the left, the others to the right."""
    return [
        "".join(
            cell[:width].ljust(width) if number == 0 else cell[: width - 1].rjust(width)
            for number, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        for row in rows
    ]


def _ceilings(stage: Mapping[str, Any]) -> list[str]:
    rows = {row["name"]: row for row in _rows(stage) if row["outcome"] == "ok"}
    found = []
    if "machine" in rows:
        about = rows["machine"]
        words = ("torch", "cuda", "driver", "triton", "python")
        versions = ", ".join(f"{word} {about[word]}" for word in words if word in about)
        found.append(f"{about['gpu']}; {versions}")
    rates = []
    if "launch" in rows:
        one = rows["launch"]
        eager, node = 1e6 * one["eager_seconds"], 1e6 * one["node_seconds"]
        found.append(f"a kernel of one element: {eager:.2f} us in eager, {node:.2f} us replayed")
    if "copy" in rows:
        rates.append(f"copy {rows['copy']['bytes_per_second'] / 1e12:.2f} TB/s")
    for kind in ("bfloat16", "TF32", "float32"):
        if f"product {kind}" in rows:
            rate = rows[f"product {kind}"]["flops_per_second"] / 1e12
            rates.append(f"{kind} {rate:.0f} TFLOP/s")
    return [*found, "; ".join(rates)]


def _ops(stage: Mapping[str, Any]) -> list[str]:
    """A line for two ops: the largest error of each dtype."""
    dtypes = [job["name"] for job in stage["jobs"]]
    errors: dict[str, dict[str, str]] = {}
    for job in stage["jobs"]:
        for row in job["rows"]:
            if "dtype" in row:
                right = _power(row["error"]) if "error" in row else "-"
                error = right if row["outcome"] == "ok" else "WRONG"
                name = row["name"].replace("_update_", "")
                errors.setdefault(name, {})[row["dtype"]] = error
    cells = [[name, *(one.get(d, "-") for d in dtypes)] for name, one in errors.items()]
    found = [f"norm(found - right) / norm(right) in {', '.join(dtypes)}"]
    found += _in_two(_columns(cells, (20, *[6] * len(dtypes))))
    return found


def _replay(stage: Mapping[str, Any]) -> list[str]:
    """Two scenarios in a line: losses with eager's bits, the error; then a line for each model."""
    rows = [row for row in _rows(stage) if "equal_losses" in row]
    cells = []
    for row in rows:
        bits = f"{row['equal_losses']}/{row['steps']}"
        right = row["outcome"] == "ok"
        cells.append(
            (f"{row['model']}, {row['name']}", bits, _power(row["error"]) if right else "WRONG")
        )
    found = ["losses with eager's bits; largest error of a loss or a state"]
    found += _in_two(_columns(cells, (25, 6, 7)))
    steps = {(row["model"], row["name"]): row for row in _rows(stage) if "busy" in row}
    if steps:
        found.append("a step: milliseconds, share with a kernel, MiB at the peak + in pools")
    for model in dict.fromkeys(model for model, _ in steps):
        parts = [_of_step(steps.get((model, f"step, {kind}"))) for kind in ("eager", "graph")]
        found.append(f"{model:9} eager {parts[0]}; graph {parts[1]}")
    return found


def _of_step(row: Row | None) -> str:
    if row is None:
        return "-"
    busy = "-" if row["busy"] is None else f"{100 * row['busy']:.0f} %"
    memory = f"{row['peak_mib']:.0f}+{row['pool_mib']:.0f}"
    return f"{row['milliseconds']:.2f} {busy} {memory}"


def _in_two(lines: list[str]) -> list[str]:
    half = (len(lines) + 1) // 2
    pairs = zip(lines[:half], [*lines[half:], ""][:half], strict=True)
    return [f"{left} {right}" for left, right in pairs]


def _asserts(stage: Mapping[str, Any]) -> list[str]:
    return [f"{row['name']}: {row.get('said', row['outcome'])}" for row in _rows(stage)]


def _sanitizer(stage: Mapping[str, Any]) -> list[str]:
    rows = [(row.get("updates"), row.get("errors")) for row in _rows(stage)]
    return [f"{n} updates, {'-' if errors is None else errors} errors" for n, errors in rows]


def _launches(stage: Mapping[str, Any]) -> list[str]:
    """Milliseconds by contender, and how much faster ours is than the best of PyTorch."""
    cells = [("ms", *LETTERS.values(), "x")]
    for row in _rows(stage):
        if "seconds" in row:
            times = [_milliseconds(row["seconds"].get(name)) for name in LETTERS]
            best = row["ratios"].get("best")
            name = f"{row['name']} {_short(row['precision'])}"
            cells.append((name, *times, "" if best is None else f"{best:.2f}"))
    return _columns(cells, (16, *[7] * len(LETTERS), 5))


def _models(stage: Mapping[str, Any]) -> list[str]:
    """Milliseconds or MiB by contender, a line for each group."""
    found = []
    for row in _rows(stage):
        if "seconds" in row and isinstance(row["seconds"], dict):
            values = {n: _milliseconds(s) for n, s in row["seconds"].items()}
        elif "mib" in row:
            values = {n: f"{mib:.0f} MiB" for n, mib in row["mib"].items()}
        else:
            continue
        shown = ", ".join(f"{LETTERS[name]} {value}" for name, value in values.items())
        found.append(f"{row['name']} {_short(row['precision'])}: {shown}")
    return found


def _kernels(stage: Mapping[str, Any]) -> list[str]:
    found = []
    for row in _rows(stage):
        if "share_of_copy" in row:
            share = f"{100 * row['share_of_copy']:.0f} % of a copy's speed"
            found.append(f"{row['name']:26} {1e3 * row['seconds']:8.3f} ms  {share}")
        elif "dram_share" in row:
            found.append(
                f"{row['name']:26} memory {row['dram_share']:.0f} %, compute "
                f"{row['compute_share']:.0f} %, occupancy {row['occupancy']:.0f} %"
            )
    return found


def _tests(stage: Mapping[str, Any]) -> list[str]:
    counts = [row for row in _rows(stage) if row["name"] == "tests"]
    kinds = ("collected", "passed", "failed", "skipped")
    return [", ".join(f"{row[kind]} {kind}" for kind in kinds if kind in row) for row in counts]


def _power(value: float) -> str:
    """``6e-8``."""
    digit, _, exponent = f"{value:.0e}".partition("e")
    return f"{digit}e{int(exponent)}" if value else "0"


def _milliseconds(spread: Mapping[str, float] | None) -> str:
    return "-" if spread is None else f"{1e3 * spread['median']:.2f}"


def _short(precision: str) -> str:
    return {"bfloat16": "bf16", "float32": "f32"}.get(precision, precision)


_SHOWN = {
    "ceilings": _ceilings,
    "ops": _ops,
    "replay": _replay,
    "asserts": _asserts,
    "launches": _launches,
    "sanitizer": _sanitizer,
    "tests": _tests,
    "kernels": _kernels,
}
