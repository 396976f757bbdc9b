"""The checks of tensors themselves: their metadata, where they lie."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Protocol

import torch

from .. import _extension
from .._torch import is_view, tensor_guards
from ..ir.aliasing import span
from .compiled import CompiledChecks
from .layout import layout

# torch's guards enter the tensors of one call in a table. One that needs 1 KiB makes malloc sort
# all that a program has freed since the last such request: 2 ms after 12,000 small ops.
_AT_ONCE = 16


class TensorMatch:
    """Type, dtype, device, shape, strides, requires_grad of many tensors, compared in C++."""

    def __init__(self, tensors: Sequence[torch.Tensor]) -> None:
        self._tensors, self._expected = tensors, _metadata(tensors)
        plain = [tensor for tensor in tensors if has_layout(tensor)]
        others = [tensor for tensor in tensors if not has_layout(tensor)]
        self._plain, self._others = _checks(plain), _checks(others)

    def hold(self) -> bool:
        """True when all are as they were."""
        return all(check(*tensors) for check, tensors in (*self._plain, *self._others))

    def changed(self) -> tuple[torch.Tensor, str] | None:
        """The first tensor that changed and how, in words; None where none is found."""
        for tensor, was, now in zip(
            self._tensors, self._expected, _metadata(self._tensors), strict=True
        ):
            for what, old, new in zip(_COMPARED, was, now, strict=True):
                if old != new:
                    return tensor, f"{what} was {_shown(old)} and is {_shown(new)}"
        return None

    def compile(self, checks: CompiledChecks, also: Callable[[], bool]) -> None:
        """Add this to the compiled checks, and ``also``, asked where a tensor lies elsewhere."""

        def both(check: Callable[..., bool]) -> Callable[..., bool]:
            return lambda *tensors: check(*tensors) and also()

        for check, tensors in self._plain:
            checks.tensors(both(check), tensors)
        for check, tensors in self._others:
            checks.call(check, tensors)


def has_layout(tensor: torch.Tensor) -> bool:
    """True when the layout says where this tensor keeps all that is compared."""
    plain = type(tensor) in (torch.Tensor, torch.nn.Parameter)
    return plain and not is_view(tensor) and has_place(tensor)


def has_place(tensor: torch.Tensor) -> bool:
    """True when the layout is known and has a tensor's shape, strides and storage."""
    known = layout()
    return known is not None and tensor.layout is torch.strided and tensor.ndim <= known.dims


Starts = Callable[[tuple[object, ...]], "tuple[int, ...] | None"]


def starts_of_like(tensors: tuple[torch.Tensor, ...]) -> Starts | None:
    """A compiled function of other tensors: where the memory of each starts.

    It gives None unless they are as many, have the type, shape, strides, dtype and device of these,
    require no gradient and share no memory. None where nothing is compiled, or for others than
    plain tensors.
    """
    inputs = _inputs_like(tensors)
    return None if inputs is None else inputs.starts


def starts_apart_of_like(tensors: tuple[torch.Tensor, ...]) -> Starts | None:
    """`starts_of_like` for written tensors: no storage may begin within another one."""
    inputs = _inputs_like(tensors)
    return None if inputs is None else inputs.starts_apart


class _Inputs(Protocol):
    """`torchgraph._guards.Inputs`."""

    starts: Starts
    starts_apart: Starts


def _inputs_like(tensors: tuple[torch.Tensor, ...]) -> _Inputs | None:
    module = _extension.guards()
    plain = all(type(t) is torch.Tensor and has_place(t) and not t.requires_grad for t in tensors)
    if module is None or not tensors or not plain:
        return None
    extents = []
    for tensor in tensors:
        first, end = span(tensor)
        extents.append((end - first, tensor.itemsize))
    inputs: _Inputs = module.Inputs(torch.Tensor, layout(), tensors, tuple(extents))
    return inputs


def _checks(
    tensors: Sequence[torch.Tensor],
) -> list[tuple[Callable[..., bool], tuple[torch.Tensor, ...]]]:
    starts = range(0, len(tensors), _AT_ONCE)
    parts = [tuple(tensors[start : start + _AT_ONCE]) for start in starts]
    return [(tensor_guards(part) or partial(_like, _metadata(part)), part) for part in parts]


_COMPARED = ("class", "dtype", "device", "shape", "strides", "requires_grad")


def _shown(value: object) -> str:
    return str(tuple(value) if isinstance(value, torch.Size) else getattr(value, "__name__", value))


def _metadata(tensors: Sequence[torch.Tensor]) -> list[Any]:
    return [(type(t), t.dtype, t.device, t.shape, t.stride(), t.requires_grad) for t in tensors]


def _like(expected: list[Any], *tensors: torch.Tensor) -> bool:
    """The Python form of the check, for a torch without the C++ function."""
    return _metadata(tensors) == expected
