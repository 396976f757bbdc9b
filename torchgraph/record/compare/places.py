"""Comparison of Python places after a step: eager's contents against the program's."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch

from ...effects.entry_state import Item, Named, tensors_inside
from ...effects.side_effects import GradientOf, OnArgument, SideEffects
from ...effects.trees import Filling, Fixed
from ...live.inputs import Call
from ...structure import Unfit

_UNTOLD = object()


def differs_in_places(
    side_effects: SideEffects, tensors: Sequence[torch.Tensor], call: Call, copy: Call
) -> Iterator[tuple[str, object, object]]:
    """(name, eager's value, the program's value) of tensors and constants in places.

    Args:
        tensors: all that the program returned.
        call: as eager ran it; ``copy``: as the program did.
    """
    filling = Filling(tensors, copy)
    for number, one in enumerate(side_effects.assigned):
        there = _lies_at(one.place, call)
        if there is _UNTOLD:
            continue
        name = f"what it leaves at {_called(one.place) or number}"
        if isinstance(one.tree, Fixed):
            yield name, there, one.tree.value
            continue
        try:
            pair = tensors_inside(there), tensors_inside(filling.filled(one.tree))
        except Unfit:
            continue
        if len(pair[0]) != len(pair[1]):
            yield name, f"{len(pair[0])} tensors", f"{len(pair[1])} tensors"
            continue
        for expected, got in zip(*pair, strict=True):
            yield name, expected, got


def _lies_at(place: object, call: Call) -> object:
    """The present value of a place; none for places that are appended or added to."""
    match place:
        case OnArgument():
            return getattr(call.tensors[place.position], place.name, None)
        case Item():
            return place.read()
        case GradientOf() | Named():
            return place["value"]
    return _UNTOLD


def _called(place: object) -> str:
    if isinstance(place, Named):
        return str(place.name.shown)
    if isinstance(place, GradientOf):
        return "a .grad"
    name = getattr(place, "name", "")
    return name if isinstance(name, str) else ""
