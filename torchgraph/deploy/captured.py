"""The step of a Graph, as it stands, as a program of tensors with its states."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ..calls.dry_confirmed import dry_outcome, like_last
from ..calls.runner import Runner
from ..calls.signatures import words
from ..capture.program_of import Captured
from ..errors import GraphError, NotCompiled, NotExportable
from ..ir.program import Program, Role, TensorMeta
from ..live.inputs import Call, sharing_of
from ..options.options import Options
from ..passes import MixedPrecision, run
from ..record.compare.outcome import Outcome
from .calling import Argument, calling
from .exported import Exportable, states_of
from .formats.conditions import conditions, moved
from .tensors_only import tensors_only
from .unrolled import unrolled

_AGAIN = "call the Graph once more before tg.export, or give it args=(x, y)."


def captured_step(
    runner: Runner, given: tuple[tuple[Any, ...], dict[str, Any]] | None
) -> tuple[Exportable, list[str]]:
    """The step and what has to stay true for it to hold, in words.

    Args:
        given: arguments of a call; None: those of the last program.

    Raises:
        NotCompiled: no program is there, and no arguments.
        NotExportable.
    """
    captured, call = _last(runner) if given is None else _dry_run(runner, *given)
    for first, other in sharing_of(call):
        raise NotExportable(
            f"{other} lies in the memory of {first} in this call, and its program holds for that.",
            fix=f"tg.export(..., args=, kwargs=) with tensors of their own: clone() {other}.",
        )
    program = tensors_only(unrolled(_meant(captured.program, runner.live.options)))
    convention = calling(call, captured.out_tree, _metas(captured))
    kept = {spec.fqn for spec in program.signature.inputs if spec.role is not Role.INPUT}
    values = {leaf.fqn: leaf.read() for leaf in captured.leaves if leaf.fqn in kept}
    arguments = [one.path for one in convention.arguments if isinstance(one, Argument)]
    states = states_of(program, values, arguments)
    guard = captured.value_guard
    if guard is None:
        return Exportable(program, states, convention), []
    written = moved(guard, {state.name for state in states if state.written})
    if written:
        raise NotExportable(
            f"Python branches in each step on {written}, which the step itself moves.",
            fix="use an optimizer with capturable=True, which decides on the device, or one "
            "without such a branch.",
        )
    return Exportable(program, states, convention), conditions(guard)


def examples(runner: Runner) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The arguments of the last call, all zeros."""
    captured, call = _last(runner)
    return calling(call, captured.out_tree, _metas(captured)).examples


def _metas(captured: Captured) -> dict[str, TensorMeta]:
    specs = captured.program.signature.inputs
    return {str(spec.fqn): spec.meta for spec in specs if spec.meta is not None}


def _last(runner: Runner) -> tuple[Captured, Call]:
    """The program that was made last."""
    if runner.programs.compiler.latest is None and runner.live.last_call is None:
        raise NotCompiled(
            f"{runner.live.name} has not been called yet.",
            fix="call it, or give tg.export the arguments of a call: args=(x, y).",
        )
    if runner.live.options != runner.option_changes.last:
        return _like_last(runner, "Options changed since the last call")
    if runner.programs.compiler.latest is None:
        assert runner.live.last_call is not None
        outcome, call = runner.live.last_call
        _check_not_eager(runner, runner.programs.why_eager(call))
        if not outcome.is_whole:
            _check_not_eager(runner, outcome.eager)
            return _like_last(runner, "The last call made states, and the next one finds them")
        return runner.programs.compiler.program_of(outcome, call), call
    replay, call, _ = runner.programs.compiler.latest
    _check_not_eager(runner, runner.programs.why_eager(call))
    if why := replay.why_not():
        return _like_last(runner, f"The last program no longer fits: {why}")
    if runner.live.optimizers and not runner.live.own_update:
        replay.guards.check_gradients(replay.name_of)
    return _bound(replay.captured, replay.leaves), call


def _like_last(runner: Runner, why: str) -> tuple[Captured, Call]:
    """The program of a call with zeros for the last one's tensors; it is taken back.

    Raises:
        NotExportable: ``why`` the last program is none, and why there is none of such a call.
    """
    call = like_last(runner.programs)
    if call is None:
        raise NotExportable(f"{why}.", fix=_AGAIN)
    try:
        outcome = dry_outcome(runner.programs, call, of_zeros=True)
    except Exception as error:  # `build` may not take zeros
        reason = error.reason if isinstance(error, GraphError) else words(error)
        raise NotExportable(f"{why}; a step with zeros says: {reason}.", fix=_AGAIN) from error
    return runner.programs.compiler.program_of(outcome, call), call.without_data()


def _dry_run(
    runner: Runner, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> tuple[Captured, Call]:
    """The program of a call; a step that it may take is taken back."""
    call = runner.live.inputs.bind(tuple(args), dict(kwargs), whole=True)
    replay = runner.programs.find(call)
    if replay is not None:
        if runner.live.optimizers and not runner.live.own_update:
            replay.guards.check_gradients(replay.name_of)
        return _bound(replay.captured, replay.leaves), call.without_data()
    _check_not_eager(runner, runner.programs.why_eager(call))
    outcome = runner.programs.dry_outcome(call)
    _check_whole(
        runner,
        outcome,
        "The first step makes",
        "call the Graph with a batch before tg.export, which then exports the next step.",
    )
    return runner.programs.compiler.program_of(outcome, call), call.without_data()


def _check_whole(runner: Runner, outcome: Outcome, made: str, fix: str) -> None:
    """Raise NotExportable for a call that no program can be made of, with the reason."""
    if outcome.is_whole:
        return
    _check_not_eager(runner, outcome.eager)
    whose = "states of the optimizers" if runner.live.optimizers else "buffers or parameters"
    raise NotExportable(f"{made} {whose}; the next ones compute otherwise.", fix=fix)


def _check_not_eager(runner: Runner, why: str) -> None:
    if why:
        raise NotExportable(
            f"{runner.live.name} runs in eager: {why.rstrip('.')}.",
            fix="change what is named; only a step that has a program can be exported.",
        )


def _bound(captured: Captured, leaves: Sequence[Any]) -> Captured:
    return Captured(**{**vars(captured), "leaves": list(leaves)})


def _meant(program: Program, options: Options) -> Program:
    """The program after the passes that change what it computes, without those for speed."""
    if options.amp is None or options.amp_policy != "oneflow":
        return program
    return run(program, (MixedPrecision(options.amp),), options.passes)
