"""Values that are sent from stage to stage, and values that a stage saves for its backward.

A value goes through each boundary between where it is made and where it is read, so that stages
talk to their neighbours alone.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import torch
from torch import fx

from ..distributed.errors import NotPipelined
from ..ir.program import TensorMeta, provenance
from .stages import Place, StagePart


@dataclass
class Routes:
    """The values of one micro-batch that are sent and saved, by the names of their nodes."""

    forward: dict[int, dict[str, TensorMeta]] = field(default_factory=dict)
    """Boundary i: what stage i hands to stage i + 1 after its forward."""
    backward: dict[int, dict[str, TensorMeta]] = field(default_factory=dict)
    """Boundary i: what stage i + 1 hands to stage i after its backward."""
    saved: dict[int, set[str]] = field(default_factory=dict)
    """What a stage keeps after its forward."""
    deferred: dict[int, set[str]] = field(default_factory=dict)
    """What a stage keeps after its backward, for its weights' part."""

    @classmethod
    def of(
        cls,
        count: int,
        made: Mapping[fx.Node, Place],
        read: Mapping[fx.Node, Iterable[Place]],
    ) -> Routes:
        """``made``: where each value is computed; ``read``: where others read it."""
        routes = cls()
        for boundary in range(count - 1):
            routes.forward[boundary], routes.backward[boundary] = {}, {}
        for stage in range(count):
            routes.saved[stage], routes.deferred[stage] = set(), set()
        for node, places in read.items():
            for place in places:
                routes._add(node, made[node], place)
        return routes

    def _add(self, node: fx.Node, made: Place, read: Place) -> None:
        meta = _meta_of(node, read)
        name, stage = node.name, made.stage
        if not made.part:
            for boundary in range(stage, read.stage):
                self.forward[boundary][name] = meta
            if read.part:
                self.saved[max(stage, read.stage)].add(name)
        if made.part or read.stage < stage:
            for boundary in range(read.stage, stage):
                self.backward[boundary][name] = meta
        if read.part is StagePart.WEIGHT:
            self.deferred[read.stage].add(name)


def _meta_of(node: fx.Node, read: Place) -> TensorMeta:
    value = node.meta.get("val")
    if not isinstance(value, torch.Tensor):
        raise NotPipelined(
            f"Stage {read.stage} of the pipeline reads {node.name}, which is no tensor, and is "
            "computed by another part of the step.",
            where=provenance(node).line,
        )
    return TensorMeta.of(value)


def readers(
    places: Mapping[fx.Node, Place], needs: Mapping[Place, Iterable[fx.Node]]
) -> dict[fx.Node, list[Place]]:
    """Value -> the other places that read it, in the order in which these run.

    Args:
        needs: what each place reads.
    """
    found: defaultdict[fx.Node, list[Place]] = defaultdict(list)
    for place in sorted(needs, key=lambda one: one.order):
        for node in needs[place]:
            if node in places and places[node] != place:
                found[node].append(place)
    return dict(found)
