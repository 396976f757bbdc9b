"""Activation checkpointing: the backward recomputes activations that the forward does not keep."""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from torch import fx

from ..._torch import OpOverload
from ..._torch.functorch import knapsack
from ...ir.aliasing import alias_sources
from ...ir.program import Program, provenance
from ...ir.rewriter import Rewriter
from ...ir.values import with_values
from ...options.options import CheckpointPolicy
from ..base import Pass
from . import segments
from .recompute import CheckpointedRegion, Recompute, activations, bytes_by_storage, is_forward

_FLOPS_PER_BYTE = 8
"""The multiplications that a processor does in the time of moving a byte, about."""


@dataclass(frozen=True)
class ActivationCheckpointing(Pass):
    """Drops activations after the forward and computes them again where the backward reads them.

    ``modules`` says (path, whether) for modules; it holds for the modules that run inside, unless
    they have a setting of their own, and each call is a region of its own. All other activations
    follow ``policy``, see `GraphConfig.set_activation_checkpointing`. What leaves a region is kept.
    OneFlow: the pass ``Checkpointing``.
    """

    modules: tuple[tuple[str, bool], ...] = ()
    policy: CheckpointPolicy = None
    name: ClassVar[str] = "activation_checkpointing"

    def exact(self, program: Program) -> bool:
        """Always: the same op on the same values gives the same values."""
        return True

    def apply(self, program: Program, edit: Rewriter) -> None:
        """Rewrite the regions chosen by modules and those chosen by the policy together."""
        own = activations(program)
        regions, decided = _by_modules(own, program, dict(self.modules))
        rest = [node for node in _first_forward(program) if node in own - decided]
        keeps: set[fx.Node] = set()
        if self.policy is not None and rest:
            chosen, keeps = self._by_policy(rest, len(regions), edit)
            regions.update(chosen)
        if regions:
            ordered = {node: regions[node] for node in program.nodes if node in regions}
            Recompute(program, edit, ordered, keeps.__contains__).run()

    def _by_policy(
        self, nodes: Sequence[fx.Node], first: int, edit: Rewriter
    ) -> tuple[dict[fx.Node, CheckpointedRegion], set[fx.Node]]:
        values = segments.values_of(nodes)
        found = segments.cheapest(values, len(nodes))
        regions = segments.regions_of(nodes, found.cuts, first)
        if isinstance(self.policy, (int, float)):
            total = sum(value.size for value in values if value.kept)
            given = self.policy
            budget = int(given * total) if isinstance(given, float) else given
            if budget >= total:
                return {}, set()
            if budget < found.peak:
                edit.refuse(
                    nodes[0],
                    f"the budget is {budget} bytes, and {found.peak} is the least that can be had",
                )
            return regions, _worth_keeping(values, found.cuts, budget - found.peak)
        return regions, {node for node in nodes if _is_one_of(node, self.policy)}


def _first_forward(program: Program) -> list[fx.Node]:
    """The forward ops up to the first op of a backward."""
    found: list[fx.Node] = []
    for node in program.nodes:
        if node.op == "call_function" and not is_forward(node):
            break
        if node.op == "call_function":
            found.append(node)
    return found


def _by_modules(
    nodes: set[fx.Node], program: Program, settings: Mapping[str, bool]
) -> tuple[dict[fx.Node, CheckpointedRegion], set[fx.Node]]:
    """Regions of the modules that are to be checkpointed, and all nodes that a setting is about."""
    numbers: dict[tuple[str, int], CheckpointedRegion] = {}
    regions: dict[fx.Node, CheckpointedRegion] = {}
    decided: set[fx.Node] = set()
    for node in program.nodes if settings else ():
        if node not in nodes:
            continue
        call = next((c for c in reversed(provenance(node).calls) if c[0] in settings), None)
        if call is None:
            continue
        decided.add(node)
        if settings[call[0]]:
            regions[node] = numbers.setdefault(call, CheckpointedRegion(call[0], len(numbers)))
    return regions, decided


@functools.cache
def _flops() -> Mapping[object, Callable[..., float]]:
    """torch's formulas, by op. Their module imports Triton, where there is one."""
    counter = importlib.import_module("torch.utils.flop_counter")
    found: Mapping[object, Callable[..., float]] = counter.flop_registry
    return found


def _is_one_of(node: fx.Node, policy: CheckpointPolicy) -> bool:
    """True when the policy keeps the results of the node's op."""
    target = node.target
    if not isinstance(target, OpOverload):
        return False
    if policy == "matmuls":
        return target.overloadpacket in _flops()
    kept = policy if isinstance(policy, tuple) else ()
    return target in kept or target.overloadpacket in kept


def _worth_keeping(
    values: Sequence[segments.Activation], cuts: Sequence[int], room: int
) -> set[fx.Node]:
    """The values that save the most work and fit into ``room`` bytes."""
    items = [v for v in values if v.kept and v.size and not segments.crosses(v, cuts)]
    if room <= 0 or not items:
        return set()
    whole = sum(item.size for item in items)
    work = [float(_work(item.maker)) for item in items]
    chosen = knapsack([item.size / whole for item in items], work, min(1.0, room / whole))
    return {items[place].maker for place in chosen}


def _work(node: fx.Node) -> int:
    """The cost of running an op, in FLOPs; bytes moved are converted."""
    if not isinstance(node.target, OpOverload):
        return max((_work(source) for source in alias_sources(node)), default=0)
    moved = sum(sum(bytes_by_storage(one).values()) for one in (node, *node.all_input_nodes))
    count = _flops().get(node.target.overloadpacket)
    if count is None:
        return _FLOPS_PER_BYTE * moved
    args, kwargs = with_values((node.args, dict(node.kwargs)))
    return int(count(*args, **kwargs, out_val=node.meta["val"])) + _FLOPS_PER_BYTE * moved
