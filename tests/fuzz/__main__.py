"""``python -m tests.fuzz SEED [LAST] [--compiled]``: run programs, print those that differ."""

from __future__ import annotations

import argparse
import collections
import functools
import time

import torch

from .programs import program
from .running import is_fault, verdict
from .shrinking import shrink
from .standing import alone


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("seed", type=int)
    parser.add_argument("last", type=int, nargs="?")
    parser.add_argument("--compiled", action="store_true", help="through Inductor")
    parser.add_argument("--whole", action="store_true", help="print programs as they were made")
    parser.add_argument("--every", action="store_true", help="a line for each program")
    parser.add_argument("--also", default="different", help="a verdict that is a fault, too")
    given = parser.parse_args()
    torch.set_num_threads(1)
    counts: collections.Counter[str] = collections.Counter()
    start = time.perf_counter()
    for seed in range(given.seed, (given.last or given.seed) + 1):
        text, tolerance = program(seed, compiled=given.compiled)
        found = verdict(text, tolerance)
        counts[found.split(":")[0]] += 1
        fault = is_fault(found) or found.startswith(given.also)
        if fault or given.every or found.startswith("refused"):
            print(f"seed {seed}: {found if fault else found.splitlines()[0]}", flush=True)
        if fault:
            if not given.whole:
                text = shrink(text, found, functools.partial(verdict, tolerance=tolerance))
            print(alone(text, tolerance), flush=True)
    print(f"{dict(counts)} in {time.perf_counter() - start:.0f} s")


if __name__ == "__main__":
    main()
