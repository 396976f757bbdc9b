"""An op as it is recorded, as OneFlow's OPERATOR lines have it, and all that is known of it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from .._torch import OpOverload, schema_of
from ..ir.program import Provenance
from ..lines import Depth
from .operators import location_of


@dataclass(frozen=True)
class RecordedValue:
    """A value with its name: a tensor, or a number."""

    name: str
    shape: tuple[int, ...] | None = None
    """None for a number."""
    stride: tuple[int, ...] = ()
    dtype: torch.dtype | None = None
    device: torch.device | None = None

    def __str__(self) -> str:
        if self.shape is None:
            return f"{self.name}:(number)"
        return (
            f"{self.name}:(size={self.shape}, dtype={self.dtype}, device='{self.device}', "
            f"layout={layout(self.shape, self.stride)})"
        )


@dataclass(frozen=True)
class RecordedOp:
    """A call of an op; values among its arguments are `RecordedValue`."""

    name: str
    """``model.fc-addmm-3``."""
    target: Any
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    results: list[RecordedValue]
    provenance: Provenance

    def __str__(self) -> str:
        arguments = [_shown(value) for value in self.args]
        arguments += [f"{key}={_shown(value)}" for key, value in self.kwargs.items()]
        results = ", ".join(map(str, self.results))
        return f"(OPERATOR: {self.name}({', '.join(arguments)}) -> ({results}))"

    def details(self, depth: Depth) -> Iterator[str]:
        """Lines with the op's arguments by schema name, defaults included, and its origin."""
        if isinstance(self.target, OpOverload):
            yield f"  schema: {schema_of(self.target)}"
        for name, value in self._named():
            yield f"  {name}: {_shown(value)}"
        origin = self.provenance
        yield f"  phase: {origin.phase.value}"
        if origin.calls:
            yield "  called by: " + " > ".join(f"{path} #{call}" for path, call in origin.calls)
        if location := location_of(origin, depth):
            yield f"  {location}"

    def _named(self) -> Iterator[tuple[str, object]]:
        if not isinstance(self.target, OpOverload):
            yield from ((f"argument {i}", value) for i, value in enumerate(self.args))
            return
        for position, argument in enumerate(schema_of(self.target).arguments):
            if position < len(self.args):
                yield argument.name, self.args[position]
            elif argument.name in self.kwargs:
                yield argument.name, self.kwargs[argument.name]
            else:
                yield f"{argument.name} (default)", argument.default_value


def layout(shape: tuple[int, ...], stride: tuple[int, ...]) -> str:
    """``contiguous``, ``channels_last``, or the strides in elements."""
    if _is_dense(shape, stride, range(len(shape))):
        return "contiguous"
    if len(shape) in (4, 5) and _is_dense(shape, stride, (0, *range(2, len(shape)), 1)):
        return "channels_last" if len(shape) == 4 else "channels_last_3d"
    return f"strides{stride}".replace(",)", ")")


def _is_dense(shape: tuple[int, ...], stride: tuple[int, ...], order: Any) -> bool:
    """True where the dimensions lie in that order, the last one innermost."""
    expected = 1
    for dim in reversed(order):
        if shape[dim] != 1 and stride[dim] != expected:
            return False
        expected *= max(1, shape[dim])
    return True


def _shown(value: object) -> str:
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(map(_shown, value))}]"
    if isinstance(value, (RecordedValue, torch.dtype, torch.device, torch.layout)):
        return str(value)
    return repr(value)
