"""Modes and settings: gradients, default dtypes, lists of dtypes."""

from __future__ import annotations

from typing import Any

import numpy
import torch

from ..errors import NotPorted

_NUMPY: dict[torch.dtype, Any] = {
    torch.bool: bool,
    torch.float16: numpy.float16,
    torch.float32: numpy.float32,
    torch.float64: numpy.float64,
    torch.int8: numpy.int8,
    torch.int32: numpy.int32,
    torch.int64: numpy.int64,
    torch.uint8: numpy.uint8,
}


def dtypes() -> list[torch.dtype]:
    """OneFlow: ``dtypes``: those that tensors here may have."""
    return [*_NUMPY, torch.bfloat16]


def convert_oneflow_dtype_to_numpy_dtype(oneflow_dtype: torch.dtype) -> Any:
    """OneFlow: ``convert_oneflow_dtype_to_numpy_dtype``.

    Raises:
        NotImplementedError: bfloat16, which NumPy lacks.
    """
    if oneflow_dtype not in _NUMPY:
        raise NotImplementedError(str(oneflow_dtype))
    return _NUMPY[oneflow_dtype]


def set_default_dtype(dtype: torch.dtype) -> None:
    """OneFlow: ``set_default_dtype``, of float32.

    Raises:
        NotPorted: another one, which counts for some functions in OneFlow, for others in torch.
    """
    if dtype != torch.float32:
        raise NotPorted(
            f"set_default_dtype({dtype}) is not here: OneFlow 0.9 regards it here and there.",
            fix="give the functions dtype=.",
        )
    torch.set_default_dtype(dtype)


def set_default_tensor_type(tensor_type: Any) -> None:
    """OneFlow: ``set_default_tensor_type``, of ``FloatTensor``.

    Raises:
        NotPorted: another one.
    """
    if tensor_type == "oneflow.FloatTensor":
        return
    set_default_dtype(getattr(tensor_type, "dtype", tensor_type))


def inference_mode(mode: bool = True) -> Any:
    """OneFlow: ``inference_mode``: what is made in it may be used for gradients after it."""
    return torch.no_grad() if mode else torch.enable_grad()


def set_grad_enabled(is_train: bool = True) -> Any:
    """OneFlow: ``set_grad_enabled``: works as a context and a decorator, not as a statement."""
    return torch.enable_grad() if is_train else torch.no_grad()


def is_deprecated(func_or_class: Any) -> bool:
    """OneFlow: ``is_deprecated``: nothing here is."""
    return False


def is_floating_point(input: Any) -> bool:
    """OneFlow: ``is_floating_point``."""
    return bool(input.is_floating_point())


def script(obj: Any, **kwargs: Any) -> Any:
    """OneFlow: ``script``: gives back what it got, as there."""
    return obj


def ignore(drop: bool = False, **kwargs: Any) -> Any:
    """OneFlow: ``ignore``: a decorator that gives back what it got, as there."""
    return lambda function: function
