"""Functions that make tensors: OneFlow's, with ``placement`` and ``sbp``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy
import torch
from torch import Tensor

from ..devices import on_cpu
from ..devices.tensors import made_global
from ..errors import NotPorted


def _placed(
    make: Callable[..., Tensor],
    *args: Any,
    device: Any = None,
    placement: Any = None,
    sbp: Any = None,
    requires_grad: bool = False,
    **kwargs: Any,
) -> Tensor:
    """What a function of torch makes, on a device or a placement."""
    found = make(*args, device=on_cpu.meant(device), **kwargs)
    if placement is not None or sbp is not None:
        found = made_global(found, placement, sbp)
    return found.requires_grad_() if requires_grad else found


def _size(size: tuple[Any, ...]) -> Any:
    return size[0] if len(size) == 1 and not isinstance(size[0], int) else size


def _sized(make: Callable[..., Tensor]) -> Callable[..., Tensor]:
    def of_size(*size: Any, **kwargs: Any) -> Tensor:
        return _placed(make, *([_size(size)] if size else []), **kwargs)

    of_size.__name__ = make.__name__
    of_size.__doc__ = f"OneFlow: ``{make.__name__}``, with ``placement`` and ``sbp``."
    return of_size


ones = _sized(torch.ones)
zeros = _sized(torch.zeros)
empty = _sized(torch.empty)
rand = _sized(torch.rand)
randn = _sized(torch.randn)


def _like(make: Callable[..., Tensor]) -> Callable[..., Tensor]:
    def like(input: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        return _placed(make, input, *args, **kwargs)

    like.__name__ = make.__name__
    like.__doc__ = f"OneFlow: ``{make.__name__}``, with ``placement`` and ``sbp``."
    return like


ones_like = _like(torch.ones_like)
zeros_like = _like(torch.zeros_like)
empty_like = _like(torch.empty_like)
randn_like = _like(torch.randn_like)


def full_like(input: Tensor, fill_value: Any, **kwargs: Any) -> Tensor:
    """OneFlow: ``full_like``, with ``placement`` and ``sbp``.

    Raises:
        NotPorted: a tensor to fill with, which is wrong in OneFlow 0.9.
    """
    if isinstance(fill_value, Tensor):
        raise NotPorted("full_like(x, tensor) is wrong in OneFlow 0.9.", fix="tensor.item().")
    return _placed(torch.full_like, input, fill_value, **kwargs)


def randint_like(input: Tensor, *args: Any, dtype: Any = torch.int64, **kwargs: Any) -> Tensor:
    """OneFlow: ``randint_like``: int64, whatever the input is."""
    return _placed(torch.randint_like, input, *args, dtype=dtype or torch.int64, **kwargs)


def full(
    size: Any, fill_value: Any, dtype: Any = None, device: Any = None, **kwargs: Any
) -> Tensor:
    """OneFlow: ``full``, of a number or a tensor with one element."""
    if isinstance(fill_value, Tensor):
        dtype, fill_value = dtype or fill_value.dtype, fill_value.item()
    return _placed(torch.full, size, fill_value, dtype=dtype, device=device, **kwargs)


def randint(*args: Any, **kwargs: Any) -> Tensor:
    """OneFlow: ``randint``, with ``placement`` and ``sbp``."""
    return _placed(torch.randint, *args, **kwargs)


def randperm(n: int, **kwargs: Any) -> Tensor:
    """OneFlow: ``randperm``, with ``placement`` and ``sbp``."""
    return _placed(torch.randperm, n, **kwargs)


def normal(mean: float, std: float, *size: Any, **kwargs: Any) -> Tensor:
    """OneFlow: ``normal``, with ``placement`` and ``sbp``; the size may be a number."""
    given = size[0] if size else kwargs.pop("size")
    return _placed(torch.normal, mean, std, (given,) if isinstance(given, int) else given, **kwargs)


def _number(value: Any) -> Any:
    return value.item() if isinstance(value, Tensor) else value


def arange(
    start: Any = 0, end: Any = None, step: Any = 1, dtype: Any = None, **kwargs: Any
) -> Tensor:
    """OneFlow: ``arange``: float32 if a number is a float, else int64."""
    if end is None:
        start, end = 0, start
    numbers = [_number(one) for one in (start, end, step)]
    if dtype is None and any(isinstance(one, float) for one in numbers):
        dtype = torch.float32
    return _placed(torch.arange, *numbers, dtype=dtype, **kwargs)


def linspace(start: Any, end: Any, steps: Any, dtype: Any = torch.float32, **kwargs: Any) -> Tensor:
    """OneFlow: ``linspace``: float32, and always so where start is end.

    Raises:
        NotPorted: a dtype of integers, with which OneFlow 0.9 gives another number of elements.
    """
    start, end, steps = _number(start), _number(end), _number(steps)
    dtype = dtype or torch.float32
    if not dtype.is_floating_point:
        raise NotPorted("linspace with a dtype of integers is wrong in OneFlow 0.9.", fix=".to()")
    if start == end:
        dtype = torch.float32
    return _placed(torch.linspace, start, end, steps, dtype=dtype, **kwargs)


def logspace(
    start: float, end: float, steps: int, base: float = 10.0, dtype: Any = None, **kwargs: Any
) -> Tensor:
    """OneFlow: ``logspace``."""
    requires_grad = kwargs.pop("requires_grad", False)
    found = torch.pow(base, linspace(start, end, steps, dtype=dtype, **kwargs))
    return found.requires_grad_() if requires_grad else found


def eye(n: Any, m: Any = None, *, dtype: Any = torch.float32, **kwargs: Any) -> Tensor:
    """OneFlow: ``eye``: float32."""
    size = [int(n)] if m is None else [int(n), int(m)]
    return _placed(torch.eye, *size, dtype=dtype, **kwargs)


def hann_window(
    window_length: int, periodic: bool = True, *, dtype: Any = None, **kwargs: Any
) -> Tensor:
    """OneFlow: ``hann_window``: float32; of length 1, int64."""
    if window_length == 1 and dtype is None:
        return _placed(torch.ones, 1, dtype=torch.int64, **kwargs)
    return _placed(
        torch.hann_window, window_length, periodic, dtype=dtype or torch.float32, **kwargs
    )


def _of(self: Tensor, size: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    kwargs["dtype"] = kwargs.get("dtype") or self.dtype
    if kwargs.get("placement") is None and kwargs.get("device") is None:
        kwargs["device"] = self.device
    return _size(size) if size else self.shape


def new_ones(self: Tensor, *size: Any, **kwargs: Any) -> Tensor:
    """OneFlow: ``new_ones``. Without a size it is the tensor's."""
    return _placed(torch.ones, _of(self, size, kwargs), **kwargs)


def new_zeros(self: Tensor, *size: Any, **kwargs: Any) -> Tensor:
    """OneFlow: ``new_zeros``. Without a size it is the tensor's."""
    return _placed(torch.zeros, _of(self, size, kwargs), **kwargs)


def new_empty(self: Tensor, *size: Any, **kwargs: Any) -> Tensor:
    """OneFlow: ``new_empty``. Without a size it is the tensor's."""
    return _placed(torch.empty, _of(self, size, kwargs), **kwargs)


def new_full(self: Tensor, size: Any, fill_value: Any, **kwargs: Any) -> Tensor:
    """OneFlow: ``new_full``."""
    return _placed(torch.full, _of(self, (size,), kwargs), fill_value, **kwargs)


def new_tensor(self: Tensor, data: Any, **kwargs: Any) -> Tensor:
    """OneFlow: ``new_tensor``: in the tensor's dtype, unless one is given."""
    _of(self, (), kwargs)
    return tensor(data, **kwargs)


def _first_leaf(data: Any) -> Any:
    while isinstance(data, (list, tuple)) and data:
        data = data[0]
    return data


def _plain(data: Any) -> Any:
    """NumPy's float64 numbers and floats in tensors as Python's: OneFlow reads them as float32."""
    if isinstance(data, (list, tuple)):
        return [_plain(one) for one in data]
    if isinstance(data, Tensor) and not data.dim() and data.is_floating_point():
        return data.item()
    return float(data) if isinstance(data, numpy.float64) else data


def _data(data: Any) -> Any:
    leaf = _first_leaf(data)
    if isinstance(data, (list, tuple)) and isinstance(leaf, Tensor) and leaf.dim():
        return torch.stack([one if isinstance(one, Tensor) else _data(one) for one in data])
    if isinstance(leaf, (int, float)) or (isinstance(leaf, Tensor) and leaf is not data):
        return _plain(data)
    if isinstance(data, (list, tuple)) and isinstance(leaf, numpy.ndarray) and not leaf.ndim:
        found = numpy.array(data)  # torch takes numbers alone
        return found.astype(numpy.float32) if found.dtype == numpy.float64 else found
    if isinstance(data, numpy.ndarray) and any(stride < 0 for stride in data.strides):
        return numpy.ascontiguousarray(data)
    return data


def tensor(data: Any, *, dtype: Any = None, pin_memory: bool = False, **kwargs: Any) -> Tensor:
    """OneFlow: ``tensor``, with ``placement`` and ``sbp``. NumPy's float64 numbers are float32."""

    def make(given: Any, device: Any) -> Tensor:
        if isinstance(given, Tensor):
            return given.detach().clone().to(device or given.device, dtype or given.dtype)
        return torch.tensor(given, dtype=dtype, device=device, pin_memory=pin_memory)

    return _placed(make, _data(data), **kwargs)


def as_tensor(data: Any, dtype: Any = None, device: Any = None) -> Tensor:
    """OneFlow: ``as_tensor``. NumPy's float64 numbers are float32."""
    return torch.as_tensor(_data(data), dtype=dtype, device=on_cpu.meant(device))


class _Typed(type):
    """A class for the tensors of a dtype: it makes them. As in OneFlow, none is its instance."""

    dtype: torch.dtype

    def __call__(cls, *args: Any, **kwargs: Any) -> Tensor:
        if not args:
            return empty(0, dtype=cls.dtype, **kwargs)
        if all(isinstance(one, int) and not isinstance(one, bool) for one in args):
            return empty(*args, dtype=cls.dtype, **kwargs)
        (data,) = args
        if isinstance(data, torch.Size):
            return empty(data, dtype=cls.dtype, **kwargs)
        return tensor(data, **kwargs).to(cls.dtype)


class HalfTensor(metaclass=_Typed):
    """OneFlow: ``HalfTensor``."""

    dtype = torch.float16


class FloatTensor(metaclass=_Typed):
    """OneFlow: ``FloatTensor``."""

    dtype = torch.float32


class DoubleTensor(metaclass=_Typed):
    """OneFlow: ``DoubleTensor``."""

    dtype = torch.float64


class BoolTensor(metaclass=_Typed):
    """OneFlow: ``BoolTensor``."""

    dtype = torch.bool


class ByteTensor(metaclass=_Typed):
    """OneFlow: ``ByteTensor``."""

    dtype = torch.uint8


class CharTensor(metaclass=_Typed):
    """OneFlow: ``CharTensor``."""

    dtype = torch.int8


class IntTensor(metaclass=_Typed):
    """OneFlow: ``IntTensor``."""

    dtype = torch.int32


class LongTensor(metaclass=_Typed):
    """OneFlow: ``LongTensor``."""

    dtype = torch.int64
