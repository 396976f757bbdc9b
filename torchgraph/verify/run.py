"""A program run node by node, whole or in its micro-batches, with a look at each value."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

from torch import fx

from ..distributed.collective_log import CollectiveLog
from ..ir import effects
from ..ir.names import optimizer_of
from ..ir.ops import wait_for_collective
from ..ir.program import SKIPPED_BY, InputSpec, OutputKind, OutputSpec, Program
from ..live.micro_batch import chunk
from ..lower import packed
from ..lower.split import split

After = Callable[[fx.Node, Any], Any]
"""Called with each node and its value; returns the value to go on with."""
Before = Callable[[fx.Node, Mapping[fx.Node, Any]], object]
"""Called with each node before it runs, and the values so far."""


_NONE: Mapping[fx.Node, object] = {}


def nothing(node: fx.Node, values: Mapping[fx.Node, Any]) -> None:
    """Nothing is done before a node."""


class Stop(Exception):
    """Raised by a callback to end a walk."""


def walk(
    program: Program,
    values: Sequence[Any],
    after: After,
    *,
    before: Before = nothing,
    outputs: Sequence[OutputSpec] | None = None,
    collectives: CollectiveLog | None = None,
    instead: Mapping[fx.Node, object] = _NONE,
) -> tuple[Any, ...]:
    """Run a program node by node over ``values``; its results, or none when it was stopped.

    Args:
        outputs: what it returns, if not what its signature says, as one that writes in place.
        collectives: results that its collectives repeat: other ranks run them only once.
        instead: ops that do not run, and their values; ``after`` is not called for None.
    """
    outputs = program.signature.outputs if outputs is None else outputs
    walker = _Walker(program, before, after, outputs, collectives, instead)
    try:
        return tuple(walker.run(*values, enable_io_processing=False))
    except Stop:
        return ()


class _Walker(fx.Interpreter):
    def __init__(
        self,
        program: Program,
        before: Before,
        after: After,
        outputs: Sequence[OutputSpec],
        collectives: CollectiveLog | None,
        instead: Mapping[fx.Node, object],
    ) -> None:
        super().__init__(program.gm)
        self._instead = instead
        self._before, self._after, self._collectives = before, after, collectives
        pairs = zip(outputs, program.results, strict=True)
        self._flags = {out.target: value for out, value in pairs if out.kind is OutputKind.SKIP}

    def call_function(self, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> object:
        """The result of an op; of a collective that is known, the known one."""
        if self._collectives and effects.of_target(target).communicates:
            return self._collectives.replay_next(target, args)
        return super().call_function(target, args, kwargs)

    def run_node(self, n: fx.Node) -> object:
        """The value of a node; None for one of an optimizer whose step is skipped."""
        if n in self._instead:
            known = self._instead[n]
            return None if known is None else self._after(n, known)
        if SKIPPED_BY in n.meta and self.env[self._flags[n.meta[SKIPPED_BY]]]:
            return None
        self._before(n, self.env)
        value = super().run_node(n)
        if not self._collectives:
            wait_for_collective(n, value)
        return self._after(n, value)


def arguments(node: fx.Node, values: Mapping[fx.Node, Any]) -> tuple[tuple[Any, ...], Any]:
    """The arguments of a node, and those by keyword, as ``values`` has them."""
    return value_of(node.args, values), value_of(dict(node.kwargs), values)


def value_of(argument: Any, values: Mapping[fx.Node, Any]) -> Any:
    """An argument of fx with the values of its nodes."""
    return fx.map_arg(argument, values.__getitem__)


def skipped_by(outputs: Sequence[OutputSpec], results: Sequence[Any]) -> set[str]:
    """``optimizer.0``, ...: those whose step the grad scaler skipped."""
    pairs = zip(outputs, results, strict=True)
    return {out.target for out, value in pairs if out.kind is OutputKind.SKIP and bool(value)}


def ends_of(
    outputs: Sequence[OutputSpec],
    results: Sequence[Any],
    inputs: Iterable[tuple[InputSpec, Any]] = (),
) -> dict[OutputSpec, Any]:
    """The value of each output, but for states of optimizers whose step was skipped.

    Args:
        inputs: those of a program that writes in place, which are outputs, too.
    """
    states = {OutputSpec(OutputKind.UPDATE, spec.fqn): value for spec, value in inputs}
    skipped = skipped_by(outputs, results)
    return {
        out: value
        for out, value in {**states, **dict(zip(outputs, results, strict=True))}.items()
        if out.kind is not OutputKind.UPDATE or optimizer_of(out.target) not in skipped
    }


# --- micro-batches --------------------------------------------------------------------------------


class PartRun(NamedTuple):
    """One run of a part of a step: of a micro-batch, or of the update."""

    part: int
    """The number of the part among `parts_of`."""
    number: int
    """Runs of the part before it."""
    program: Program
    values: Sequence[Any]


def parts_of(program: Program) -> tuple[Program, ...]:
    """One, or the parts of a step with micro-batches: the first, those that follow, the update."""
    return tuple(split(program)) if program.signature.micro_batches > 1 else (program,)


def part_runs(
    program: Program, parts: Sequence[Program], values: Sequence[Any]
) -> Generator[PartRun, Sequence[Any], dict[OutputSpec, Any]]:
    """The runs of a step over ``values``. Is sent the results of each; returns those of the step.

    Of all micro-batches, outputs are packed, and states are as after the last one.
    """
    if len(parts) == 1:
        results = yield PartRun(0, 0, parts[0], values)
        return dict(zip(parts[0].signature.outputs, results, strict=True))
    states, held = list(values), list[Any]()
    returned: dict[OutputSpec, list[Any]] = {}
    count = program.signature.micro_batches
    for number in range(count):
        part = min(number, 1)
        pairs = zip(program.signature.inputs, states, strict=True)
        batch = [chunk(value, number, count) if spec.split else value for spec, value in pairs]
        results = yield PartRun(part, max(number - 1, 0), parts[part], [*batch, *held])
        held = _carried(parts[part], results, states, held, returned)
    held = held[: len(parts[2].signature.inputs) - len(states)]
    ends = yield PartRun(2, 0, parts[2], [*states, *held])
    early = {
        out: found[-1] if out.kind is OutputKind.UPDATE else packed(tuple(found))
        for out, found in returned.items()
    }
    return {**early, **dict(zip(parts[2].signature.outputs, ends, strict=True))}


def _carried(
    part: Program,
    results: Sequence[Any],
    states: list[Any],
    held: Sequence[Any],
    returned: dict[OutputSpec, list[Any]],
) -> list[Any]:
    """Gradients and casts of weights for the next run; fills ``states`` and ``returned``."""
    places = {spec.fqn: place for place, spec in enumerate(part.signature.inputs)}
    new = list(held)
    for out, value in zip(part.signature.outputs, results, strict=True):
        place = places[out.target] if out.kind is OutputKind.UPDATE else -1
        if out.kind is OutputKind.GRADIENT:
            new.append(value)
        elif place >= len(states):
            new[place - len(states)] = value
        else:
            returned.setdefault(out, []).append(value)
            if place >= 0:
                states[place] = value
    return new


def walk_parts(
    program: Program,
    parts: Sequence[Program],
    values: Sequence[Any],
    after: Callable[[PartRun, fx.Node, Any], Any],
    collectives: CollectiveLog | None = None,
    instead: Mapping[fx.Node, object] = _NONE,
    before: Before = nothing,
) -> dict[OutputSpec, Any]:
    """Run a step in its parts, node by node; its outputs. See `walk` and `part_runs`."""
    runs = part_runs(program, parts, values)
    try:
        one = next(runs)
        while True:
            go_on = partial(after, one)
            results = walk(
                one.program,
                one.values,
                go_on,
                before=before,
                collectives=collectives,
                instead=instead,
            )
            one = runs.send(results)
    except StopIteration as end:
        found: dict[OutputSpec, Any] = end.value
        return found
