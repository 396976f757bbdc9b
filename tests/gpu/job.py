"""The job's side of a stage: rows are told as they are found, and a turn is waited for.

A row is a JSON object on a line of its own. A job that measures time prepares beside the others and
then waits: the stage lets one at a time measure.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

ROW, WAITS, GO = "row", "waits", "go"
PREPARED_UNTIL = "TORCHGRAPH_GPU_PREPARED_UNTIL"
"""The variable with the time, in seconds since the epoch, when jobs should be waiting."""
LOST = 3
"""How a job ends whose GPU takes no more work, as after an assert on the device."""


class GpuLost(SystemExit):
    """Nothing more can run on the GPU in this process."""


def arguments(doc: str | None, *names: str, **choices: Any) -> argparse.Namespace:
    """The options of a job: positional ``names``, ``--dry`` and ``--seed``."""
    parser = argparse.ArgumentParser(description=(doc or "").partition("\n")[0])
    for name in names:
        parser.add_argument(name, choices=choices.get(name))
    parser.add_argument("--dry", action="store_true", help="on the CPU, in small; nothing is told")
    parser.add_argument("--seed", type=int, default=0, help="of all random inputs")
    return parser.parse_args()


def row(name: str, outcome: str = "ok", *, refused: Sequence[str] = (), **figures: Any) -> None:
    """Tell one finding.

    Args:
        outcome: ``ok``, or in words what is wrong.
        refused: of that what is wrong whatever the numbers are: exceptions, steps that are no
            CUDA Graph.
    """
    found = {"name": name, "outcome": outcome, **figures}
    if refused:
        found["refused"] = list(refused)
    _tell({ROW: found})


def turn() -> None:
    """Wait until no other job measures."""
    _tell({WAITS: True})
    if sys.stdin.readline().strip() != GO:
        raise SystemExit("the stage is over")


def _tell(found: dict[str, Any]) -> None:
    """On a line of its own: a library may have left one unfinished."""
    print(f"\n{json.dumps(found)}", flush=True)


def read(line: str) -> dict[str, Any]:
    """A line that a job has printed: empty for a word of a library, and for half a line."""
    try:
        found = json.loads(line)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def late(margin: float = 0.0) -> bool:
    """True when less than ``margin`` seconds are left to prepare in."""
    until = os.environ.get(PREPARED_UNTIL)
    return until is not None and time.time() + margin > float(until)


@contextmanager
def case(name: str, **figures: Any) -> Iterator[None]:
    """In the block an exception becomes a row, and the job goes on, unless the GPU is lost.

    Raises:
        GpuLost: what failed has left a GPU that takes no more work.
    """
    try:
        yield
    except Exception as error:  # of any class: the next case may still tell something
        row(name, said_by(error), refused=[said_by(error)], **figures)
        still_there()


def said_by(error: BaseException) -> str:
    """The class and the first line of an exception; two, where a colon ends the first."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    count = 2 if lines and lines[0].endswith(":") else 1
    said = " ".join(lines[:count])
    return f"{type(error).__name__}: {said}" if said else type(error).__name__


def still_there() -> None:
    """Ask the GPU, if there is one.

    Raises:
        GpuLost: it answers with the error of what ran before.
    """
    import torch

    if torch.cuda.is_available():
        try:
            torch.cuda.synchronize()
        except RuntimeError as error:
            print(f"the GPU is lost: {error}", file=sys.stderr)
            raise GpuLost(LOST) from error
