"""`make gpu-walk`: all of `make gpu-first`, and the tests marked ``cuda``, without a GPU.

    python -m tests.gpu.walk [--only first|second]

Runs in the environment of `make gpu-build`, whose torch is built with CUDA; nvcc is needed for its
headers. A stub takes the place of the driver, of the runtime and of cuBLAS, cuDNN and the like
(``LD_PRELOAD``): torch and torchgraph do what they do with a GPU, down to the calls of CUDA. There
kernels do nothing and device memory reads as zeros, but streams, events, captures and graphs keep
their state and refuse what CUDA refuses.

So it proves that the calls are accepted: programs are recorded, confirmed and captured, kernels of
an op are found and take these arguments, grids are such as a device takes, nothing waits in a
capture, no job dies. It proves no number, no result of a kernel, no time, no use of memory; and a
rule of CUDA that the stub does not know is not kept. Values are expected to be wrong, and ignored:
what is reported is what jobs call ``refused``, and jobs that end otherwise than well.

All lies in ``build/gpu-stub``: the stub, the libraries of torchgraph, which are linked with the
shared runtime so that the stub comes before it, a copy of the sources with these libraries in it,
and in ``found`` the tables, JSON and logs of the runs. ``CUDA_STUB_LOG`` is ``errors`` for each
error that the stub returns, ``captures`` for captures and graphs as well, ``calls`` for all calls
of libraries. It goes to the jobs' standard error, whose last lines are in the logs.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from .build import LIBRARIES, ROOT
from .stub import build

FOLDER = ROOT / "build" / "gpu-stub"
BUILT, COPY, FOUND = FOLDER / "libraries", FOLDER / "copy", FOLDER / "found"
COPIED = ("torchgraph", "tests", "benchmarks", "examples")
RUNS = {"first": ("first",), "second": ("second", "--only", "tests")}


def main() -> int:
    """Build, run, report; 1 where something was refused."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--only", choices=tuple(RUNS), help="one of the two runs")
    only = parser.parse_args().only
    library = build.stub(FOLDER / "stub")
    build.libraries(BUILT)
    copy()
    shutil.rmtree(FOUND, ignore_errors=True)
    wrong = []
    for name in [only] if only else RUNS:
        result = run(name, library)
        rows = sum(len(job["rows"]) for stage in result["stages"] for job in stage["jobs"])
        seconds = sum(stage["seconds"] for stage in result["stages"])
        found = list(refused(result))
        print(f"{name}: {rows} rows in {seconds:.0f} s, {len(found)} refused; values do not count")
        wrong += found
    for line in wrong:
        print(f"  {line.replace(f'{COPY}/', '')}")
    print(f"logs and tables: {FOUND.relative_to(ROOT)}")
    return int(bool(wrong))


def copy() -> None:
    """A checkout as a machine with a GPU has it: the sources, and build/gpu."""
    shutil.rmtree(COPY, ignore_errors=True)
    ignored = shutil.ignore_patterns("*.so", "__pycache__")
    for part in COPIED:
        shutil.copytree(ROOT / part, COPY / part, ignore=ignored)
    shutil.copy(ROOT / "pyproject.toml", COPY)
    (COPY / "build" / "gpu").mkdir(parents=True)
    for file in (*LIBRARIES, "manifest.json"):
        shutil.copy(BUILT / file, COPY / "build" / "gpu")


def run(name: str, library: Path) -> dict[str, Any]:
    """The result of a run under the stub; its table becomes a file."""
    FOUND.mkdir(parents=True, exist_ok=True)
    environment = {
        **os.environ,
        "LD_PRELOAD": str(library),
        "LD_LIBRARY_PATH": str(library.parent),
        "TRITON_LIBCUDA_PATH": str(library.parent),
        "PYTHONPATH": str(COPY),
        "PYTHONDONTWRITEBYTECODE": "1",  # tests without values are nobody else's
        "PYTEST_PLUGINS": "tests.gpu.stub.values",
    }
    command = [sys.executable, "-m", "tests.gpu", *RUNS[name], "--stub", "--seed", "0"]
    with (FOUND / f"{name}.txt").open("w", encoding="utf-8") as table:
        subprocess.run(
            [*command, "--out", str(FOUND)], cwd=COPY, env=environment, stdout=table, check=False
        )
    written = FOUND / f"gpu-{name}.json"
    if not written.exists():
        raise SystemExit(f"error: the run {name} did not begin")
    result: dict[str, Any] = json.loads(written.read_text("utf-8"))
    return result


def refused(result: dict[str, Any]) -> Iterator[str]:
    """Calls that are refused and jobs that die, whatever the values are; a line each."""
    for stage in result["stages"]:
        for job in stage["jobs"]:
            place = f"{stage['name']} {job['name']}"
            if job["outcome"] != "ok":
                yield f"{place}: {job['outcome']}"
            for row in job["rows"]:
                for why in row.get("refused", ()):
                    yield f"{place}: {row['name']}: {why}"


if __name__ == "__main__":
    sys.exit(main())
