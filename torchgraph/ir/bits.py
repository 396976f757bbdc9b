"""Bitwise comparison of values, and short descriptions of them for messages."""

from __future__ import annotations

import ctypes
import hashlib

import torch

from .._torch.distributed.held import layout_of, local
from ..library.expect import equal_bits
from .text import value_type

_SHOWN = 4
_INTEGERS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def same(left: object, right: object) -> bool:
    """Equal to the last bit, signs of zero included; one NaN is as good as another."""
    if isinstance(left, torch.Tensor) and isinstance(right, torch.Tensor):
        kinds = [(t.shape, t.dtype, t.device, layout_of(t)) for t in (left, right)]
        return kinds[0] == kinds[1] and same_bits(left, right)
    if type(left) is not type(right):
        return False
    return bool(left == right) or bool(left != left and right != right)


def same_bits(left: torch.Tensor, right: torch.Tensor) -> bool:
    """The `same`, of two tensors of one shape, dtype and device; so is all data on ``meta``.

    Where no bit differs, no copy is made to tell.
    """
    if left.is_meta or right.is_meta:
        return left.is_meta and right.is_meta
    left, right = _plain(left), _plain(right)
    if torch.equal(_integers(left), _integers(right)):
        return True
    return left.is_floating_point() and bool(equal_bits(left, right))


def _plain(tensor: torch.Tensor) -> torch.Tensor:
    """The local, dense part of a tensor, of complex numbers as pairs."""
    tensor = local(tensor).detach().resolve_conj().resolve_neg()
    if tensor.layout is not torch.strided:
        tensor = tensor.to_dense()
    return torch.view_as_real(tensor) if tensor.is_complex() else tensor


def _integers(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.view(_INTEGERS[tensor.element_size()])


def fingerprint(tensor: torch.Tensor) -> bytes:
    """Equal for tensors of one shape and dtype when they are the `same`."""
    raw = _bits(tensor).cpu()
    buffer = (ctypes.c_char * raw.numel()).from_address(raw.data_ptr()) if raw.numel() else b""
    return hashlib.blake2b(buffer, digest_size=16).digest()


def _bits(tensor: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        tensor = _plain(tensor)
        if tensor.is_floating_point() and tensor.element_size() > 1:  # float8 knows no isnan
            tensor = tensor.masked_fill(tensor.isnan(), torch.nan)
        # A dim of size 1 may have any stride, which ``contiguous`` keeps.
        return tensor.contiguous().as_strided((tensor.numel(),), (1,)).view(torch.uint8)


def gap(left: object, right: object) -> float | None:
    """The largest absolute difference; None for values that cannot be subtracted."""
    if isinstance(left, torch.Tensor) and isinstance(right, torch.Tensor):
        left, right = local(left), local(right)
        if left.shape != right.shape or not left.numel():
            return None
        wide = torch.complex128 if left.is_complex() or right.is_complex() else torch.float64
        with torch.no_grad():
            return float((left.to(wide) - right.to(device=left.device, dtype=wide)).abs().max())
    if isinstance(left, (int, float)) and isinstance(right, (int, float)):
        return abs(float(left) - float(right))
    return None


def summary(value: object) -> str:
    """``f32[2, 8] from -1.2 to 0.7, mean 0.03``; the values themselves when there are few."""
    if not isinstance(value, torch.Tensor):
        return repr(value)
    value = local(value).detach()
    kind = value_type(value)
    if value.numel() <= _SHOWN or value.is_complex():
        return f"{kind} {value.cpu().tolist()}" if value.numel() <= _SHOWN else kind
    wide = value.to(torch.float64)
    low, high, mean = (float(x) for x in (wide.min(), wide.max(), wide.mean()))
    return f"{kind} from {low:.6g} to {high:.6g}, mean {mean:.6g}"
