"""Random numbers of a pipeline: each stage draws what eager would, from the same generator.

Eager draws for one micro-batch after the other, stage by stage. So each rank draws all numbers of
a step once, in that order, notes where in the generator its own stages begin, and throws them away.
All ranks are to have the same generator: with the same seed they have.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import torch
from torch import fx

from .._torch import OpOverload, schema_of
from ..distributed.errors import NotPipelined
from ..ir import effects
from ..ir.program import TensorMeta, provenance
from .stages import Place

_KNOWN = frozenset(
    {
        *("aten::bernoulli", "aten::native_dropout", "aten::normal_functional", "aten::rand"),
        *("aten::rand_like", "aten::randint", "aten::randint_like", "aten::randn"),
        *("aten::randn_like", "aten::randperm", "aten::uniform"),
        *("torchgraph::bernoulli", "torchgraph::normal"),
    }
)
"""Draws that take as many random numbers whatever the values of their arguments are."""

States = Mapping[tuple[int, int], torch.Tensor]
"""(stage, micro-batch) -> the generator as its forward begins."""


class Draws:
    """The random ops of one micro-batch.

    Args:
        places: where each node runs.
        early: what runs for each micro-batch, in order.

    Raises:
        NotPipelined: a draw of another kind, on a GPU, in the backward, or out of order.
    """

    def __init__(self, places: Mapping[fx.Node, Place], early: Sequence[fx.Node]) -> None:
        self._calls: list[tuple[int, Callable[[], object]]] = []
        for node in early:
            if effects.of(node).random:
                place = places[node]
                if why := self._refused(node, place):
                    raise NotPipelined(
                        f"{node.target} draws random numbers {why}, which a pipeline of stages "
                        "cannot hold yet.",
                        where=provenance(node).line,
                    )
                self._calls.append((place.stage, _call(node)))

    def _refused(self, node: fx.Node, place: Place) -> str:
        assert isinstance(node.target, OpOverload)
        value = node.meta.get("val")
        tensors = [one for one in (value, *_values(node)) if isinstance(one, torch.Tensor)]
        if place.part:
            return "in the backward"
        if any(tensor.device.type != "cpu" for tensor in tensors):
            return "on a GPU"
        if schema_of(node.target).name not in _KNOWN or len(tensors) < len(node.all_input_nodes):
            return "by values"
        if self._calls and self._calls[-1][0] > place.stage:
            return f"for stage {place.stage} after those of stage {self._calls[-1][0]}"
        return ""

    def __bool__(self) -> bool:
        return bool(self._calls)

    def states(self, own: Collection[int], micro_batches: int) -> States:
        """Generator states at which ``own`` stages begin; draws the numbers of the whole step."""
        found: dict[tuple[int, int], torch.Tensor] = {}
        for number in range(micro_batches):
            for stage, draw in self._calls:
                if stage in own and (stage, number) not in found:
                    found[stage, number] = torch.get_rng_state()
                draw()
        return found


def _values(node: fx.Node) -> list[Any]:
    return [one.meta.get("val") for one in node.all_input_nodes]


def _call(node: fx.Node) -> Callable[[], object]:
    """Advance the generator as ``node`` does, without a use of the numbers."""
    like = {one: TensorMeta.of(one.meta["val"]) for one in node.all_input_nodes}
    target: Any = node.target

    def draw() -> object:
        made: dict[fx.Node, Any] = {
            one: torch.empty_strided(meta.shape, meta.stride, dtype=meta.dtype).zero_()
            for one, meta in like.items()
        }
        args, kwargs = fx.map_arg((node.args, dict(node.kwargs)), made.__getitem__)
        return target(*args, **kwargs)

    return draw
