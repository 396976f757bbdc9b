"""Which object lies where: what a step asks by ``is`` has to be answered alike in a replay."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import torch

from ...guards.looks import Same
from ..chains.touched import Met
from ..tape.watch import AttributeWatch
from .kept import Item, NamedArgument, TensorAt, held_at_both


class Asked(NamedTuple):
    """Two places that held one object, or two; a number stands for an argument of the call."""

    one: NamedArgument | TensorAt
    other: int | NamedArgument | TensorAt
    together: bool

    @property
    def key(self) -> tuple[object, ...]:
        """Equal for equal ones."""
        other = self.other if isinstance(self.other, int) else self.other.key
        return self.one.key, other, "is", self.together

    def fits(self, arguments: Sequence[torch.Tensor]) -> bool:
        """True when they do so now."""
        held = held_at_both(self.one, self.other, arguments)
        if held is None:
            return not self.together
        return self.together is (held[0] is held[1])


def asked(met: Met, watch: AttributeWatch, arguments: Sequence[torch.Tensor]) -> Iterator[Asked]:
    """What the step asks of tensors that may be others in the next call."""
    found: list[tuple[NamedArgument | TensorAt, object]] = [
        (NamedArgument(one.name), one.name.found())
        for one in met.touched
        if one.compared and isinstance(one.name.found, Same)
    ]
    found += [
        (TensorAt(Item(name, held, name), 0), tensor)
        for held, name, tensor in watch.tensors()
        if id(tensor) in met.compared
    ]
    for number, (one, value) in enumerate(found):
        for position, argument in enumerate(arguments):
            yield Asked(one, position, value is argument)
        for other, another in found[:number]:
            yield Asked(one, other, value is another)
