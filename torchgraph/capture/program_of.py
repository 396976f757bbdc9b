"""From what a recorded call left to a functional Program with its Guards."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import fx

from .._torch import graph_module, storage_id
from ..counters import counters
from ..distributed.replicas import Reduced
from ..effects.side_effects import SideEffects
from ..errors import NotSupported, SharedMemory, SourceLine
from ..guards import Guards, Modules, Names, ValueGuard
from ..guards.sharing import relations
from ..ir.program import CallRecord, OutputKind, Phase, Program, Role, provenance
from ..live.step import Leaf
from ..objects import is_a
from ..options.options import Options
from ..record.compare.outcome import Outcome, without_batch
from ..structure import Returned
from .functional.functionalize import functionalize
from .graph_of import graph_of
from .handed import move_handed
from .rows.per_kind import per_kind as with_kinds
from .skip import keep_skipped


@dataclass(frozen=True)
class Captured:
    """A program with everything that binds it to the user's objects."""

    program: Program
    leaves: list[Leaf]
    """In the order of the signature's inputs."""
    guards: Guards
    value_guard: ValueGuard | None
    out_tree: Returned
    """The structure of the returned value and of changes to arguments, without the tensors."""
    calls: list[CallRecord]
    loss_path: str | None
    structure: tuple[Any, ...]
    """``Step.structure()`` at capture."""
    own_update: bool = False
    """True when the step takes its own update."""
    side_effects: SideEffects = field(default_factory=SideEffects)
    """The part of a step that Python does besides the program."""
    reduced: tuple[Reduced, ...] = ()
    """See `Replicas`."""
    compiled: tuple[SourceLine, ...] = ()
    """The user's lines whose functions `torch.compile` has compiled; they were recorded plain."""


def program_of(outcome: Outcome, options: Options, split: frozenset[str]) -> Captured:
    """The functional program of a recorded step.

    Args:
        split: the paths of the tensors that are split into micro-batches.

    Raises:
        CaptureError and its kin: the step cannot be a static program.
    """
    with outcome.step.flags.as_met():
        return _program_of(outcome, options, split)


def _program_of(outcome: Outcome, options: Options, split: frozenset[str]) -> Captured:
    counters.captures += 1
    step = outcome.step
    inputs = [leaf for leaf, _ in outcome.leaves]
    program, guard_nodes, expected = _functional(outcome, per_kind=options.update_per_kind)
    program.signature = replace(
        program.signature,
        inputs=tuple(replace(s, split=s.fqn in split) for s in program.signature.inputs),
        groups=tuple(step.parameter_groups()),
        micro_batches=options.micro_batches if step.optimizers else 1,
    )
    keep_skipped(program, outcome.written)
    leaves = [without_batch(leaf) for leaf in inputs]
    _check_memory(program, inputs)
    values = _value_guard(program, leaves, guard_nodes, expected)
    if values is not None and program.signature.micro_batches > 1:
        _check_branches(program, values)
    free = [leaf.value for leaf in leaves if leaf.role is Role.FREE]
    found, states = outcome.found, {leaf.fqn: leaf.value for leaf in leaves}
    reads = [*found.reads, *step.scaler_reads()]
    outside, names = Modules(outcome.outside, free), Names(found.names)
    guards = Guards(step, reads, outside, names, found.aliases, states, outcome.renewed)
    return Captured(
        program,
        leaves,
        guards,
        values,
        outcome.out_tree,
        outcome.calls,
        outcome.loss_path,
        step.structure(),
        outcome.own_update,
        outcome.side_effects,
        outcome.reduced,
        tuple(outcome.tape.compiled),
    )


def _functional(
    outcome: Outcome, *, per_kind: bool
) -> tuple[Program, Sequence[Any], Sequence[Any]]:
    """The program, the nodes that it was specialised for, and their values."""
    inputs = [leaf for leaf, _ in outcome.leaves]
    specs = [spec for spec, _ in outcome.outputs]
    tape = outcome.tape
    if per_kind:
        tape = with_kinds(tape, outcome.leaves, outcome.outputs)
    written = graph_of(tape, outcome.leaves, outcome.outputs)
    may_trace = tape is outcome.tape
    found = functionalize(written.gm, written.mode, inputs, specs, may_trace=may_trace)
    if found is None:
        return _functional(outcome, per_kind=False)
    move_handed(found[0])
    return (*found, written.guard_values)


def _value_guard(
    program: Program, leaves: Sequence[Leaf], nodes: Sequence[Any], expected: Sequence[Any]
) -> ValueGuard | None:
    """The branches that Python took on numbers: a small program over them and step counters."""
    wanted = [
        (node, value)
        for node, value in zip(nodes, expected, strict=True)
        if isinstance(node, fx.Node)
    ]
    if not wanted:
        return None
    needed: set[fx.Node] = set()
    pending = [node for node, _ in wanted]
    while pending:
        node = pending.pop()
        if node not in needed:
            needed.add(node)
            pending.extend(node.all_input_nodes)
    graph = fx.Graph()
    copies: dict[fx.Node, fx.Node] = {}
    positions = []
    for position, node in enumerate(program.placeholders):
        if node in needed:
            positions.append(position)
    for node in program.nodes:
        if node in needed:
            copies[node] = graph.node_copy(node, copies.__getitem__)
    unique = list(dict.fromkeys((copies[node], value) for node, value in wanted))
    graph.output(tuple(node for node, _ in unique))
    gm = graph_module(program.gm, graph)
    fqns = tuple(leaves[position].fqn for position in positions)
    return ValueGuard(gm, fqns, tuple(value for _, value in unique))


def _check_branches(program: Program, values: ValueGuard) -> None:
    """Refuse a branch that could be taken otherwise in the next micro-batch of the same call."""
    for out, value in program.returns():
        early = isinstance(value, fx.Node) and provenance(value).phase is not Phase.UPDATE
        if early and out.kind is OutputKind.UPDATE and out.target in values.fqns:
            raise NotSupported(
                f"the step branches on {out.target}, and writes it in each micro-batch.",
                where=provenance(value).line,
                fix="do it after the update, in a step hook of the optimizer, or between calls.",
            )


def _check_memory(program: Program, leaves: Sequence[Leaf]) -> None:
    """Refuse a step that writes one of two tensors that share memory and then reads the other."""
    tensors = {leaf.fqn: leaf for leaf in leaves if is_a(leaf.value, torch.Tensor)}
    written = program.signature.written
    for relation in sorted(relations({fqn: leaf.value for fqn, leaf in tensors.items()})):
        names = [name for name in tensors if name in dict(relation)]
        hit = [name for name in names if name in written]
        given = all(tensors[name].role is Role.INPUT for name in names)
        if given and len({storage_id(tensors[name].value) for name in names}) > 1:
            continue  # several tensors over one NumPy array: each call looks for those
        if hit:
            others = ", ".join(name for name in names if name != hit[0])
            raise SharedMemory(
                f"The step writes {hit[0]}, which shares memory with {others}.",
                fix="pass it once, or clone() it before." if given else "",
            )
