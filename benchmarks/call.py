"""Microseconds that one call adds around the program: binding, guards, values, results.

    python -m benchmarks.call

For a model of 300 modules and 600 parameters with AdamW. Three figures, for the compiled guards and
for those in Python:

* hot: calls of a Graph whose program is replaced by one that returns at once;
* in the loop: calls of the Graph less calls of its bare program, in turns, over the same live
  tensors and below autograd. A program of thousands of ops empties the caches between the checks;
* the same, from inside: a call's time less the time that the program ran in it. It is the larger
  one, for the checks fetch from memory what the program reads right after them.

The parts are timed alone, hot, and right after a program has run.
"""

from __future__ import annotations

import argparse
import copy
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from rich.table import Table
from torch import nn

from torchgraph._torch import below_autograd
from torchgraph._torch.surroundings import ambient
from torchgraph.errors import SlowGuardsWarning
from torchgraph.guards import Guards
from torchgraph.live.inputs import Call
from torchgraph.replay.replay import Replay

from . import command, record
from .cases import dense
from .contenders import TrainGraph
from .timing import Spread
from .work import Case, Work

MODULES = 300
WANTED = {"hot": 30e-6, "in the loop": 200e-6}
FORMS = ("compiled", "python")


def main(argv: Sequence[str] | None = None) -> dict[str, Any]:
    """Measure, print the table, write the JSON and return what it holds."""
    args = _arguments(argv)
    with command.threads(args.threads), warnings.catch_warnings():
        warnings.simplefilter("ignore", SlowGuardsWarning)  # beside a program that does nothing
        result = _run(args)
    console = command.shown(result, _table(result))
    form, measured = next(iter(result["forms"].items()))
    for what, wanted in WANTED.items():
        adds = measured[what]["median"]
        console.print(
            f"{'pass' if adds <= wanted else 'MISS'}: {what}, a call adds {1e6 * adds:.0f} us "
            f"around the program with {form} guards (wanted: at most {1e6 * wanted:.0f} us)",
            highlight=False,
        )
    command.save(console, result, args.out, "call")
    return result


def _arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = command.CommandLine(__doc__)
    parser.threads(1)  # ops this small gain from no second
    parser.add_argument("--calls", type=int, default=300, help="pairs of calls")
    parser.add_argument("--modules", type=int, default=MODULES, help="with two parameters each")
    args = parser.read(argv)
    if args.quick:
        args.calls, args.modules = min(args.calls, 10), min(args.modules, 10)
    return args


def _run(args: argparse.Namespace) -> dict[str, Any]:
    case = Case("stack", "linear layers in a row", lambda: stack(args.modules))
    work = case.on(torch.device("cpu"))
    graph = TrainGraph(work, torch.optim.AdamW(work.model.parameters(), lr=1e-3))
    start = time.perf_counter()
    graph(work.x, work.y)
    first = time.perf_counter() - start
    for _ in range(5):
        graph(work.x, work.y)
    replay = graph._runner.programs.last()[0]
    counts = {
        "modules": sum(1 for _ in work.model.modules()) - 1,
        "parameters": sum(1 for _ in work.model.parameters()),
        "nodes": replay.program.count(),
    }
    forms = _forms(replay)
    bare, whole = _in_turns(graph, replay, work, forms, args.calls)
    return {
        **record.result(
            "call",
            torch.device("cpu"),
            calls=args.calls,
            quick=args.quick,
            optimizer="AdamW",
            **counts,
        ),
        "first_step_seconds": first,
        "program": _summary(bare),
        "forms": {
            form: _measured(graph, replay, work, args.calls)
            | {
                "call": _summary(whole[form]),
                "in the loop": _summary([a - b for a, b in zip(whole[form], bare, strict=True)]),
            }
            for form in _in_turn(replay, forms)
        },
    }


def stack(modules: int) -> Work:
    """Small linear layers, so that the program has many parameters and little to compute."""
    model = nn.Sequential(*(nn.Linear(4, 4) for _ in range(modules)))
    return dense(model, batch=4, inputs=4, classes=4)


# --- measuring -----------------------------------------------------------------------------------


def _forms(replay: Replay) -> dict[str, Guards]:
    """The guards of the program in each form that there is here."""
    python = copy.copy(replay.guards)
    python._module = python._compiled = None
    forms = {guards.form: guards for guards in (python, replay.guards)}
    return {form: forms[form] for form in FORMS if form in forms}


def _in_turn(replay: Replay, forms: dict[str, Guards]) -> Iterator[str]:
    """The forms, each in use while it is its turn."""
    used = replay.guards
    for form, guards in forms.items():
        replay.guards = guards
        yield form
    replay.guards = used


def _in_turns(
    graph: TrainGraph, replay: Replay, work: Work, forms: dict[str, Guards], calls: int
) -> tuple[list[float], dict[str, list[float]]]:
    """Times of the bare program, and of the Graph in each form; who comes first changes."""
    function = replay.executable.function
    values = [*replay._binding.values(_call(graph, work))]
    bare: list[float] = []
    whole: dict[str, list[float]] = {form: [] for form in forms}

    def program() -> None:
        with torch.no_grad(), below_autograd():
            bare.append(_timed(lambda: function(values)))

    for number in range(calls):
        turns: list[str | None] = [*forms, None]
        start = number % len(turns)
        for form in turns[start:] + turns[:start]:
            if form is None:
                program()
            else:
                replay.guards = forms[form]
                whole[form].append(_timed(lambda: graph(work.x, work.y)))
    return bare, whole


def _measured(graph: TrainGraph, replay: Replay, work: Work, calls: int) -> dict[str, Any]:
    """What is measured in the form that is in use."""
    parts = {
        name: {
            "hot": _summary(_hot(part, calls)),
            "in the loop": _summary(_after_a_program(graph, work, part, calls)),
        }
        for name, part in _parts(graph, replay, work)
    }
    function = replay.executable.function
    ran: list[float] = []

    def timed(values: Sequence[Any]) -> tuple[Any, ...]:
        start = time.perf_counter()
        results = function(values)
        ran.append(time.perf_counter() - start)
        return results

    with torch.no_grad(), below_autograd():
        done = function([*replay._binding.values(_call(graph, work))])
    try:
        replay._function = timed
        inside = [_timed(lambda: graph(work.x, work.y)) - ran[-1] for _ in range(calls)]
        replay._function = lambda values: done
        hot = _hot(lambda: graph(work.x, work.y), calls)
    finally:
        replay._function = function
    return {"hot": _summary(hot), "from inside": _summary(inside), "parts": parts}


def _parts(graph: TrainGraph, replay: Replay, work: Work) -> list[tuple[str, Callable[[], Any]]]:
    """What a call does around the program, piece by piece."""
    call = _call(graph, work)

    def patience() -> None:
        with replay.turn(0, graph.config.options):
            pass

    return [
        ("bind the arguments", lambda: _call(graph, work)),
        ("ambient switches", ambient),
        ("guards", replay.why_not),
        ("no gradients left", lambda: replay.guards.check_gradients(replay.name_of)),
        ("gather the values", lambda: replay._binding.values(call)),
        ("interrupts wait", patience),
    ]


def _call(graph: TrainGraph, work: Work) -> Call:
    call: Call = graph._runner.live.inputs.bind((work.x, work.y), {})
    return call


def _hot(part: Callable[[], Any], calls: int) -> list[float]:
    """Each entry is the mean of a few calls in a row, after one that is not counted."""
    return [_repeated(part) for _ in range(max(2, calls))]


def _repeated(part: Callable[[], Any], times: int = 10) -> float:
    part()
    start = time.perf_counter()
    for _ in range(times):
        part()
    return (time.perf_counter() - start) / times


def _after_a_program(
    graph: TrainGraph, work: Work, part: Callable[[], Any], calls: int
) -> list[float]:
    sample = []
    for _ in range(min(calls, 100)):
        graph(work.x, work.y)
        sample.append(_timed(part))
    return sample


def _timed(call: Callable[[], Any]) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def _summary(sample: list[float]) -> dict[str, Any]:
    return Spread(tuple(sample)).as_json()


def _table(result: dict[str, Any]) -> Table:
    settings, forms = result["settings"], result["forms"]
    table = Table(
        title=f"{settings['modules']} modules, {settings['parameters']} parameters, AdamW, "
        f"{settings['nodes']} nodes; median (middle half) in us",
        title_justify="left",
    )
    table.add_column("what")
    for form in forms:
        table.add_column(f"{form} guards", justify="right")
    table.add_row("its program alone", *[_cell(result["program"])] * len(forms))
    names = {
        "call": "a call of the Graph",
        "hot": "a call adds, hot",
        "in the loop": "a call adds, in the loop",
        "from inside": "  the same, from inside",
    }
    for key, name in names.items():
        cells = [_cell(measured[key]) for measured in forms.values()]
        table.add_row(name, *cells, style="bold" if key in WANTED else "")
    for name in next(iter(forms.values()))["parts"]:
        for how in WANTED:
            cells = [_cell(measured["parts"][name][how]) for measured in forms.values()]
            table.add_row(f"  {name}, {how}", *cells)
    return table


def _cell(sample: dict[str, Any]) -> str:
    low, high = (1e6 * quarter for quarter in sample["quartiles"])
    digits = 1 if sample["median"] < 1e-5 else 0
    return f"{1e6 * sample['median']:,.{digits}f} ({low:,.{digits}f} - {high:,.{digits}f})"


if __name__ == "__main__":
    main()
