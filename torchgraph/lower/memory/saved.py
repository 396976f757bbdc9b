"""Fewer values kept for the backward part, with bitwise equal results.

The gradient of a clamp reads what the clamp gave instead of what it was given, which then dies. An
elementwise result whose arguments are kept anyway is computed again where the backward part reads
it.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import fx

from ..._torch import OpOverload, storage_id
from ...ir import effects
from ...ir.aliasing import alias_sources
from ...ir.program import Phase, Program, provenance
from ...ir.values import evaluate, mode_of, neutral, with_values

aten = torch.ops.aten

_LEAST_BYTES = 4096
"""Smaller results are not worth a second computation."""


def read_results(program: Program) -> int:
    """Let ``hardtanh_backward`` read the result of ``hardtanh``; the number of rewrites.

    Both lie strictly inside of the limits for the same elements.
    """
    seen: set[fx.Node] = set()
    count = 0
    for node in program.nodes:
        seen.add(node)
        if node.target is not aten.hardtanh_backward.default:
            continue
        gradient, argument, *limits = node.args
        assert isinstance(argument, fx.Node)
        for user in argument.users:
            clamps = user.target is aten.hardtanh.default and user in seen
            if clamps and _limits(user.args[1:]) == _limits(limits):
                node.args = (gradient, user, *limits)
                count += 1
                break
    return count


def _limits(given: Sequence[object]) -> tuple[object, ...]:
    return (*given, *(-1, 1)[len(given) :])


def compute_again(program: Program) -> int:
    """Compute elementwise results of the forward part anew for the backward part; how many."""
    cheap = [node for node in program.nodes if _is_cheap(node)]
    return sum(_Again(program, node).run() for node in cheap)


class _Again:
    """An elementwise result that the backward may recompute, with the forward's views of it."""

    def __init__(self, program: Program, node: fx.Node) -> None:
        self._program = program
        self._nodes = list(program.nodes)
        self._node = node
        self._chain = self._views()
        readers = dict.fromkeys(user for member in self._chain for user in member.users)
        self._readers = [user for user in readers if user not in self._chain]
        self._late = [user for user in self._readers if not _is_forward(user)]

    def run(self) -> bool:
        """Recompute the result in the backward if that saves memory; True when it was done."""
        if not self._late or len(self._late) == len(self._readers):
            return False
        position = {node: i for i, node in enumerate(self._nodes)}
        first = min(self._late, key=position.__getitem__)
        if first.op == "output" or not self._arguments_stay(position[first]):
            return False
        copies: dict[fx.Node, fx.Node] = {}
        graph, mode = self._program.gm.graph, mode_of(self._program)
        with graph.inserting_before(first), neutral():
            for member in self._chain:
                copy = graph.node_copy(member, lambda source: copies.get(source, source))
                args, kwargs = with_values((copy.args, copy.kwargs))
                copy.meta["val"] = evaluate(mode, copy.target, args, kwargs)  # memory of its own
                copies[member] = copy
        for user in self._late:
            for member, copy in copies.items():
                user.replace_input_with(member, copy)
        return True

    def _views(self) -> list[fx.Node]:
        found = [self._node]
        members = {self._node}
        for node in self._nodes:
            if _is_forward(node) and members.intersection(alias_sources(node)):
                members.add(node)
                found.append(node)
        return found

    def _arguments_stay(self, until: int) -> bool:
        """True when other readers keep all arguments of the node until then."""
        last: dict[int, int] = {}
        chain = set(self._chain)
        for position, node in enumerate(self._nodes):
            for source in node.all_input_nodes if node not in chain else ():
                last[_storage(source)] = position
        return all(
            source.op != "call_function" or last.get(_storage(source), -1) >= until
            for source in self._node.all_input_nodes
        )


def _is_forward(node: fx.Node) -> bool:
    return node.op == "call_function" and provenance(node).phase is Phase.FORWARD


def _is_cheap(node: fx.Node) -> bool:
    if not _is_forward(node) or not isinstance(node.target, OpOverload):
        return False
    value = node.meta.get("val")
    if not isinstance(value, torch.Tensor) or torch.Tag.pointwise not in node.target.tags:
        return False
    size = value.untyped_storage().nbytes()
    return type(size) is int and size >= _LEAST_BYTES and effects.of(node).pure


def _storage(node: fx.Node) -> int:
    value = node.meta.get("val")
    return storage_id(value) if isinstance(value, torch.Tensor) else id(node)
