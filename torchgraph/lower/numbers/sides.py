"""The host's nodes of a program: numbers, step counters, and the nodes they depend on.

A CUDA Graph replays what a GPU does. What Python computes between two replays is the host's;
all else is the device's.
"""

from __future__ import annotations

import operator
from collections.abc import Iterator

import torch
from torch import fx

from ... import library
from ...ir.nodes import item, operands, sequence
from ...ir.program import Program
from ...ir.values import tensors_of
from ...passes.fusions.model_update import op as update
from . import numbers

UPDATES = {update.functional(rule): rule for rule in update.RULES}
"""Our update ops that take Python numbers, and the names of their rules."""


def host_side(program: Program, device: torch.device) -> set[fx.Node]:
    """The nodes that do not belong to ``device``.

    On a CPU, which stands in for a GPU in tests: numbers and the 0-dim tensors they are read from.
    """
    found: set[fx.Node] = set()
    for node in reversed(list(program.nodes)):
        if node.op == "output" or node.target is library.keep:
            continue
        if node in found or _is_host(node, device):
            found.add(node)
            if node.op == "call_function":
                found.update(source for source in node.all_input_nodes if is_small(source))
        if node.target in UPDATES:
            found.update(step for step in steps(node) if is_small(step))
    for node in program.nodes:
        if node.target is library.keep and found.issuperset(old_states(node)):
            found.update((node, *node.users))
    return found


def old_states(choice: fx.Node) -> list[fx.Node]:
    """The old states in a choice between old and new ones, kept by a skipped step."""
    return operands(choice)


def steps(node: fx.Node) -> list[fx.Node]:
    """The step counters that an update op takes."""
    lists = update.RULES[UPDATES[node.target]].lists  # type: ignore[index]  # an op
    return operands(node, lists.index("steps")) if "steps" in lists else []


def counted(node: fx.Node) -> Iterator[tuple[fx.Node, fx.Node]]:
    """(result, step counter before) for each result of an update op that is a new step counter."""
    lists = update.RULES[UPDATES[node.target]].lists  # type: ignore[index]  # an op
    if "steps" not in lists:
        return
    taken = node.args
    first = sum(len(sequence(taken[i])) for i in range(lists.index("steps")) if lists[i] != "grads")
    before = steps(node)
    for user in node.users:
        if user.target is operator.getitem and first <= item(user) < first + len(before):
            yield user, before[item(user) - first]


def is_small(node: fx.Node) -> bool:
    """True for a number, and for tensors without dimensions on the CPU."""
    return all(tensor.ndim == 0 and tensor.device.type == "cpu" for tensor in tensors_of(node))


def _is_host(node: fx.Node, device: torch.device) -> bool:
    if numbers.is_number(node):
        return True
    tensors = list(tensors_of(node))
    on_cpu = bool(tensors) and all(tensor.device.type == "cpu" for tensor in tensors)
    return on_cpu and device.type != "cpu" and not _is_counted(node)


def _is_counted(node: fx.Node) -> bool:
    """True for the new step counter that an update op returns: the host counts by itself."""
    source = node.args[0] if node.target is operator.getitem else None
    return isinstance(source, fx.Node) and source.target in UPDATES
