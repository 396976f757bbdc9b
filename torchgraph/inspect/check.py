"""``graph.check()``: one step of the Graph against eager, and the first node that differs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
from torch import fx

from ..errors import NotSupported, SourceLine
from ..ir import bits
from ..ir.each import expanded
from ..ir.names import optimizer_of
from ..ir.program import (
    SKIPPED_BY,
    OutputKind,
    OutputSpec,
    Phase,
    Program,
    provenance,
)
from ..live.inputs import Call
from ..live.step import Step
from ..options.options import Options
from ..record.amp import Autocast
from ..replay.cuda.graphs import op_by_op
from ..replay.replay import Replay
from .eager import GENERATOR, Eager, Journal, ResultPlace, copied, inputs_of, results
from .ops import base_name

_UNSET = ("empty", "new_empty")
"""Ops whose results hold whatever was there."""
_ABSENT = "nothing"
_CAPTURE = "capture"


@dataclass(frozen=True)
class Divergence:
    """The first node whose value differs from eager, and where the difference ends up."""

    node: str
    """Its name in the program; empty when a state differs that no node computes."""
    op: str
    phase: Phase
    module: str
    line: SourceLine | None
    """The user's line that the node comes from."""
    made_by: str
    """The pass that made the node; ``capture`` when none did."""
    fed_by: tuple[str, ...]
    """Nodes made by passes that the node reads, and the pass: where to look next."""
    expected: str
    """Eager's value, in words."""
    got: str
    difference: float | None
    """The largest absolute difference; None where there is none to compute."""
    reaches: tuple[str, ...]
    """The outputs and states that differ in the end; outputs first."""
    lowering: bool = False
    """True when the program is right, and what it was lowered to is not."""
    repeatable: bool = True
    """False when eager itself gives other values when it runs twice: then the rest may be noise."""

    def __str__(self) -> str:
        made = "" if self.made_by == _CAPTURE else f", made by the pass {self.made_by!r}"
        where = f" in {self.module}" if self.module else ""
        gap = "" if self.difference is None else f" by up to {self.difference:.6g}"
        what = f"{self.node} ({self.op}, {self.phase.value}{where}{made})"
        lines = [f"{what if self.node else self.reaches[0]} differs from eager{gap}"]
        if self.line is not None:
            lines.append(f"  at {self.line}")
        lines += [f"  eager: {self.expected}", f"  graph: {self.got}"]
        if self.fed_by:
            lines.append(f"  It reads {', '.join(self.fed_by)}.")
        more = len(self.reaches) - 3
        rest = f" and {more} more" if more > 0 else ""
        lines.append(f"  In the end these differ: {', '.join(self.reaches[:3])}{rest}.")
        if self.lowering:
            lines.append("  The program is right; the in-place form that runs is not.")
        if not self.repeatable:
            lines.append("  Eager differs from itself when it runs twice: this may be noise.")
        return "\n".join(lines)


def check(
    replay: Replay,
    build: Callable[..., object],
    call: Call,
    scan: Callable[[], Step],
    owners: Sequence[object],
    options: Options,
) -> Divergence | None:
    """Compare one step of the program in ``replay`` with ``build`` and the optimizers' own steps.

    What decides are outputs and states after the step: while they are equal, a program may compute
    them as it likes. Only when they differ are the nodes compared.

    Args:
        scan: gives the step as it is now.
        owners: objects besides modules and optimizers whose attributes are put back, too.
    """
    if replay.program.signature.micro_batches > 1:
        raise NotSupported(
            "graph.check() compares one backward and one update; with gradient accumulation there "
            "are several.",
            fix="set_gradient_accumulation_steps(1) and check one micro-batch.",
        )
    if options.amp is not None and options.autocast is None:
        raise NotSupported(
            "graph.check() compares with eager, which has no colouring as policy='oneflow'.",
            fix="check with enable_amp(policy='autocast'), or with enable_amp(False).",
        )
    autocast = Autocast(options.autocast, (leaf.value for leaf in replay.leaves))
    built = autocast.eager(build)
    eager = Eager(built, call, scan, owners, options, replay.leaves)
    side = _GraphSide(replay, call, scan())
    expected = eager.run()
    executable = op_by_op(replay.executable, replay.program)
    got = side.run(executable.function, executable.outputs)
    if not _different(expected, got):
        return None
    journal = Journal()
    repeatable = not _different(expected, eager.run(journal))
    whole = expanded(replay.program)
    for program, outputs, lowering in (
        (whole, replay.program.signature.outputs, False),
        (executable.program, executable.outputs, True),
    ):
        follower = _Follower(program, outputs, journal)
        got = side.run(follower.execute, outputs)
        reaches = _different(expected, got)
        if reaches:
            found = follower.divergence(eager) or _at_the_end(program, expected, got, reaches[0])
            texts = tuple(map(str, reaches))
            return replace(found, reaches=texts, lowering=lowering, repeatable=repeatable)
    # Only the generated function differs: its nodes are those of the lowered program.
    got = side.run(executable.function, executable.outputs)
    reaches = _different(expected, got) or (GENERATOR,)
    found = _at_the_end(replay.program, expected, got, reaches[0])
    return replace(found, reaches=tuple(map(str, reaches)), lowering=True, repeatable=repeatable)


def _different(expected: Mapping[str, object], got: Mapping[str, object]) -> tuple[str, ...]:
    names = dict.fromkeys((*expected, *got))
    return tuple(
        name
        for name in names
        if name not in expected or name not in got or not bits.same(expected[name], got[name])
    )


class _GraphSide:
    """Runs programs of one replay on copies of the live values."""

    def __init__(self, replay: Replay, call: Call, step: Step) -> None:
        self._replay = replay
        self._call = replay.captured.host.extended(call)
        self._returned = len(replay.captured.out_tree.names)
        self._statics: dict[str, Any] = {static.fqn: static.value for static in step.statics}

    def run(
        self, function: Callable[[Sequence[object]], Sequence[Any]], outputs: Sequence[OutputSpec]
    ) -> dict[str, object]:
        """What a step returns and every state after it, by name."""
        leaves = self._replay.leaves
        values = inputs_of(leaves, self._call.tensors)
        cuda = torch.cuda.is_available() and torch.cuda.is_initialized()
        devices = list(range(torch.cuda.device_count())) if cuda else []
        with torch.no_grad(), torch.random.fork_rng(devices=devices):
            returned = function(values)
            generator = torch.get_rng_state()
        pairs = list(zip(outputs, returned, strict=True))
        skipped = {o.target for o, v in pairs if o.kind is OutputKind.SKIP and v.item()}
        ends = {
            out.target: value
            for out, value in pairs
            if out.kind is OutputKind.UPDATE and optimizer_of(out.target) not in skipped
        }
        users = [(out, value) for out, value in pairs if out.kind is OutputKind.USER]
        found = {f"output{out.target}": value for out, value in users[: self._returned]}
        found.update(self._statics)
        found.update((leaf.fqn, value) for leaf, value in zip(leaves, values, strict=True))
        return {**found, **ends, GENERATOR: generator}


class _Found(NamedTuple):
    """A node that differs: its value, its place in the eager run, what it read from suspects."""

    node: fx.Node
    got: torch.Tensor
    place: ResultPlace
    read: dict[fx.Node, torch.Tensor]


class _Follower(fx.Interpreter):
    """Runs a program and stops comparing at the first node that eager has no equal value for.

    A node is right when eager met its value anywhere: passes may merge, move and rename nodes. It
    is wrong when eager never did although it ran this op with this shape and dtype. A node that
    eager has no counterpart for is a suspect: it is judged by what eager gives to its reader.
    """

    def __init__(self, program: Program, outputs: Sequence[OutputSpec], journal: Journal) -> None:
        super().__init__(program.gm)
        pairs = zip(outputs, program.results, strict=True)
        self._flags = {out.target: value for out, value in pairs if out.kind is OutputKind.SKIP}
        self._journal = journal
        self._met: set[bytes] = set()
        self._clock = -1
        self._suspects: set[fx.Node] = set()
        self._found: _Found | None = None

    def execute(self, values: Sequence[object]) -> tuple[object, ...]:
        """The program's results."""
        return tuple(self.run(*values, enable_io_processing=False))

    def run_node(self, n: fx.Node) -> object:
        """Run a node, and compare its results with what eager met."""
        if SKIPPED_BY in n.meta and self.env[self._flags[n.meta[SKIPPED_BY]]]:
            return None
        if self._found is not None or n.op != "call_function":
            return super().run_node(n)
        suspects = self._suspects.intersection(n.all_input_nodes)
        read = {node: copied(self.env[node]) for node in suspects}  # n may write in place
        value = super().run_node(n)
        for index, tensor in results(value):
            self._compare(n, index, tensor, read)
        return value

    def divergence(self, eager: Eager) -> Divergence | None:
        """What was found; ``reaches`` is left empty."""
        if self._found is None:
            return None
        node, got, place, read = self._found
        journal = eager.journal_at(place)
        for argument, expected in zip(node.args, journal.arguments, strict=False):
            if not isinstance(argument, fx.Node) or argument not in read:
                continue
            if not bits.same(expected, read[argument]):
                return _divergence(argument, expected, read[argument])
        return _divergence(node, journal.value, got)

    def _compare(
        self, node: fx.Node, index: int, tensor: torch.Tensor, read: dict[fx.Node, torch.Tensor]
    ) -> None:
        name = base_name(node.target)
        if self._found is not None or name.startswith(_UNSET):
            return
        mark = bits.fingerprint(tensor)
        position = self._journal.by_value.get((tensor.shape, tensor.dtype, mark))
        candidates = self._journal.by_key.get((name, index, tensor.shape, tensor.dtype))
        if position is not None:
            self._met.add(mark)
            self._clock = max(self._clock, position)
        elif candidates is not None:
            place = self._counterpart(candidates)
            self._found = _Found(node, copied(tensor), place, read)
        else:
            self._suspects.add(node)

    def _counterpart(self, candidates: Sequence[tuple[ResultPlace, bytes]]) -> ResultPlace:
        """The result that eager has instead: the next one that no node has had."""
        left = [place for place, mark in candidates if mark not in self._met]
        ahead = [place for place in left if place.position > self._clock]
        return (ahead or left or [candidates[-1][0]])[0]


def _at_the_end(
    program: Program, expected: Mapping[str, object], got: Mapping[str, object], name: str
) -> Divergence:
    """The node that computes the output or state ``name``, when no single node could be aligned."""
    node = None
    for out, result in zip(program.signature.outputs, program.results, strict=False):
        if name in (out.target, f"output{out.target}") and isinstance(result, fx.Node):
            node = result
    return _divergence(node, expected.get(name, _ABSENT), got.get(name, _ABSENT))


def _divergence(node: fx.Node | None, expected: object, got: object) -> Divergence:
    origin = provenance(node) if node is not None else None
    makers = {} if node is None else {n.name: provenance(n).made_by for n in node.all_input_nodes}
    return Divergence(
        node=node.name if node is not None else "",
        op=str(node.target) if node is not None else "",
        phase=origin.phase if origin else Phase.UPDATE,
        module=origin.module if origin else "",
        line=origin.line if origin else None,
        made_by=origin.made_by if origin else _CAPTURE,
        fed_by=tuple(f"{n} (made by {m!r})" for n, m in makers.items() if m != _CAPTURE),
        expected=_ABSENT if expected is _ABSENT else bits.summary(expected),
        got=_ABSENT if got is _ABSENT else bits.summary(got),
        difference=bits.gap(expected, got),
        reaches=(),
    )
