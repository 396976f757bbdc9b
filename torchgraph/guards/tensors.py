"""The checks of tensors themselves: their metadata, their gradient hooks."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

import torch

from .._torch import addresses, tensor_guards, tensor_hooks

_HEADER = 64  # bytes of a Python object that a check reads
_IMPL = 256  # bytes of a TensorImpl, and of what is usually allocated right after it

# torch's guards enter the tensors of one call in a table. One that needs 1 KiB makes malloc sort
# all that a program has freed since the last such request: 2 ms after 12,000 small ops.
_AT_ONCE = 16


class TensorMatch:
    """Type, dtype, device, shape, strides, requires_grad of many tensors, compared in C++."""

    def __init__(self, tensors: Sequence[torch.Tensor]) -> None:
        self._tensors = tuple(tensors)
        starts = range(0, len(tensors), _AT_ONCE)
        parts = [self._tensors[start : start + _AT_ONCE] for start in starts]
        self._calls = [(tensor_guards(part) or _Metadata(part).hold, part) for part in parts]

    def hold(self) -> bool:
        """True when all are as they were."""
        return all(check(*tensors) for check, tensors in self._calls)

    def compile(self, checks: Any) -> None:
        """Add this to the compiled checks."""
        for check, tensors in self._calls:
            checks.call(check, tensors)
        checks.lines(list(map(id, self._tensors)), _HEADER)
        checks.lines(addresses(self._tensors), _IMPL)


class _Metadata:
    """The same in Python, where torch has no such function."""

    def __init__(self, tensors: Sequence[torch.Tensor]) -> None:
        self._expected = _metadata(tensors)

    def hold(self, *tensors: torch.Tensor) -> bool:
        return _metadata(tensors) == self._expected


def _metadata(tensors: Sequence[torch.Tensor]) -> list[Any]:
    return [(type(t), t.dtype, t.device, t.shape, t.stride(), t.requires_grad) for t in tensors]


class TensorHooks:
    """The gradient hooks of many tensors, by identity."""

    def __init__(self, tensors: Sequence[torch.Tensor]) -> None:
        self._tensors = tensors
        self._dicts = tensor_hooks(tensors)
        self.dicts = [held for held in self._dicts if held is not None]
        """Those that are there."""
        self._hooks = [(held, list(held.values())) for held in self.dicts]

    def none_came(self) -> bool:
        """True when no tensor has its first hook now."""
        return all(map(operator.is_, tensor_hooks(self._tensors), self._dicts))

    def hold(self) -> bool:
        """True when the hooks that there were are still there, and no others beside them."""
        return all(list(held.values()) == hooks for held, hooks in self._hooks)
