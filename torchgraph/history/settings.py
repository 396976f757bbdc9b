"""Settings that a user changes between calls: attributes of modules, ``requires_grad``."""

from __future__ import annotations

from collections.abc import Container, Iterable
from types import BuiltinFunctionType, FunctionType, NoneType
from typing import Any

import torch

_PLAIN = (bool, int, float, complex, str, bytes, NoneType, type, FunctionType, BuiltinFunctionType)
_PLAIN_OF_TORCH = (torch.dtype, torch.device, torch.Size)


class Settings:
    """Attributes and ``requires_grad`` as they are now; tensors and containers are none of them.

    Args:
        owners: attributes of an object, and the names of those that are not its user's.
        tensors: those that may train.
    """

    def __init__(
        self,
        owners: Iterable[tuple[dict[str, Any], Container[str]]],
        tensors: Iterable[torch.Tensor],
    ) -> None:
        self._plain = [(names, others, _plain_of(names, others)) for names, others in owners]
        self._training = [(one, one.requires_grad) for one in tensors if one.is_leaf]

    def put_back(self) -> None:
        """Set what is set otherwise by now."""
        for names, others, known in self._plain:
            now = _plain_of(names, others)
            for name in now.keys() - known.keys():
                del names[name]
            names.update({name: value for name, value in known.items() if _moved(now, name, value)})
        for tensor, trains in self._training:
            if tensor.requires_grad is not trains and tensor.is_leaf:
                tensor.requires_grad_(trains)


def _plain_of(names: dict[str, Any], others: Container[str]) -> dict[str, Any]:
    return {name: one for name, one in names.items() if name not in others and _is_plain(one)}


def _is_plain(value: object) -> bool:
    return type(value) in _PLAIN or isinstance(value, _PLAIN_OF_TORCH)


def _moved(now: dict[str, Any], name: str, value: object) -> bool:
    return name not in now or now[name] is not value
