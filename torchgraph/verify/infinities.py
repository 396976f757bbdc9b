"""Values that may be infinite without a fault, as a mask's, which a softmax removes."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import fx

from ..ir.ops import base_name
from ..ir.values import tensors_of

NAN, INFINITE = "nan", "infinite"

_PLACING = (
    *("full", "full_like", "new_full", "fill", "scalar_tensor", "where", "masked_fill"),
    *("index_fill", "scatter", "constant_pad_nd"),
)
"""Ops that put a number where they are told to, and compute with none."""


class Expected:
    """The nodes of a step whose values may be infinite, or NaN, without a fault.

    Args:
        good: of a good step of the same program, by node, what was not finite; None without one.
        given: the names of inputs that may hold infinities where there is no good step.
        narrow: what was infinite in the good step explains no infinity that was not there.
    """

    def __init__(
        self,
        good: Mapping[str, frozenset[str]] | None,
        given: frozenset[str],
        *,
        narrow: bool = False,
    ) -> None:
        self._good = good
        self._given = given
        self._narrow = narrow

    def was_there(self, node: fx.Node, kinds: frozenset[str]) -> bool:
        """True where the node had such elements in the good step."""
        return self._good is not None and kinds <= self._good.get(node.name, frozenset())

    def holds(self, node: fx.Node, kinds: frozenset[str], values: Mapping[fx.Node, Any]) -> bool:
        """True where the value of a node with good inputs is no fault.

        A NaN that is born of infinities that may be there is one.
        """
        if self.was_there(node, kinds):
            return True
        if kinds != {INFINITE}:
            return False
        if node.op != "call_function":
            return self._good is None and node.name in self._given
        inputs = [one for one in node.all_input_nodes if one in values]
        if self._narrow:
            inputs = [one for one in inputs if not self.was_there(one, kinds_of(values[one]))]
        return _places_one(node) or _passes_on(node, inputs, values)


class AnyIsBad(Expected):
    """An expectation that allows no value to be infinite or NaN."""

    def __init__(self) -> None:
        super().__init__(None, frozenset())

    def holds(self, node: fx.Node, kinds: frozenset[str], values: Mapping[fx.Node, Any]) -> bool:
        """Always False."""
        return False


def floats(value: Any) -> Iterable[torch.Tensor]:
    """The floating-point and complex tensors in a value."""
    for tensor in tensors_of(value):
        if tensor.numel() and (tensor.is_floating_point() or tensor.is_complex()):
            yield tensor


def all_finite(value: Any) -> bool:
    """True when no float in a value is NaN or infinite."""
    return all(bool(tensor.isfinite().all()) for tensor in floats(value))


def kinds_of(value: Any) -> frozenset[str]:
    """The kinds of elements in a value that are not finite: NaN, infinite."""
    found = set()
    for tensor in floats(value):
        if not tensor.isfinite().all():
            found |= {NAN} if tensor.isnan().any() else set()
            found |= {INFINITE} if tensor.isinf().any() else set()
    return frozenset(found)


def _places_one(node: fx.Node) -> bool:
    numbers = [*node.args, *node.kwargs.values()]
    infinite = any(isinstance(one, float) and math.isinf(one) for one in numbers)
    return infinite and base_name(node.target) in _PLACING


def _passes_on(node: fx.Node, inputs: Iterable[fx.Node], values: Mapping[fx.Node, Any]) -> bool:
    """True where infinities come from the inputs; elementwise, each from the same place."""
    there = [one.isinf() for each in inputs for one in floats(values[each])]
    there = [one for one in there if one.any()]
    if not there or torch.Tag.pointwise not in getattr(node.target, "tags", ()):
        return bool(there)
    known = there[0]
    for one in there[1:]:
        known = known | one
    return not any(bool((one.isinf() & ~known).any()) for one in floats(values[node]))
