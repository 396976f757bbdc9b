"""What a script tells its test: a line of JSON for each way in which it trained."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any


def tell(way: str, losses: Sequence[float], *graphs: Any, **more: Any) -> None:
    """The losses, and how the calls of the Graphs ran."""
    ran = [_ran(graph) for graph in graphs]
    print(json.dumps({"way": way, "losses": list(losses), "ran": ran, **more}), flush=True)


def _ran(graph: Any) -> dict[str, Any]:
    report = graph.report()
    return {
        "backend": report.backend,
        "programs": report.calls.programs,
        "recorded": report.calls.recorded,
        "eager": [str(calls) for calls in report.calls.eager],
        "nodes": {count.phase.name.lower(): count.captured for count in report.nodes},
    }
