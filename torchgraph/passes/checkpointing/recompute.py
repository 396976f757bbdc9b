"""Recompute: lets the backward compute what it reads of the forward, instead of keeping it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import fx

from ..._torch import storage_id
from ...ir import effects
from ...ir.aliasing import alias_sources, escaping, refresh_views
from ...ir.batch_norms import is_batch_norm
from ...ir.program import Phase, Program, Role, Saving, provenance
from ...ir.rewriter import Rewriter
from ...ir.values import leaves, tensors_of
from . import coins

_FROM_OUTSIDE = (Role.INPUT, Role.FREE, Role.ACCUMULATOR)


@dataclass(frozen=True)
class CheckpointedRegion:
    """A part of the forward that the backward repeats on its own, from what enters it."""

    name: str
    number: int


def is_forward(node: fx.Node) -> bool:
    """True for an op of the forward part."""
    return node.op == "call_function" and provenance(node).phase is Phase.FORWARD


def bytes_by_storage(node: fx.Node) -> dict[int, int]:
    """The memory of a node's value."""
    known = filter(_is_known, tensors_of(node))
    return {storage_id(tensor): tensor.numel() * tensor.element_size() for tensor in known}


def activations(program: Program) -> set[fx.Node]:
    """The forward ops that depend on more than parameters: a cast of a weight is none."""
    roles = {node: spec.role for spec, node in program.inputs()}
    found: set[fx.Node] = set()
    for node in program.nodes:
        if is_forward(node) and any(
            source in found or roles.get(source) in _FROM_OUTSIDE for source in node.all_input_nodes
        ):
            found.add(node)
    return found


class Recompute:
    """The rewrite of one program so that its backward recomputes activations.

    A value stays kept when it leaves its region, when ``keeps`` says so, and when computing it
    again would not give it again: draws, writes, and batch norms, which move their statistics.
    """

    def __init__(
        self,
        program: Program,
        edit: Rewriter,
        regions: Mapping[fx.Node, CheckpointedRegion],
        keeps: Callable[[fx.Node], bool],
    ) -> None:
        self._program = program
        self._edit = edit
        self._regions = regions
        self._order = {node: place for place, node in enumerate(program.nodes)}
        self._escaping = escaping(program)
        self._dropped = self._choose(keeps)
        self._copies: dict[fx.Node, fx.Node] = {}
        self._packed: dict[fx.Node, CheckpointedRegion] = {}
        """The bools that draws are kept as."""
        self._repeated: dict[CheckpointedRegion, int] = {}

    def run(self) -> None:
        """Rewrite the backward to read copies, and note what came of it."""
        before = self._kept()
        for node in list(self._program.nodes):
            if node.op != "call_function" or is_forward(node):
                continue
            for source in node.all_input_nodes:
                if source in self._dropped:
                    self._edit.rewire(node, source, self._copy(source, node))
        if not self._copies:
            return
        for node in sorted(self._dropped, key=self._order.__getitem__, reverse=True):
            if not node.users:
                self._edit.erase(node)
        refresh_views(self._program)
        self._note(before, self._kept())

    # --- what is dropped --------------------------------------------------------------------------

    def _choose(self, keeps: Callable[[fx.Node], bool]) -> set[fx.Node]:
        kept: set[fx.Node] = set()
        for node in reversed(list(self._regions)):
            region = self._regions[node]
            leaves_region = any(
                is_forward(user) and self._regions.get(user) != region for user in node.users
            )
            if leaves_region or node in kept or keeps(node) or not self._repeats(node):
                kept.add(node)
                kept.update(alias_sources(node))
        dropped: set[fx.Node] = set()
        for node in self._regions:
            sources = alias_sources(node)
            parts = [source for source in sources if source in self._regions]
            if node in kept or (sources and not any(part in dropped for part in parts)):
                continue  # a view of what is there costs nothing
            dropped.add(node)
        return dropped

    def _repeats(self, node: fx.Node) -> bool:
        """True when running the op again gives the same values and does nothing else."""
        if self._is_coin(node):
            return True
        values = list(leaves(node.meta.get("val")))
        known = all(value is None or _is_known(value) for value in values)
        return (
            known
            and any(isinstance(value, torch.Tensor) for value in values)
            and effects.of(node).pure
            and node not in self._escaping
            and not is_batch_norm(node.target)
        )

    def _is_coin(self, node: fx.Node) -> bool:
        return coins.is_coin(node) and node not in self._escaping

    # --- copies -----------------------------------------------------------------------------------

    def _copy(self, node: fx.Node, before: fx.Node) -> fx.Node:
        """The value of a dropped node, computed again before ``before`` unless it has been."""
        for needed in self._missing(node):
            region = self._regions[needed]
            if self._is_coin(needed):
                self._copies[needed] = self._unpacked(needed, before, region)
            else:
                self._copies[needed] = self._edit.repeat(
                    needed, self._copies, before=before, region=region.number
                )
            self._repeated[region] = self._repeated.get(region, 0) + 1
        return self._copies[node]

    def _missing(self, node: fx.Node) -> list[fx.Node]:
        """The dropped values to compute again for ``node``, itself last."""
        found: set[fx.Node] = set()
        waiting = [node]
        while waiting:
            one = waiting.pop()
            if one in found or one in self._copies or one not in self._dropped:
                continue
            found.add(one)
            if not self._is_coin(one):
                waiting.extend(one.all_input_nodes)
        return sorted(found, key=self._order.__getitem__)

    def _unpacked(self, draw: fx.Node, before: fx.Node, region: CheckpointedRegion) -> fx.Node:
        packed = coins.pack(draw, self._edit)
        self._packed[packed] = region
        return coins.unpack(packed, draw, self._edit, before=before, region=region.number)

    # --- figures ----------------------------------------------------------------------------------

    def _kept(self) -> dict[CheckpointedRegion, int]:
        """Bytes of the values that the backward reads of the forward, by the region they are in."""
        found: dict[CheckpointedRegion, int] = {}
        seen: set[int] = set()
        for node in self._program.nodes:
            region = self._regions.get(node) or self._packed.get(node)
            if region is None or all(is_forward(user) for user in node.users):
                continue
            for storage, size in bytes_by_storage(node).items():
                if storage not in seen:
                    seen.add(storage)
                    found[region] = found.get(region, 0) + size
        return found

    def _note(
        self, before: Mapping[CheckpointedRegion, int], after: Mapping[CheckpointedRegion, int]
    ) -> None:
        for region, count in self._repeated.items():
            self._edit.savings.append(
                Saving(
                    region.name, region.number, before.get(region, 0), after.get(region, 0), count
                )
            )


def _is_known(value: object) -> bool:
    """True for a tensor whose shape does not depend on values."""
    return isinstance(value, torch.Tensor) and all(type(size) is int for size in value.shape)
