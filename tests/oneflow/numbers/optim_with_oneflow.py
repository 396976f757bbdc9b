"""Writes `optim-0.9.json` and `optim-signatures-0.9.json`.

Runs under OneFlow 0.9.0 (Python 3.10, numpy below 2), not torch, at the root of the repository:

    python -m tests.oneflow.numbers.optim_with_oneflow
"""

import inspect
import json
import os
import sys
from pathlib import Path
from typing import Any

import oneflow as flow

from .first_with_oneflow import in_a_process
from .optim_cases import GRAPH_ROWS, checkpoint_rows, eager_rows, graph_row

FOLDER = Path(__file__).parent


def main() -> None:
    found = dict(eager_rows(flow))
    found.update(checkpoint_rows(flow))
    for key in GRAPH_ROWS:
        found[key] = in_a_process(__spec__.name, key)
    write("optim-0.9.json", found)
    write("optim-signatures-0.9.json", dict(signatures()))


def signatures() -> Any:
    """Parameters with their defaults: an empty list for one that has none."""
    for module in ("optim", "optim.lr_scheduler", "amp"):
        space: Any = flow
        for part in module.split("."):
            space = getattr(space, part)
        for name, cls in sorted(vars(space).items()):
            if not isinstance(cls, type):
                continue
            parameters = list(inspect.signature(cls.__init__).parameters.values())[1:]
            defaults = {
                one.name: [] if one.default is one.empty else [one.default] for one in parameters
            }
            yield f"{module}.{name}", defaults


def write(name: str, rows: dict[str, Any]) -> None:
    lines = (f"{json.dumps(key)}: {json.dumps(value)}" for key, value in rows.items())
    (FOLDER / name).write_text("{\n" + ",\n".join(lines) + "\n}\n")


if __name__ == "__main__":
    if sys.argv[1:2] == ["GRAPH"]:
        sys.stdout.write(json.dumps(graph_row(flow, sys.argv[2])) + "\n")
    else:
        main()
    sys.stdout.flush()
    os._exit(0)  # OneFlow hangs at exit
