"""The multi-tensor updates under compute-sanitizer: no thread reads or writes behind its memory.

    python -m tests.gpu.sanitized [--dry]

Each tensor has memory of its own there (``PYTORCH_NO_CUDA_MEMORY_CACHING``), so that the tool sees
where it ends. That the tool has checked anything is taken from its own summary alone.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from typing import Any

from . import job
from .op_cases import UPDATES

TOOL = "/usr/local/cuda/bin/compute-sanitizer"
HOW = (
    *("--tool", "memcheck", "--error-exitcode", "9", "--print-limit", "5"),
    *("--launch-timeout", "0"),  # else it gives up where an import takes ten seconds
    *("--target-processes", "all"),
    *("--report-api-errors", "no"),  # torch asks for what a driver need not have
)
SUMMARY = re.compile(r"^=+ ERROR SUMMARY: (\d+) error", re.MULTILINE)


def main() -> None:
    """One row: how many updates ran, how many errors the tool has counted."""
    args = job.arguments(__doc__)
    command = [sys.executable, "-m", "tests.gpu.ops", "updates", "float32"]
    command += ["--seed", str(args.seed), *(["--dry"] if args.dry else [])]
    if not args.dry:
        command = [shutil.which("compute-sanitizer") or TOOL, *HOW, *command]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    print(done.stdout, file=sys.stderr)  # for the log
    job.row("updates", **told(done.stdout, dry=args.dry))


def told(printed: str, *, dry: bool) -> dict[str, Any]:
    """``outcome`` and counts, of what the tool and the updates have printed."""
    rows = [found[job.ROW] for found in map(job.read, printed.splitlines()) if job.ROW in found]
    ran = sum(row["name"] in UPDATES for row in rows)
    errors = sum(map(int, SUMMARY.findall(printed))) if SUMMARY.search(printed) else None
    wrong = []
    if ran != len(UPDATES):
        wrong.append(f"{ran} of {len(UPDATES)} updates ran")
    if errors is None and not dry:
        last = [line for line in printed.splitlines() if line.strip()][-1:]
        wrong.append(f"the tool has counted nothing: {' '.join(last)}")
    if errors:
        first = next((ln for ln in printed.splitlines() if re.match(r"=+ [A-Z]", ln)), "")
        wrong.append(f"{errors} errors; the first: {first.strip('= ')}")
    return {"outcome": "; ".join(wrong) or "ok", "updates": ran, "errors": errors}


if __name__ == "__main__":
    main()
