"""Writes nn.json and ops.json: what OneFlow 0.9.0 gives for the calls of nn_cases.py, ops_cases.py.

Runs under OneFlow 0.9.0 (Python 3.10, numpy below 2), not torch, at the root of the repository:

    python -m tests.oneflow.numbers.nn_with_oneflow nn
    python -m tests.oneflow.numbers.nn_with_oneflow ops

Some calls end the process; each then counts as refused by OneFlow, and the run goes on in a new
process.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import oneflow as flow

from .calling import called, calls

FOLDER = Path(__file__).parent


def named(library, name):
    found = library
    for part in name.split("."):
        found = getattr(found, part)
    return found


def run(which, start, path):
    """Appends the record of each case from one on to a file, and ends the process."""
    with open(path, "a") as out:
        for k, (key, case) in enumerate(calls(which)):
            if k < start:
                continue
            out.write(json.dumps([key, "crashed"]) + "\n")
            out.flush()
            try:
                record = called(named(flow, case[0]), case, flow)
            except Exception:  # what OneFlow raises is a result, too
                record = "refused"
            out.write(json.dumps([key, record]) + "\n")
            out.flush()
    os._exit(0)


def main(which):
    path, start = FOLDER / (which + ".lines"), 0
    path.write_text("")
    count = sum(1 for _ in calls(which))
    while start < count:
        command = [sys.executable, "-m", __spec__.name, which, str(start), str(path)]
        subprocess.run(command, stderr=subprocess.DEVNULL, check=False)
        done = len({json.loads(line)[0] for line in path.read_text().splitlines()})
        start = max(done, start + 1)
    found = dict(json.loads(line) for line in path.read_text().splitlines())
    path.unlink()
    rows = (json.dumps(k) + ": " + json.dumps(v, separators=(",", ":")) for k, v in found.items())
    (FOLDER / (which + ".json")).write_text("{\n" + ",\n".join(rows) + "\n}\n")


if __name__ == "__main__":
    if len(sys.argv) > 2:
        run(sys.argv[1], int(sys.argv[2]), sys.argv[3])
    main(sys.argv[1])
