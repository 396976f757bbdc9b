"""Writes `oneflow-0.9.json`. Runs under OneFlow 0.9.0 (Python 3.10, numpy below 2), not torch.

    python -m tests.oneflow.numbers.first_with_oneflow            all rows
    python -m tests.oneflow.numbers.first_with_oneflow GRAPH KEY  one row of a graph, on stdout

OneFlow's graphs on the CPU abort at random: each has a process of its own, which is tried again.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import oneflow as flow

from .first_cases import GRAPHS, OPTIMIZERS, graph_row, rows

FILE = Path(__file__).with_name("oneflow-0.9.json")
TRIES = 8


def main() -> None:
    found = {}
    for key, compute in rows(flow).items():
        try:
            found[key] = compute()
        except Exception as error:  # a result, too
            found[key] = f"{type(error).__name__}: {str(error)[:90]}"
    for key in GRAPHS:
        found[f"GRAPH {key}"] = in_a_process(__spec__.name, key)
    lines = (f"{json.dumps(key)}: {json.dumps(value)}" for key, value in found.items())
    FILE.write_text("{\n" + ",\n".join(lines) + "\n}\n")


def in_a_process(module: str, key: str) -> object:
    """The row that ``python -m module GRAPH key`` prints."""
    for _ in range(TRIES):
        command = [sys.executable, "-m", module, "GRAPH", key]
        done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
        if done.returncode == 0 and done.stdout:
            return json.loads(done.stdout.splitlines()[-1])
    raise RuntimeError(f"{key}: {TRIES} times no number:\n{done.stderr[-2000:]}")


def one_graph(key: str) -> None:
    name, settings = OPTIMIZERS[key]
    sys.stdout.write(json.dumps(graph_row(flow, name, settings)) + "\n")


if __name__ == "__main__":
    if sys.argv[1:2] == ["GRAPH"]:
        one_graph(sys.argv[2])
    else:
        main()
    sys.stdout.flush()
    os._exit(0)  # OneFlow hangs at exit
