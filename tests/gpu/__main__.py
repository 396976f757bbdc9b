"""`make gpu-first` and `make gpu-second`: run stages, keep what they find, print a table.

    python -m tests.gpu first [--dry] [--out DIR]
    python -m tests.gpu second [--only tests,kernels] [--dry] [--out DIR]
    python -m tests.gpu list

The JSON is written anew after each stage, whole or not at all, so that a run that is cut short has
left what it knew. What jobs wrote to standard error is in a log beside it.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
import time
from pathlib import Path
from typing import Any

from . import build, plan, report, stage

PACKAGE = stage.ROOT / "torchgraph"
RESULTS = stage.ROOT / "benchmarks" / "results"
LEAST_SECONDS = 10.0
"""With less than that left a stage is not begun."""


def main(argv: list[str] | None = None) -> int:
    """0 where everything ran and nothing is wrong."""
    args = _arguments(argv)
    if args.what == "list":
        print(listing())
        return 0
    if not args.dry:
        _install()
    stages = _stages(args)
    pieces = 1 if args.what == "first" else len(stages)
    patience = plan.PATIENCE if args.dry or args.stub else 1
    result = {
        "benchmark": f"gpu-{args.what}",
        "date": time.strftime("%Y-%m-%d %H:%M:%S"),
        "dry": args.dry,
        "stub": args.stub,
        "seed": args.seed,
        "sources": build.digest()[:12],
        "stages": [],
    }
    where = args.out or (stage.ROOT / "build" / "gpu-dry" if args.dry else RESULTS)
    where.mkdir(parents=True, exist_ok=True)
    run(stages, patience * pieces * plan.SECONDS, result, where)
    try:
        print(report.table(result))
    except (KeyError, TypeError, ValueError) as error:  # the figures are in the JSON all the same
        print(f"no table, a row is odd: {error!r}; see {where}")
        return 1
    return int(report.failed(result))


def run(stages: list[stage.Stage], budget: float, result: dict[str, Any], where: Path) -> None:
    """Run the stages one after the other, within ``budget`` seconds; write after each."""
    began = time.monotonic()
    with (where / f"{result['benchmark']}.log").open("w", encoding="utf-8") as log:
        for one in stages:
            left = budget - (time.monotonic() - began)
            if left < LEAST_SECONDS:
                jobs = list(map(stage.never_begun, one.jobs))
                result["stages"].append(stage.as_json(one, 0.0, 0.0, jobs))
            else:
                result["stages"].append(stage.run(one, min(one.limit, left), log.write))
                log.flush()
            _write(result, where / f"{result['benchmark']}.json")
            done = result["stages"][-1]
            print(f"{one.name}: {done['seconds']:.0f} s", file=sys.stderr, flush=True)


def listing() -> str:
    """The stages with what they are expected to take and what they may take."""
    lines = [f"{'':12}{'expected':>10}{'at most':>10}"]
    for name, stages in (
        ("first", plan.first(dry=False, seed=0)),
        ("second", plan.second(dry=False, seed=0)),
    ):
        lines.append(f"make gpu-{name}")
        lines += [
            f"  {one.name:10}{one.expected:8.0f} s{one.limit:8.0f} s   {one.about}"
            for one in stages
        ]
        if name == "first":
            whole = sum(one.expected for one in stages)
            lines.append(f"  {'in all':10}{whole:8.0f} s{plan.SECONDS:8.0f} s")
    return "\n".join(lines)


def _arguments(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("what", choices=("first", "second", "list"))
    parser.add_argument("--dry", action="store_true", help="walk everything in small on the CPU")
    parser.add_argument("--stub", action="store_true", help="without a GPU: see tests.gpu.walk")
    parser.add_argument("--only", help="some of the stages, comma-separated")
    parser.add_argument(
        "--seed", type=int, default=None, help="of all random inputs; else new ones"
    )
    parser.add_argument("--out", type=Path, help="where JSON and log go; else benchmarks/results")
    args = parser.parse_args(argv)
    if args.seed is None:
        args.seed = 0 if args.dry else int(time.time())
    return args


def _stages(args: argparse.Namespace) -> list[stage.Stage]:
    make = plan.first if args.what == "first" else plan.second
    stages = make(dry=args.dry, seed=args.seed, stub=args.stub)
    if not args.only:
        return stages
    names = args.only.split(",")
    unknown = set(names) - {one.name for one in stages}
    if unknown:
        there = ", ".join(one.name for one in stages)
        raise SystemExit(f"no such stage: {', '.join(sorted(unknown))}; there are {there}")
    return [one for one in stages if one.name in names]


def _install() -> None:
    """Put the libraries of `make gpu-build` beside the sources, if they are of these."""
    reason = build.why_not()
    if reason:
        raise SystemExit(f"error: {reason}")
    for name in build.LIBRARIES:
        part = PACKAGE / f"{name}.{os.getpid()}.part"
        shutil.copy(build.BUILT / name, part)
        part.replace(PACKAGE / name)


def _write(result: dict[str, Any], path: Path) -> None:
    part = path.with_suffix(f".{os.getpid()}.part")
    part.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    part.replace(path)


if __name__ == "__main__":
    sys.exit(main())
