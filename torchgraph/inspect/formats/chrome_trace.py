"""A step as a trace in Chrome's JSON format, which Perfetto, chrome://tracing and others open.

The format: "Trace Event Format", Google, 2016. Complete events (``"ph": "X"``) on threads, which
are the lanes here, of processes, which are the plan and the measurement. Times in microseconds.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from itertools import groupby
from operator import itemgetter
from typing import Any

from ...artifact.files import replaced
from .drawn import Slice

_LANES = ("phases", "modules", "ops")


def save(
    path: str | os.PathLike[str],
    name: str,
    *,
    planned: Sequence[Slice],
    measured: Sequence[Slice],
) -> None:
    """Write both timelines as processes of one trace.

    Raises:
        CheckpointFileError: the path cannot be written.
    """
    events = [
        *_process(1, f"{name}, planned", planned),
        *_process(2, f"{name}, measured", measured),
    ]
    trace = {"traceEvents": events, "displayTimeUnit": "ms", "otherData": {"graph": name}}
    with replaced(os.fspath(path)) as file:
        file.write(json.dumps(trace).encode())


def _process(number: int, name: str, slices: Sequence[Slice]) -> Iterator[dict[str, Any]]:
    yield _named("process_name", number, 0, name=name)
    yield _named("process_sort_index", number, 0, sort_index=number)
    for lane, title in enumerate(_LANES, start=1):
        yield _named("thread_name", number, lane, name=title)
        yield _named("thread_sort_index", number, lane, sort_index=lane)
    yield from _runs(number, 1, "phase", slices, [one.phase.value for one in slices])
    yield from _modules(number, slices)
    for one in slices:
        about = {"op": one.op, "module": one.module, "phase": one.phase.value}
        if one.line is not None:
            about["line"] = str(one.line)
        sizes = {"flops": one.flops, "bytes": one.bytes}
        yield _event(one.node, "op", number, 3, one.start, _end(one), **about, **sizes)


def _modules(number: int, slices: Sequence[Slice]) -> Iterator[dict[str, Any]]:
    """A slice for each module whose calls follow each other, those of its children inside."""
    paths = [one.module.split(".") if one.module else [] for one in slices]
    for level in range(1, max(map(len, paths), default=0) + 1):
        around = [".".join(path[:level]) if len(path) >= level else "" for path in paths]
        yield from _runs(number, 2, "module", slices, around)


def _runs(
    process: int, lane: int, kind: str, slices: Sequence[Slice], names: Sequence[str]
) -> Iterator[dict[str, Any]]:
    """A slice around each run of calls with the same name; none around those without one."""
    for name, run in groupby(zip(names, slices, strict=True), key=itemgetter(0)):
        calls = [one for _, one in run]
        if name:
            yield _event(name, kind, process, lane, calls[0].start, _end(calls[-1]))


def _end(one: Slice) -> float:
    return one.start + one.seconds


def _event(
    name: str, kind: str, process: int, lane: int, start: float, end: float, **about: object
) -> dict[str, Any]:
    # Whole nanoseconds: slices that end where others begin must not overlap by a rounding.
    first, last = (round(1e9 * at) / 1e3 for at in (start, end))
    place = {"pid": process, "tid": lane, "ts": first, "dur": round(last - first, 3)}
    return {"name": name, "cat": kind, "ph": "X", **place, "args": about}


def _named(what: str, process: int, lane: int, **about: object) -> dict[str, Any]:
    return {"name": what, "ph": "M", "pid": process, "tid": lane, "args": about}
