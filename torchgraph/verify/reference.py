"""The `aten` program of a step, op by op, fed with what compiled code computed in between.

Values that leave a compiled region are compared with the program's own and then take their place.
So a difference shows where it begins, and what follows is asked about the same numbers: an update
about the same gradients.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Protocol

import torch
from torch import fx
from torch.fx.node import Argument

from .._torch import OpOverload, schema_of
from ..collection import afresh
from ..distributed.collective_log import CollectiveLog
from ..ir import effects
from ..ir.copies import is_expanded
from ..ir.program import OutputKind, OutputSpec, Program, Role, Signature, identity
from ..lower import Crossing, Region
from .rounding import dense
from .run import Before, PartRun, nothing, walk_parts

_SKIP = OutputKind.SKIP

Given = Mapping[str, torch.Tensor]
"""Node of a part -> the value to go on with."""


ValueKey = OutputSpec | tuple[int, int, str]
"""An output of the step; or the part of the program, its run and the name of a node."""

Look = Callable[[ValueKey, Argument, object], None]
"""Called for each value that can be compared: its key, its node or constant, the value."""


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
        self._runs: dict[tuple[int, int], dict[str, torch.Tensor]] = {}
        """By part, and run of the part."""
        self._seen: dict[Region, int] = {}
        self._failure: Exception | None = None
        self.collectives = CollectiveLog()
        """The results of its collectives."""

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Copy the outputs of regions in the block."""
        for region in self._regions:
            region.observer = self._see
        try:
            yield
        finally:
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
        return self._runs.get((part, run), {})

    def laid_out(self, key: tuple[int, int, str], memory: torch.Tensor) -> torch.Tensor:
        """A value, from now on in the layout of ``memory``, which it is copied to."""
        part, run, name = key
        known = self._runs[part, run]
        known[name] = memory.copy_(known[name])
        return memory

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
        self._runs.setdefault((part, run), {}).update(copies)


def _tensors(program: Program) -> Iterator[tuple[Crossing, str]]:
    """The tensors that a part of the `aten` program computes: identity and node name."""
    for node in program.nodes:
        value = node.meta.get("val")
        if node.op != "call_function" or not isinstance(value, torch.Tensor) or not identity(node):
            continue
        if all(type(size) is int for size in value.shape):  # others run outside of regions
            yield Crossing.of(node), node.name


class Moves(Protocol):
    """A function over the values of a run: each value is replaced by its result."""

    def moved(self, node: fx.Node, value: object) -> object:
        """The value of ``node`` to go on with."""

    def passed(self, node: fx.Node, value: object) -> None:
        """Take note of the value of a node that is not moved."""


class _Unmoved:
    """Leaves all values as they are."""

    def moved(self, node: fx.Node, value: object) -> object:
        """The value."""
        return value

    def passed(self, node: fx.Node, value: object) -> None:
        """Nothing."""


_UNMOVED = _Unmoved()


class Reference:
    """Runs the `aten` program. It writes nothing."""

    def __init__(
        self, program: Program, parts: Sequence[Program], observed: Observed, *, redraws: bool
    ) -> None:
        """``redraws``: each run draws its own random numbers, and does not repeat the first."""
        self._repeats = not redraws and all(map(_is_repeatable, parts[0].nodes))
        self._draws: dict[str, object] = {}
        """Node -> what it drew in the first run."""
        self._program = program
        self._parts = parts
        self._observed = observed
        self._nodes = {out: node for part in parts for out, node in part.returns()}
        self._last: dict[fx.Node, list[OutputSpec]] = {}
        """Nodes that are read as outputs of the step alone, and these."""
        for out, node in parts[-1].returns():
            if isinstance(node, fx.Node) and len(node.users) == 1 and out.kind is not _SKIP:
                self._last.setdefault(node, []).append(out)

    def run(
        self,
        values: Sequence[object],
        look: Look,
        moves: Moves = _UNMOVED,
        keys: Collection[ValueKey] | None = None,
        before: Before = nothing,
    ) -> None:
        """Run the step: ``look`` is called for what was observed, then for each output.

        Args:
            before: called with each node before it runs, and the values so far.
            keys: the values to look at, if not all: what they do not depend on need not run.
        """
        log = self._observed.collectives
        log.rewind()
        instead = {} if keys is None or len(self._parts) > 1 else self._instead(keys)

        def after(run: PartRun, node: fx.Node, value: object) -> object:
            key = (run.part, run.number, node.name)
            if node in instead:
                if key in wanted:
                    look(key, node, value)
                moves.passed(node, value)
                return value
            if keys is None:
                self._note_draw(node, value)
            value = moves.moved(node, value)
            value = self._observed_instead(key, node, value, look)
            if node not in self._last:
                return value
            met.update(self._last[node])
            for out in wanted.intersection(self._last[node]):
                look(out, node, value)
            return None  # its memory is free for what follows

        wanted: set[ValueKey] = set(self._nodes if keys is None else keys)
        met: set[ValueKey] = set()
        found = walk_parts(self._program, self._parts, values, after, log, instead, before)
        for out, value in found.items():
            if out in wanted and out not in met:
                look(out, self._nodes[out], value)

    def _note_draw(self, node: fx.Node, value: object) -> None:
        if self._repeats and effects.of(node).random:
            self._draws[node.name] = value

    def _observed_instead(
        self, key: tuple[int, int, str], node: fx.Node, value: object, look: Look
    ) -> object:
        """What was observed, where that is, with a look at the program's own value."""
        is_value = node.op in ("call_function", "placeholder")
        given = self._observed.of(*key[:2]).get(node.name) if is_value else None
        if given is None or not isinstance(value, torch.Tensor):
            return value
        look(key, node, value)
        if given.shape != value.shape or given.dtype != value.dtype:
            return value
        if given.stride() == value.stride() and not is_expanded(value):
            return given
        # In the program's layout: what reads memory in order shall read what was meant.
        return self._observed.laid_out(key, dense(value))

    def _instead(self, keys: Collection[ValueKey]) -> dict[fx.Node, object]:
        """What stands for the nodes that need not run again for these values of a single part.

        What was observed or drawn stands for itself, and None for what nothing needs. All
        collectives run, and all draws that are not known: their order counts.
        """
        program, known = self._parts[0], {**self._draws, **self._observed.of(0, 0)}
        names = {key[2] for key in keys if not isinstance(key, OutputSpec)}
        ends = [node for out, node in program.returns() if out in keys or out.kind is _SKIP]
        pending = [node for node in program.nodes if node.name in names or self._runs(node)]
        pending += [node for node in ends if isinstance(node, fx.Node)]
        met = {node: self._draws[node.name] for node in pending if node.name in self._draws}
        pending = [node for node in pending if node not in met]
        run = set(pending)
        while pending:
            for source in pending.pop().all_input_nodes:
                if source.name in known:
                    met[source] = known[source.name]
                elif source not in run:
                    run.add(source)
                    pending.append(source)
        ops = [node for node in program.nodes if node.op == "call_function"]
        return {node: met.get(node) for node in ops if node not in run}

    def _runs(self, node: fx.Node) -> bool:
        found = effects.of(node)
        return found.communicates or found.opaque or (found.random and not self._repeats)


_OF_SHAPES = frozenset(
    {
        *("aten::bernoulli.p", "aten::rand_like", "aten::randn_like"),
        *("torchgraph::bernoulli", "torchgraph::normal"),
    }
)
"""Draws that read nothing but the shape of their argument."""


def _is_repeatable(node: fx.Node) -> bool:
    """False for what may draw and cannot be replaced by what it drew: its arguments count, too."""
    found = effects.of(node)
    if not found.random:
        return not found.opaque
    schema = schema_of(node.target) if isinstance(node.target, OpOverload) else None
    names = set() if schema is None else {schema.name, f"{schema.name}.{schema.overload_name}"}
    return not node.all_input_nodes or not names.isdisjoint(_OF_SHAPES)
