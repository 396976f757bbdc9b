"""Constant folding: compute once, before the first step, what does not depend on the inputs."""

from __future__ import annotations

import operator
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import fx

from .. import library
from .._torch import FakeTensor, OpOverload, schema_of
from ..ir import effects, values
from ..ir.aliasing import escaping
from ..ir.program import Program
from ..ir.rewriter import Rewriter
from ..ir.verify import PREDICATES
from .base import Pass


@dataclass(frozen=True)
class FoldConstants(Pass):
    """Replaces calls whose arguments are all constants by a constant: masks, position ids, tables.

    What a bare factory such as ``zeros`` makes stays a call: filling is as fast as reading. A
    result that reaches an output stays too, for its memory is the user's. A predicate about
    constants is looked at once and goes when it holds.
    """

    name: ClassVar[str] = "fold"
    rows: ClassVar[bool] = True
    removes: ClassVar[frozenset[str]] = frozenset({PREDICATES})
    max_elements: int = 2**20
    """Larger results are computed in each step."""

    def exact(self, program: Program) -> bool:
        """Always: the same op runs on the same device, once."""
        return True

    def apply(self, program: Program, edit: Rewriter) -> None:
        """Compute and replace the last constant node of each constant chain."""
        constant = self._constant_nodes(program)
        outward = escaping(program)
        known: dict[fx.Node, Any] = {}
        for node in constant:
            if node in outward or not _is_worthwhile(node, constant):
                continue
            with values.neutral():
                result = _compute(node, program, known)
            if values.difference(node.meta["val"], result) == "":
                edit.replace(node, edit.constant(result, node.name, before=node, like=node))
        for node in [node for node in program.nodes if effects.of(node).expects]:
            if _holds(node, program, constant):
                edit.erase(node)

    def _constant_nodes(self, program: Program) -> dict[fx.Node, None]:
        """In program order."""
        found: dict[fx.Node, None] = {}
        for node in program.nodes:
            known = all(argument in found for argument in node.all_input_nodes)
            if known and _is_deterministic(node) and self._fits(node.meta.get("val")):
                found[node] = None
        return found

    def _fits(self, value: object) -> bool:
        """Tensors on devices that are here, with a known and small number of elements."""
        return all(
            isinstance(leaf, FakeTensor)
            and leaf.layout is torch.strided
            and all(type(size) is int for size in leaf.shape)
            and leaf.numel() <= self.max_elements
            and _is_present(leaf.device)
            for leaf in values.leaves(value)
        )


def _is_deterministic(node: fx.Node) -> bool:
    if node.op == "get_attr":
        return True
    if node.op != "call_function" or not effects.of(node).pure:
        return False
    if not isinstance(node.target, OpOverload):
        return node.target is operator.getitem
    unset = schema_of(node.target).name.startswith(("aten::empty", "aten::new_empty"))
    return not unset and torch.Tag.nondeterministic_bitwise not in node.target.tags


def _is_present(device: torch.device) -> bool:
    return device.type == "cpu" or (device.type == "cuda" and torch.cuda.is_available())


def _is_worthwhile(node: fx.Node, constant: dict[fx.Node, None]) -> bool:
    """A call with constant arguments that something not constant reads."""
    computed = node.op == "call_function" and bool(node.all_input_nodes)
    single = isinstance(node.meta.get("val"), torch.Tensor)
    return computed and single and any(user not in constant for user in node.users)


def _compute(node: fx.Node, program: Program, known: dict[fx.Node, Any]) -> Any:
    """Run the chain that ends at ``node``; ``known`` holds what is computed already."""
    waiting = [node]
    while waiting:
        current = waiting[-1]
        missing = [argument for argument in current.all_input_nodes if argument not in known]
        if missing:
            waiting.extend(missing)
            continue
        known[current] = _run(current, program, known)
        waiting.pop()
    return known[node]


def _holds(node: fx.Node, program: Program, constant: dict[fx.Node, None]) -> bool:
    """True for a predicate about constants that holds in each step."""
    if not all(used in constant or used.op == "get_attr" for used in node.all_input_nodes):
        return False
    try:
        with values.neutral():
            _compute(node, program, {})
    except library.ValueMoved:
        return False
    return True


def _run(node: fx.Node, program: Program, known: dict[fx.Node, Any]) -> Any:
    if node.op == "get_attr":
        return operator.attrgetter(str(node.target))(program.gm)
    args, kwargs = fx.node.map_arg((node.args, node.kwargs), known.__getitem__)
    return node.target(*args, **kwargs)  # type: ignore[operator]  # an op overload or getitem
