"""Bytes that torch's CPU allocator hands out during a call, as torch's profiler records them.

That counts every tensor and what kernels take for themselves through that allocator; not what
libraries such as MKL take elsewhere. What was there before, and is freed meanwhile, does not count.
"""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import torch
from torch.profiler import ProfilerActivity, profile, record_function

METHOD = "torch.profiler, profile_memory=True"


class Taken(NamedTuple):
    """The bytes a call allocates: their peak, and those still allocated at its end."""

    peak: int
    end: int


def taken(calls: Iterable[Callable[[], object]]) -> list[Taken]:
    """Measure the bytes each call allocates; results are kept until the call has ended.

    Raises:
        RuntimeError: another profiler is running.
    """
    names: list[str] = []

    def run() -> None:
        for call in calls:
            names.append(f"torchgraph call {len(names)}")
            with record_function(names[-1]):
                kept = call()
            del kept

    found = recorded(run)
    return [found[name] for name in names]


def recorded(run: Callable[[], object]) -> dict[str, Taken]:
    """Measure the bytes allocated in each span of `torch.profiler.record_function`, by name.

    Spans of one name are one, from the start of the first to the end of the last.

    Raises:
        RuntimeError: another profiler is running.
    """
    activities = [ProfilerActivity.CPU]
    # Without acc_events torch 2.11 warns.
    with profile(activities=activities, profile_memory=True, acc_events=True) as profiler:
        run()
    events = _events(profiler)
    spans: dict[str, list[float]] = {}
    for event in events:
        if event.get("cat") == "user_annotation":
            ends = [event["ts"], event["ts"] + event["dur"]]
            spans.setdefault(event["name"], []).extend(ends)
    changes = [
        (event["ts"], event["args"]["Bytes"])
        for event in events
        if event.get("name") == "[memory]" and event["args"]["Device Type"] == 0
    ]
    changes.sort(key=lambda change: change[0])
    return {name: _within(min(ends), max(ends), changes) for name, ends in spans.items()}


def _within(start: float, end: float, changes: Sequence[tuple[float, int]]) -> Taken:
    now = most = 0
    for at, change in changes:
        if start <= at <= end:
            now += change
            most = max(most, now)
    return Taken(most, now)


def _events(profiler: profile) -> list[dict[str, Any]]:
    """The events of a profile, read from its trace file: torch has no other public way."""
    handle, path = tempfile.mkstemp(suffix=".json")
    os.close(handle)
    try:
        profiler.export_chrome_trace(path)
        with open(path, encoding="utf-8") as file:
            found: list[dict[str, Any]] = json.load(file)["traceEvents"]
    finally:
        os.remove(path)
    return found


def real(value: object) -> Any:
    """A tensor of zeros for a fake one, its known value for a symbolic number."""
    if isinstance(value, torch.Tensor):
        made = torch.empty_strided(
            value.shape, value.stride(), dtype=value.dtype, device=value.device
        )
        return made.zero_()
    return value.node.hint if isinstance(value, (torch.SymFloat, torch.SymInt)) else value
