"""Run every case under OneFlow 0.9 and store what it gives in oneflow-0.9.json.

To be run with Python 3.10, OneFlow 0.9.0 and numpy<2, at the root of the repository:
``python -m tests.oneflow.cases.with_oneflow`` for all cases, the same with NAMEs for some.
Each runs in a process of its own, up to five times: on the CPU OneFlow's graphs abort at random.
"""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from . import CASES

STORED = Path(__file__).with_name("oneflow-0.9.json")
_MARK = "RESULT "


def _one(name: str) -> None:
    import oneflow  # in the process of the case alone

    result = CASES[name].run(oneflow)
    sys.stdout.write(f"\n{_MARK}{json.dumps(result)}\n")
    sys.stdout.flush()
    os._exit(0)  # OneFlow hangs, or aborts, when Python ends


def _tried(name: str) -> Any:
    command = [sys.executable, "-m", "tests.oneflow.cases.with_oneflow", "--one", name]
    said = ""
    for _ in range(5):
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
        except subprocess.TimeoutExpired:
            continue
        for line in done.stdout.splitlines():
            if line.startswith(_MARK):
                return json.loads(line.removeprefix(_MARK))
        said = done.stderr[-1500:]
    sys.stdout.write(f"{name}: no result\n{said}\n")
    return None


def main(names: list[str]) -> None:
    """Store the results of some cases, or of all."""
    found = json.loads(STORED.read_text()) if STORED.exists() else {}
    for name in names or list(CASES):
        result = _tried(name)
        if result is not None:
            found[name] = result
            sys.stdout.write(f"{name}\n")
    kept = {name: found[name] for name in CASES if name in found}
    rows = [f"{json.dumps(name)}: {json.dumps(value)}" for name, value in kept.items()]
    STORED.write_text("{\n" + ",\n".join(rows) + "\n}\n")


if __name__ == "__main__":
    if sys.argv[1:2] == ["--one"]:
        _one(sys.argv[2])
    main(sys.argv[1:])
