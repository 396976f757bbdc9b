"""Capture: from a Step and one call to a functional Program with its Guards."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import torch
from torch import fx

from .._torch import storage_id
from ..collection import paused
from ..counters import counters
from ..errors import NotSupported, SharedMemory
from ..guards import Guards, Modules, ValueGuard
from ..options import Options
from ..program import CallRecord, OutputKind, Phase, Program, Role, provenance
from .functionalize import functionalize
from .inputs import Call, hollow
from .micro_batch import micro_batch, split_inputs
from .skip import keep_skipped
from .slots import make_slots
from .step import Leaf, Step
from .trace import Recording, Tracer
from .update import Created, Write


@dataclass
class Captured:
    """A program with everything that binds it to the user's objects."""

    program: Program
    leaves: list[Leaf]
    """In the order of the signature's inputs."""
    guards: Guards
    value_guard: ValueGuard | None
    out_tree: Any
    made: list[tuple[Created, torch.Tensor]]
    """Slots with their first values, to be put into the optimizers when the first run succeeds."""
    writes: list[Write]
    creates: dict[str, Created]
    """By the fqn that a CREATE output names."""
    slot_orders: list[tuple[int, Any, tuple[Any, ...]]]
    """(optimizer, owner, keys) of the slots that ``made``, ``writes`` and CREATE outputs fill."""
    calls: list[CallRecord]
    loss_path: str | None
    structure: tuple[Any, ...]
    """``Step.structure()`` at capture."""

    @property
    def serves_once(self) -> bool:
        """True when the program creates optimizer state: the next step needs another."""
        kinds = [out.kind for out in self.program.signature.outputs]
        return OutputKind.CREATE in kinds or bool(self.writes)


def capture(
    step: Step,
    build: Callable[..., Any],
    call: Call,
    *,
    watched: Sequence[tuple[str, Any]],
    graph_class: type,
    depth: int,
    options: Options,
) -> Captured:
    """Trace one call of ``build`` and the optimizer step that it implies.

    Nothing of the user's changes: parameters, buffers, optimizers, random generators, attributes.

    Raises:
        CaptureError and its kin; whatever ``build`` raises.
    """
    counters.captures += 1
    split: frozenset[str] = frozenset()
    if step.optimizers and options.micro_batches > 1:
        split = split_inputs(call, build, options)
        call = micro_batch(call, build, options)
    tracer = Tracer(
        step,
        build,
        call,
        watched=watched,
        graph_class=graph_class,
        depth=depth,
        options=options,
    )
    with paused():  # a trace makes many objects and no garbage: a quarter of its time
        recording = tracer.run()
        made = make_slots(recording, step.optimizers)
        program, guard_nodes = functionalize(recording)
    program.signature = replace(
        program.signature,
        inputs=tuple(replace(s, split=s.fqn in split) for s in program.signature.inputs),
        groups=tuple(step.parameter_groups()),
        micro_batches=options.micro_batches if step.optimizers else 1,
    )
    keep_skipped(program, recording.written)
    leaves = [_without_batch(leaf) for leaf in recording.inputs]
    _check_memory(program, recording.inputs)
    values = _value_guard(program, leaves, guard_nodes, recording)
    if values is not None and program.signature.micro_batches > 1:
        _check_branches(program, values)
    free = [leaf.value for leaf in leaves if leaf.role is Role.FREE]
    reads = [*recording.reads, *step.scaler_reads()]
    guards = Guards(step, reads, Modules(recording.outside, free))
    return Captured(
        program,
        leaves,
        guards,
        values,
        recording.out_tree,
        made,
        recording.writes,
        {new.fqn: new for new in recording.creates},
        recording.slot_orders,
        recording.calls,
        recording.loss_path,
        step.structure(),
    )


def _value_guard(
    program: Program, leaves: Sequence[Leaf], nodes: Sequence[Any], recording: Recording
) -> ValueGuard | None:
    """The Python branches that the trace took: a small program over numbers and step counters."""
    wanted = [
        (node, value)
        for node, value in zip(nodes, recording.guard_values, strict=True)
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
    unique = list({(copies[node], value) for node, value in wanted})
    graph.output(tuple(node for node, _ in unique))
    gm = fx.GraphModule(program.gm, graph)
    fqns = tuple(leaves[position].fqn for position in positions)
    return ValueGuard(gm, fqns, tuple(value for _, value in unique))


def _check_branches(program: Program, values: ValueGuard) -> None:
    """Refuse a branch that could be taken otherwise in the next micro-batch of the same call."""
    for out, value in zip(program.signature.outputs, program.results, strict=True):
        early = isinstance(value, fx.Node) and provenance(value).phase is not Phase.UPDATE
        if early and out.kind is OutputKind.UPDATE and out.target in values.fqns:
            raise NotSupported(
                f"build branches on {out.target}, and writes it in each micro-batch.",
                where=provenance(value).line,
                fix="do it after the update, in a step hook of the optimizer, or between calls.",
            )


def _without_batch(leaf: Leaf) -> Leaf:
    """A program must not keep the batch alive that it was captured with."""
    if leaf.role is not Role.INPUT:
        return leaf
    return Leaf(leaf.fqn, leaf.role, [], leaf.path, hollow(leaf.value))


def _check_memory(program: Program, leaves: Sequence[Leaf]) -> None:
    """Refuse a step that writes one of two tensors that share memory and then reads the other."""
    owners: dict[int, list[int]] = {}
    for position, leaf in enumerate(leaves):
        if isinstance(leaf.value, torch.Tensor) and leaf.value.numel():
            owners.setdefault(storage_id(leaf.value), []).append(position)
    written = {out.target for out in program.signature.outputs if out.kind is OutputKind.UPDATE}
    for group in owners.values():
        names = [leaves[i].fqn for i in group]
        hit = [name for name in names if name in written]
        if len(group) > 1 and hit and _overlap([leaves[i].value for i in group]):
            others = ", ".join(name for name in names if name != hit[0])
            raise SharedMemory(f"The step writes {hit[0]}, which shares memory with {others}.")


def _overlap(tensors: Sequence[torch.Tensor]) -> bool:
    spans = sorted(_span(tensor) for tensor in tensors)
    return any(after[0] < before[1] for before, after in pairwise(spans))


def _span(tensor: torch.Tensor) -> tuple[int, int]:
    start = tensor.data_ptr()
    last = sum(
        (size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True)
    )
    return start, start + (last + 1) * tensor.element_size()
