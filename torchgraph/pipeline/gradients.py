"""Shares of gradients: each stage sums its own terms of the gradient of a shared weight."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import torch
from torch import fx

from ..ir.program import Phase, provenance
from ..lower.split import Gradient, terms_of
from .stages import Place, StagePart

aten = torch.ops.aten


@dataclass(frozen=True)
class Share:
    """The terms of a gradient that one stage sums over the micro-batches."""

    name: str
    fqn: str
    place: Place
    terms: tuple[fx.Node, ...]
    """What each micro-batch adds, one after the other."""


@dataclass(frozen=True)
class Shared:
    """A gradient: where the program reads it, and how it is summed from its shares."""

    mark: fx.Node
    tree: fx.Node | tuple[object, object]
    """A share's last term, or two trees of which it is the sum."""
    shares: Mapping[fx.Node, Share]
    """By their last terms."""


def is_sum(node: fx.Node) -> bool:
    """True for an addition of two gradients that autograd made and that one node reads."""
    tensors = node.all_input_nodes
    return (
        node.target is aten.add.Tensor
        and provenance(node).phase is Phase.BACKWARD
        and not node.kwargs
        and len(node.args) == len(tensors) == 2
        and len({tuple(one.meta["val"].shape) for one in (node, *tensors)}) == 1
        and len(node.users) == 1
    )


def shared(
    gradient: Gradient, places: Mapping[fx.Node, Place], stage: int, anywhere: set[fx.Node]
) -> tuple[Shared, set[fx.Node]]:
    """The shares of a gradient, and the additions that are left to the update.

    Args:
        stage: where a gradient is added up that no stage computes.
    """
    left: set[fx.Node] = set()

    def tree(node: fx.Node) -> fx.Node | tuple[object, object]:
        if is_sum(node) and len(set(_stages(node, places, left))) > 1:
            left.add(node)
            first, second = node.all_input_nodes
            return tree(first), tree(second)
        return node

    whole = tree(gradient.value)
    shares: dict[fx.Node, Share] = {}
    for number, leaf in enumerate(_leaves(whole)):
        known = places.get(leaf)
        place = known if known is not None and known.part else Place(StagePart.BACKWARD, stage)
        name = f"{gradient.name}.{number}" if isinstance(whole, tuple) else gradient.name
        terms = terms_of(leaf) if leaf not in anywhere else [leaf]
        sums, node = terms[1:], leaf
        for term in reversed(sums):  # what adds them up is written for each micro-batch
            if len(node.users) == 1:
                left.add(node)
            node = next(one for one in node.all_input_nodes if one is not term)
        shares[leaf] = Share(name, gradient.fqn, place, tuple(terms))
    return Shared(gradient.mark, whole, shares), left


def _stages(node: fx.Node, places: Mapping[fx.Node, Place], left: set[fx.Node]) -> Iterator[int]:
    """The stages of the terms of a sum."""
    for one in node.all_input_nodes:
        if is_sum(one):
            yield from _stages(one, places, left)
        elif one in places:
            yield places[one].stage


def _leaves(tree: object) -> Iterator[fx.Node]:
    if isinstance(tree, fx.Node):
        yield tree
    elif isinstance(tree, tuple):
        for one in tree:
            yield from _leaves(one)
