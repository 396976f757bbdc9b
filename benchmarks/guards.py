"""What each kind of check that reads memory wins a call over the same check made another way.

    python -m benchmarks.guards

For a model of 300 modules and 600 parameters with AdamW. The checks of one call are timed with all
kinds as they are, and with one of them replaced, in turns: hot, and right after a program of
thousands of ops, which empties the caches.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple
from unittest import mock

import torch
from rich.table import Table

from torchgraph import _extension
from torchgraph._torch import below_autograd
from torchgraph.live import inputs
from torchgraph.live.inputs import Inputs
from torchgraph.replay.replay import Replay

from . import command, record
from .call import MODULES, stack
from .contenders import TrainGraph
from .timing import Spread
from .work import Case, Work

WANTED = 5e-6
"""Seconds a call that a kind has to win to be kept."""


class Way(NamedTuple):
    """A kind of check made another way."""

    of: str
    """What it is compared with."""
    check: Callable[[], Any]
    prepare: Callable[[], None] = lambda: None
    """Not timed."""


def main(argv: Sequence[str] | None = None) -> dict[str, Any]:
    """Measure, print the table, write the JSON and return what it holds."""
    args = _arguments(argv)
    with command.threads(1):
        result = _run(args)
    console = command.shown(result, _table(result))
    command.save(console, result, args.out, "guards")
    return result


def _arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = command.CommandLine(__doc__)
    parser.add_argument("--calls", type=int, default=200, help="rounds of checks")
    parser.add_argument("--modules", type=int, default=MODULES, help="with two parameters each")
    args = parser.read(argv)
    if args.quick:
        args.calls, args.modules = min(args.calls, 5), min(args.modules, 10)
    return args


def _run(args: argparse.Namespace) -> dict[str, Any]:
    case = Case("stack", "linear layers in a row", lambda: stack(args.modules))
    work = case.on(torch.device("cpu"))
    graph = TrainGraph(work, torch.optim.AdamW(work.model.parameters(), lr=1e-3))
    for _ in range(6):
        graph(work.x, work.y)
    replay = graph._runner.programs.last()[0]
    ways = _guards(replay, work)
    as_they_are = "the arguments bound as they are"
    ways[as_they_are] = Way("", _binding(graph, work))
    function = replay.executable.function
    values = [*replay._binding.values(graph._runner.live.inputs.bind((work.x, work.y), {}))]

    def program() -> None:
        with torch.no_grad(), below_autograd():
            function(values)

    with mock.patch.object(inputs, "starts_of_like", return_value=None):
        ways["inputs: each tensor by torch"] = Way(as_they_are, _binding(graph, work))
        samples = _samples(ways, program, args.calls)
    head = record.result(
        "guards",
        torch.device("cpu"),
        calls=args.calls,
        quick=args.quick,
        modules=sum(1 for _ in work.model.modules()) - 1,
        parameters=sum(1 for _ in work.model.parameters()),
    )
    return {**head, "ways": _measured(ways, samples)}


def _samples(
    ways: dict[str, Way], program: Callable[[], None], calls: int
) -> dict[str, dict[str, list[float]]]:
    """Seconds of each way, hot and in the loop, a figure a round."""
    samples: dict[str, dict[str, list[float]]] = {
        name: {"hot": [], "in the loop": []} for name in ways
    }
    for _ in range(calls):
        for name, way in ways.items():
            way.check()
            way.prepare()
            samples[name]["hot"].append(_timed(way.check))
            way.prepare()
            program()
            samples[name]["in the loop"].append(_timed(way.check))
    return samples


# --- the kinds -----------------------------------------------------------------------------------


class _Checks:
    """Compiled checks of which some go another way."""

    def __init__(self, checks: Any) -> None:
        self.compiled = checks
        self.seen: list[torch.Tensor] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self.compiled, name)


class _TensorsByTorch(_Checks):
    def tensors(self, function: Callable[..., bool], tensors: tuple[torch.Tensor, ...]) -> None:
        self.seen += tensors
        self.compiled.call(function, tensors)

    def storages(self, function: Callable[[], bool], tensors: tuple[torch.Tensor, ...]) -> None:
        self.compiled.storages(function, (*self.seen, *tensors))


class _GradientsByGetter(_Checks):
    def leaves(self, tensors: list[torch.Tensor]) -> None:
        getter: Any = torch.Tensor.grad
        self.compiled.gradients(getter.__objclass__, "grad", tensors)


class _StoragesByPython(_Checks):
    def storages(self, function: Callable[[], bool], tensors: tuple[torch.Tensor, ...]) -> None:
        self.compiled.call(function, ())


REPLACED = {
    "tensors: torch's own check": _TensorsByTorch,
    "gradients: the getter of Tensor.grad": _GradientsByGetter,
    "storages of slots: Python's check": _StoragesByPython,
}


def _guards(replay: Replay, work: Work) -> dict[str, Way]:
    module, guards = _extension.guards(), replay.guards
    assert module is not None, "the compiled guards were not built"

    def checking(kind: type[_Checks]) -> Callable[[], None]:
        checks = kind(guards._new_checks(module))
        guards._compile(checks)

        def check() -> None:
            assert checks.compiled.hold()
            assert checks.compiled.no_gradients()

        return check

    spaces = [vars(module) for module in work.model.modules()]
    spaces += [space for own in spaces for space in own.values() if type(space) is dict]

    def moved_and_back() -> None:
        """No dict is in the state in which it was found good, though it holds the same."""
        for space in spaces:
            space["moved"] = None
            del space["moved"]

    whole = checking(_Checks)
    ways = {"the guards as they are": Way("", whole)}
    of = next(iter(ways))
    ways["dicts: each compared"] = Way(of, whole, moved_and_back)
    return ways | {name: Way(of, checking(kind)) for name, kind in REPLACED.items()}


def _binding(graph: TrainGraph, work: Work) -> Callable[[], object]:
    own = Inputs(graph.build)
    own.bind((work.x, work.y), {})
    return lambda: own.bind((work.x, work.y), {})


# --- figures -------------------------------------------------------------------------------------


def _timed(check: Callable[[], object]) -> float:
    start = time.perf_counter()
    check()
    return time.perf_counter() - start


def _measured(
    ways: dict[str, Way], samples: dict[str, dict[str, list[float]]]
) -> dict[str, dict[str, Any]]:
    """Each way's own time, and what its kind wins: the median of the rounds' differences."""
    found: dict[str, dict[str, Any]] = {}
    for name, way in ways.items():
        found[name] = {
            how: Spread(tuple(sample)).as_json() for how, sample in samples[name].items()
        }
        if way.of:
            found[name]["wins"] = {
                how: statistics.median(
                    b - a for a, b in zip(samples[way.of][how], sample, strict=True)
                )
                for how, sample in samples[name].items()
            }
    return found


def _table(result: dict[str, Any]) -> Table:
    table = Table(
        title=f"{result['settings']['modules']} modules, {result['settings']['parameters']} "
        "parameters, AdamW; medians in us a call",
        title_justify="left",
    )
    for column in ("what", "hot", "wins", "in the loop", "wins", "kept?"):
        table.add_column(column, justify="left" if column == "what" else "right")
    for name, way in result["ways"].items():
        wins = way.get("wins", {})
        cells = []
        for how in ("hot", "in the loop"):
            cells.append(f"{1e6 * way[how]['median']:,.1f}")
            cells.append(f"{1e6 * wins[how]:,.1f}" if wins else "")
        keep = ("yes" if wins["in the loop"] > WANTED else "NO") if wins else ""
        table.add_row(name, *cells, keep)
    return table


if __name__ == "__main__":
    main()
