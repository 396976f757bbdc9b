"""The parts of a Graph to be saved: programs that serve it now, its state, its schedules."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch

from ..calls.dry_confirmed import dry_confirmed, like_last
from ..calls.runner import Runner
from ..calls.signatures import words
from ..errors import GraphBroken, GraphError, NotSavable
from ..ir.names import TRAIN
from ..live import state
from ..live.inputs import Inputs
from ..live.state.optimizers import has_torchs_form
from ..options.options import Options
from ..replay.replay import Replay
from . import schedules

Place = tuple[Any, ...]
"""Keys from the state to a dict in it."""


@dataclass(frozen=True)
class Parts:
    """The contents of a Graph's files."""

    name: str
    class_name: str
    parameters: tuple[tuple[str, int, bool, bool], ...]
    """Name, kind, whether it may be left out and whether it is read, of each one of `build`."""
    options: Options
    replays: tuple[Replay, ...]
    state: Mapping[str, Any]
    """The result of `Graph.state_dict`: live tensors."""
    places: Mapping[int, Place]
    """id of a dict that holds numbers of an optimizer -> where its like is in ``state``."""
    schedules: tuple[dict[str, object], ...]
    default_dtype: torch.dtype
    """The default dtype under which the programs were recorded."""


@contextmanager
def as_saved(default_dtype: torch.dtype) -> Iterator[None]:
    """Run as the programs were recorded, whatever the caller has chosen for his own ops."""
    before = torch.get_default_dtype()
    if before is not default_dtype:
        torch.set_default_dtype(default_dtype)
    try:
        with (
            torch.inference_mode(False),
            torch.autocast("cpu", enabled=False),
            torch.autocast("cuda", enabled=False),
        ):
            yield
    finally:
        if before is not default_dtype:
            torch.set_default_dtype(before)


Given = tuple[tuple[Any, ...], dict[str, Any]]
"""Arguments of a call."""


def parts_of(runner: Runner, given: Given | None = None) -> Parts:
    """The parts of a Graph to save, as it is now.

    Args:
        given: arguments of a call for which a program is made, where none serves it.

    Raises:
        NotSavable: it can have no confirmed program, or holds what no file can.
        GradPresent: the next step would add to gradients that are there.
        GraphBroken: an earlier step failed half-way.
    """
    options = runner.live.options
    _check(runner, options)
    replays = tuple(_serving(runner, given) or _made(runner, given))
    for replay in replays if runner.live.optimizers else ():
        replay.guards.check_gradients(replay.name_of)
    held = runner.live.held()
    return Parts(
        runner.live.name,
        type(runner.live.owner).__name__,
        tuple(_parameters(runner.live.inputs)),
        options,
        replays,
        state.collect(held, runner.live.progress),
        dict(_places(runner)),
        tuple(schedules.described(one, held.optimizers) for one in held.schedulers),
        torch.get_default_dtype(),
    )


def _check(runner: Runner, options: Options) -> None:
    if broken := runner.cache.broken or runner.live.signals.torn:
        raise GraphBroken(f"An earlier step of {runner.live.name} failed half-way ({broken}).")
    if runner.live.own_update:
        raise NotSavable(
            f"{runner.live.name} takes its own update: what it does to optimizers and gradients "
            "besides its program is Python, which no file can hold.",
            fix="give the optimizer to add_optimizer (or use torchgraph.train_step).",
        )
    if options.buckets is not None:
        raise NotSavable(
            f"{runner.live.name} pads its batches (set_shape_buckets); what is loaded does not.",
            fix="set_shape_buckets(None), and call it with the shapes that are to be saved.",
        )
    if options.stages:
        raise NotSavable(
            f"{runner.live.name} has pipeline stages, which are on the ranks that hold them.",
            fix="save its state: tg.save(graph.state_dict(), path), of which every rank calls the "
            "first half.",
        )
    if options.passes.inserted and options.backend != "aten":
        raise NotSavable(
            "Passes of your own are code, and compiling runs them again.",
            fix='set_backend("aten"): the program is saved as they left it.',
        )
    for number, optimizer in enumerate(runner.live.optimizers):
        if not has_torchs_form(optimizer.state_dict()):
            raise NotSavable(
                f"The state_dict of {type(optimizer).__name__}, optimizer {number}, is of a form "
                "of its own: nobody but its class finds the numbers in it.",
                fix="let it return what torch.optim.Optimizer.state_dict() does.",
            )


def _serving(runner: Runner, given: Given | None) -> list[Replay]:
    """The programs that serve calls; without training, those of another grad mode if need be.

    None where there are arguments that none of them serves.
    """
    found = runner.programs.serving()
    if given is not None and runner.programs.find(runner.live.inputs.bind(*given)) is None:
        return []
    modes = ((False, False), (True, False), (False, True))
    for inference, gradients in () if runner.live.options.training else modes:
        with torch.inference_mode(inference), torch.set_grad_enabled(gradients):
            found = found or runner.programs.serving()
    return found


def _made(runner: Runner, given: Given | None) -> list[Replay]:
    """A program made for the purpose, of the arguments of a call or of one like the last."""
    live, programs = runner.live, runner.programs
    if given is None and live.last_call is not None and programs.why_eager(live.last_call[1]):
        raise _without_program(runner, "")
    call = like_last(programs) if given is None else live.inputs.bind(*given, whole=True)
    if call is None:
        raise _without_program(runner, "")
    try:
        with live.signals:
            return [dry_confirmed(programs, call, of_zeros=given is None)]
    except GraphError as error:
        raise _without_program(runner, error.reason) from error
    except Exception as error:  # `build` may not take zeros
        raise _without_program(runner, f"a step with zeros raises {words(error)}") from error


def not_shown(options: Options) -> Options:
    """The options without the dump directory, which is up to whoever runs the programs."""
    return replace(options, passes=replace(options.passes, dump=""))


def _without_program(runner: Runner, why_not: str) -> Exception:
    """The error where there is no program; ``why_not``: and why none could be made."""
    name, last = runner.live.name, runner.live.last_call
    if last is None and not why_not:
        fix = "call it, or give save the arguments of a call: save(graph, path, args=(x, y))."
        return NotSavable(f"{name} has not been called yet.", fix=fix)
    eager = "" if last is None or last[0].passing else last[0].eager
    if eager:  # and it is the last that no program has served
        return NotSavable(
            f"{name} has no program that is confirmed, and stays in eager: {eager}.",
            fix="let it run as a program, then save it; its weights and states alone are saved by "
            "save(graph.state_dict(), path).",
        )
    shown = (
        []
        if runner.programs.compiler.latest is None
        else [runner.programs.compiler.latest[0].why_not()]
    )
    said = [why_not] if why_not else [one.why_not() for one in runner.cache] or shown
    reason = f": {said[-1]}" if said and said[-1] else ""
    return NotSavable(
        f"{name} has no program that is confirmed and serves calls as things stand{reason}.",
        fix="call it as it is now, or give save the arguments of a call: args=(x, y); "
        "graph.report() says more.",
    )


def _parameters(inputs: Inputs) -> Iterator[tuple[str, int, bool, bool]]:
    unread = inputs.unread.names if inputs.unread is not None else ()
    for one in inputs.signature.parameters.values():
        yield one.name, int(one.kind), one.default is not one.empty, one.name not in unread


def _places(runner: Runner) -> Iterator[tuple[int, Place]]:
    for number, optimizer in enumerate(runner.live.optimizers):
        place = (TRAIN, "optimizers", number)
        indices: dict[object, int] = {}
        for position, group in enumerate(optimizer.param_groups):
            yield id(group), (*place, "param_groups", position)
            for parameter in group["params"]:
                indices.setdefault(id(parameter), len(indices))
        for key, slots in optimizer.state.items():
            yield id(slots), (*place, "state", indices.get(id(key), key))
