"""What labels for profilers cost a call: while they are off, and while they are on.

    python -m benchmarks.labels

Three ways to call one Graph, in turns: as it is, with labels off; without the question whether they
are wanted, which is all that they cost then; with labels on, and no profiler that records them. The
difference of the first two is a few hundredths of a microsecond, less than a call's noise: so the
question is timed alone, too, and its share of a call is what counts.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any
from unittest import mock

import torch
from rich.table import Table

from torchgraph._torch.surroundings import is_profiling
from torchgraph.lower import Labelling, Lowered
from torchgraph.options.options import Options
from torchgraph.replay.replay import Replay

from . import command, record
from .cases import CASES, SMALL
from .contenders import LR, TrainGraph
from .timing import Clock, Spread, alternate
from .work import Case

WANTED = 0.01
"""Of a call, at most, while labels are off."""
CALLS = 10
"""In a row, in one way."""
_ASKED = 1000


def main(argv: Sequence[str] | None = None) -> dict[str, Any]:
    """Measure, print the table, write the JSON and return what it holds."""
    args = _arguments(argv)
    with command.threads(args.threads):
        models = [_model(CASES[name], args) for name in args.models]
        result = {
            **record.result("labels", torch.device("cpu"), rounds=args.rounds, quick=args.quick),
            "models": models,
        }
    console = command.shown(result, _table(models))
    most = max(model["share_off"] for model in models)
    console.print(
        f"{'pass' if most <= WANTED else 'MISS'}: while they are off, labels take at most "
        f"{most:.3%} of a call (wanted: at most {WANTED:.0%})",
        highlight=False,
    )
    command.save(console, result, args.out, "labels")
    return result


def _arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = command.CommandLine(__doc__)
    parser.threads(1)
    parser.rounds(15)
    parser.some("models", SMALL, CASES)
    args = parser.read(argv)
    if args.quick:
        args.rounds = min(args.rounds, 2)
    return args


def _model(case: Case, args: argparse.Namespace) -> dict[str, Any]:
    work = case.on(torch.device("cpu"))
    graph = TrainGraph(work, torch.optim.AdamW(work.model.parameters(), lr=LR))
    for _ in range(4):
        graph(work.x, work.y)

    turn = Replay.turn
    ways: list[tuple[Any, bool]] = [(turn, False), (_turn, False), (turn, True)]

    def calls(way: tuple[Any, bool]) -> Callable[[], None]:
        def several() -> None:
            with mock.patch.object(Replay, "turn", way[0]):
                graph.config.enable_profiler_labels(way[1])
                for _ in range(CALLS):
                    graph(work.x, work.y)

        return several

    clock, least = Clock(torch.device("cpu")), 1e-6 if args.quick else 0.2
    taken = alternate(clock, list(map(calls, ways)), rounds=args.rounds, least_seconds=least)
    spreads = [Spread(tuple(one / CALLS for one in spread.rounds)) for spread in taken]
    graph.config.enable_profiler_labels(False)
    asking = _asking(graph._runner.programs.last()[0].executable, graph.config.options)
    as_it_is, without, on = (spread.median for spread in spreads)
    return {
        "name": case.name,
        "about": case.about,
        "nodes": graph.program.count(),
        "seconds": dict(
            zip(
                ("off", "not asked", "on"),
                (spread.as_json() for spread in spreads),
                strict=True,
            )
        ),
        "asking_seconds": asking.as_json(),
        "share_off": asking.median / as_it_is,
        "off_against_not_asked": as_it_is / without - 1,
        "on_against_off": on / as_it_is - 1,
    }


def _turn(self: Replay, calls: int, options: Options) -> AbstractContextManager[None]:
    """`Replay.turn` of a program that switches no more, without the question for labels."""
    if options.outputs_buffer_size != self._sets:
        self._hand_out(options.outputs_buffer_size)
    return self._around


def _asking(executable: Lowered, options: Options) -> Spread:
    """The question alone, as a call asks it."""
    found, labels = [], Labelling(executable)
    for _ in range(21):
        start = time.perf_counter()
        for _ in range(_ASKED):
            if labels.is_on is not (options.profiler_labels or is_profiling()):
                raise AssertionError("nothing is profiled here")
        found.append((time.perf_counter() - start) / _ASKED)
    return Spread(tuple(found))


def _table(models: Sequence[dict[str, Any]]) -> Table:
    table = Table(title="a call, in microseconds; median", title_justify="left")
    for name in (
        "model",
        "nodes",
        "off",
        "not asked",
        "on",
        "asking",
        "share of a call",
        "on costs",
    ):
        table.add_column(name, justify="left" if name == "model" else "right")
    for model in models:
        seconds = model["seconds"]
        table.add_row(
            model["name"],
            str(model["nodes"]),
            *(f"{1e6 * seconds[how]['median']:,.0f}" for how in ("off", "not asked", "on")),
            f"{1e6 * model['asking_seconds']['median']:.3f}",
            f"{model['share_off']:.3%}",
            f"{model['on_against_off']:+.1%}",
        )
    return table


if __name__ == "__main__":
    main()
