"""The `aten` program of a step, op by op, fed with what compiled code computed in between.

Values that leave a compiled region are compared with the program's own and then take their place.
So a difference shows where it begins, and what follows is asked about the same numbers: an update
about the same gradients.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import torch
from torch import fx
from torch.fx.node import Argument

from ..collection import afresh
from ..distributed.collective_log import CollectiveLog
from ..ir import effects
from ..ir.program import OutputKind, OutputSpec, Program, Role, Signature, identity
from ..live.micro_batch import chunk
from ..lower import Crossing, Region, packed
from ..lower.split import split
from .rounding import Look, dense

Given = Mapping[str, torch.Tensor]
"""Node of a part -> the value to go on with."""


class Moves(Protocol):
    """A function over the values of a run: each value is replaced by its result."""

    def moved(self, node: fx.Node, value: object) -> object:
        """The value of ``node`` to go on with."""


class StepOutput(NamedTuple):
    """An output of a step, its value, and its node; a constant has no node."""

    out: OutputSpec
    value: object
    node: Argument


class Observed:
    """The outputs of the compiled regions of one run, and the inputs of its update."""

    def __init__(self, parts: Sequence[Program], regions: Sequence[Region]) -> None:
        """``parts``: the parts of the `aten` program; see `parts_of`."""
        self._parts = parts
        self._regions = regions
        known = [dict(_tensors(part)) for part in parts]
        self._wanted = {
            region: [known[region.part].get(crossing) for crossing in region.crossings]
            for region in regions
        }
        """For each result of a region the name of its counterpart."""
        self.complete = all(all(wanted) for wanted in self._wanted.values())
        """True when each value that crosses has its counterpart in the `aten` program."""
        self._runs: dict[int, list[dict[str, torch.Tensor]]] = {}
        self._seen: dict[Region, int] = {}
        self._failure: Exception | None = None
        self.collectives = CollectiveLog()
        """The results of its collectives."""

    def begin(self) -> None:
        """Start copying the outputs of regions."""
        for region in self._regions:
            region.observer = self._see

    def end(self) -> None:
        """Stop copying the outputs of regions."""
        for region in self._regions:
            region.observer = None

    def check(self) -> None:
        """Raise the error of a copy that failed: most likely memory ran out."""
        if self._failure is not None:
            raise afresh(self._failure)

    def update_given(self, signature: Signature, values: Sequence[Any]) -> None:
        """Keep the sums that the update of a step with micro-batches is about to take."""
        sums = {
            spec.fqn: value
            for spec, value in zip(signature.inputs, values, strict=True)
            if spec.role is Role.ACCUMULATOR
        }
        specs = self._parts[2].signature.inputs
        self._keep(2, 0, {spec.name: sums[spec.fqn] for spec in specs if spec.fqn in sums})

    def of(self, part: int, run: int) -> Given:
        """The values copied in one run of a part."""
        runs = self._runs.get(part, [])
        return runs[run] if run < len(runs) else {}

    def _see(self, region: Region, outputs: Sequence[torch.Tensor]) -> None:
        run = self._seen.get(region, 0)
        self._seen[region] = run + 1
        pairs = zip(self._wanted[region], outputs, strict=True)
        self._keep(region.part, run, {name: value for name, value in pairs if name})

    def _keep(self, part: int, run: int, values: Given) -> None:
        if self._failure is not None:
            return
        try:
            copies = {name: value.clone() for name, value in values.items()}
        except Exception as failure:  # the step goes on all the same
            self._failure = afresh(failure)
            self._runs.clear()
            return
        runs = self._runs.setdefault(part, [])
        while len(runs) <= run:
            runs.append({})
        runs[run].update(copies)


def _tensors(program: Program) -> Iterator[tuple[Crossing, str]]:
    """The tensors that a part of the `aten` program computes: identity and node name."""
    for node in program.nodes:
        value = node.meta.get("val")
        if node.op != "call_function" or not isinstance(value, torch.Tensor) or not identity(node):
            continue
        if all(type(size) is int for size in value.shape):  # others run outside of regions
            yield Crossing.of(node), node.name


def parts_of(program: Program) -> tuple[Program, ...]:
    """One, or the parts of a step with micro-batches."""
    return tuple(split(program)) if program.signature.micro_batches > 1 else (program,)


class Reference:
    """Runs the `aten` program. It writes nothing."""

    def __init__(self, program: Program, parts: Sequence[Program], observed: Observed) -> None:
        self._program = program
        self._parts = parts
        self._observed = observed

    def run(
        self, values: Sequence[object], look: Look, shaker: Moves | None = None
    ) -> Iterable[StepOutput]:
        """Each output of the step, its value, and its node where there is one."""
        self._observed.collectives.rewind()
        if len(self._parts) == 1:
            return _ends(self._program, self._follow(0, 0, values, look, shaker))
        return self._micro_batches(list(values), look, shaker)

    def _micro_batches(
        self, values: list[Any], look: Look, shaker: Moves | None
    ) -> list[StepOutput]:
        specs, count = self._program.signature.inputs, self._program.signature.micro_batches
        held: list[Any] = []
        returned: dict[OutputSpec, list[Any]] = {}
        nodes: dict[OutputSpec, Argument] = {}
        for number in range(count):
            part = min(number, 1)
            batch = [
                chunk(value, number, count) if spec.split else value
                for spec, value in zip(specs, values, strict=True)
            ]
            results = self._follow(part, max(number - 1, 0), [*batch, *held], look, shaker)
            program = self._parts[part]
            places = {spec.fqn: i for i, spec in enumerate(program.signature.inputs)}
            new = list(held)
            for out, value, node in _ends(program, results):
                if out.kind is OutputKind.GRADIENT:
                    new.append(value)
                elif out.kind is OutputKind.UPDATE and places[out.target] >= len(values):
                    new[places[out.target] - len(values)] = value
                else:
                    returned.setdefault(out, []).append(value)
                    nodes[out] = node
                    if out.kind is OutputKind.UPDATE:
                        values[places[out.target]] = value
            held = new
        update = self._parts[2]
        held = held[: len(update.signature.inputs) - len(values)]
        ends = _ends(update, self._follow(2, 0, [*values, *held], look, shaker))
        early = [
            StepOutput(
                out,
                found[-1] if out.kind is OutputKind.UPDATE else packed(tuple(found)),
                nodes[out],
            )
            for out, found in returned.items()
        ]
        return [*early, *ends]

    def _follow(
        self, part: int, run: int, values: Sequence[object], look: Look, shaker: Moves | None
    ) -> Sequence[object]:
        given = self._observed.of(part, run)

        def told(node: fx.Node, value: object) -> None:
            look((part, run, node.name), node, value)

        follower = _Follower(self._parts[part], given, told, shaker, self._observed.collectives)
        results: Sequence[object] = follower.run(*values, enable_io_processing=False)
        return results


def _ends(program: Program, results: Sequence[object]) -> Iterator[StepOutput]:
    """Each output of a program, its value among ``results``, and its node where there is one."""
    for (out, node), value in zip(program.returns(), results, strict=True):
        yield StepOutput(out, value, node)


class _Follower(fx.Interpreter):
    def __init__(
        self,
        program: Program,
        given: Given,
        look: Callable[[fx.Node, object], None],
        shaker: Moves | None,
        collectives: CollectiveLog,
    ) -> None:
        super().__init__(program.gm)
        self._collectives = collectives
        self._given = given
        self._look = look
        self._shaker = shaker

    def call_function(self, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> object:
        """Repeat the results of the compiled step's collectives: other ranks run them only once."""
        if self._collectives and effects.of_target(target).communicates:
            return self._collectives.replay_next(target, args)
        return super().call_function(target, args, kwargs)

    def run_node(self, n: fx.Node) -> object:
        """The node's value, moved by noise; or compared and replaced."""
        value = super().run_node(n)
        if self._shaker is not None:
            value = self._shaker.moved(n, value)
        given = self._given.get(n.name) if n.op in ("call_function", "placeholder") else None
        if given is None or not isinstance(value, torch.Tensor):
            return value
        self._look(n, value)
        if given.shape != value.shape or given.dtype != value.dtype:
            return value
        # In the program's layout: what reads memory in order shall read what was meant.
        return dense(value).copy_(given)
