"""Unvalidated values of a state: their kinds, and comparisons with the current values."""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from copy import deepcopy
from typing import Any

import torch
from torch.nn.parameter import is_lazy

_LARGEST = torch.finfo(torch.float32).max


def entries(count: int) -> str:
    """``1 entry``, ``2 entries``."""
    return "1 entry" if count == 1 else f"{count} entries"


def short(value: object) -> str:
    """A value in a message, whatever it is."""
    if isinstance(value, torch.Tensor) and not is_lazy(value):
        return f"a tensor of {value.dtype} and shape {tuple(value.shape)}"
    if type(value) is int and abs(value) >= 2**64:
        return "an integer of many digits"
    if value is None or type(value) in (bool, int, float, complex, str):
        return f"{value!r:.60}"
    return f"a {type(value).__name__}"


def is_number(value: object) -> bool:
    """True for an int or a float, which a bool is not."""
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def is_finite(value: Any) -> bool:
    """True for a number that float32 can hold; for a tensor, of its one element.

    Larger ones are finite in Python alone: the arithmetic of a step does not take them.
    """
    if isinstance(value, torch.Tensor):
        strided = value.layout is torch.strided and not value.is_meta
        value = value.item() if strided and value.numel() == 1 else None
    return is_number(value) and -_LARGEST <= value <= _LARGEST


def is_count(value: object) -> bool:
    """True for 0, 1, 2, ... as an int."""
    return type(value) is int and value >= 0


def is_plain(value: object) -> bool:
    """True for a setting: a number, a flag, a word, a tensor, or a few of them."""
    if isinstance(value, torch.Tensor):
        return value.layout is torch.strided and not value.is_meta
    if is_list(value):
        return all(map(is_plain, value))  # type: ignore[call-overload]  # a list
    return value is None or isinstance(value, (bool, int, float, str))


def is_list(value: object) -> bool:
    """True for what has places for items, and is no text."""
    return isinstance(value, (list, tuple))


def kind_of(dtype: torch.dtype) -> str:
    """The kind of a dtype, within which casts are allowed: floats, complex, ints or bools."""
    if dtype.is_floating_point:
        return "floating-point"
    if dtype.is_complex:
        return "complex"
    return "bool" if dtype is torch.bool else "integer"


def tensor_problem(value: object, own: torch.Tensor, shape: tuple[int, ...] | None) -> str:
    """Why a value cannot be written over a tensor like ``own``; empty where it can.

    ``shape``: the one that it has to have; None where any will do.
    """
    if not isinstance(value, torch.Tensor):
        return f"is {short(value)}, not a tensor"
    if is_lazy(value):
        return "" if shape is None else "is a parameter that has no shape yet"
    if value.layout is not own.layout:
        return f"has layout {value.layout}, not {own.layout}"
    if value.is_meta and not own.is_meta:
        return "is on the meta device, without values"
    if not _has_memory(value):
        return "has given its memory back"
    if shape is not None and tuple(value.shape) != shape:
        return f"has shape {tuple(value.shape)}, not {shape}"
    if value.is_quantized is not own.is_quantized or not _is_of_a_kind(value, own):
        return f"is of {value.dtype}, where {own.dtype} belongs"
    return ""


def _is_of_a_kind(value: torch.Tensor, own: torch.Tensor) -> bool:
    kinds = kind_of(value.dtype), kind_of(own.dtype)
    if kinds == ("floating-point", "integer"):  # a whole state may have been cast, counters too
        return bool((value == value.to(torch.int64)).all())
    return kinds[0] == kinds[1]


def _has_memory(tensor: torch.Tensor) -> bool:
    if tensor.layout is not torch.strided or tensor.is_meta or type(tensor) is not torch.Tensor:
        return True
    return not tensor.numel() or bool(tensor.untyped_storage().nbytes())


def unlike(name: str, own: Any, saved: Any) -> Iterator[str]:
    """Why ``saved`` cannot take the place of a setting ``own``; settings may have other values."""
    if own is None or isinstance(own, bool):
        if not _is_flag(saved, free=own is None):
            yield f"{name}: is {short(saved)}, not True, False or None"
    elif isinstance(own, torch.Tensor):
        yield from _unlike_tensor(name, own, saved)
    elif is_number(own):
        yield from _unlike_number(name, own, saved)
    elif is_list(own):
        yield from _unlike_list(name, own, saved)
    elif not isinstance(saved, Mapping if isinstance(own, Mapping) else type(own)):
        yield f"{name}: is {short(saved)}, not a {type(own).__name__}"


def _is_flag(value: object, *, free: bool) -> bool:
    """``free``: what is None now may be a bound that is set, too."""
    plain = value is None or isinstance(value, bool)
    return plain or (free and (is_finite(value) or isinstance(value, str)))


def _unlike_tensor(name: str, own: torch.Tensor, saved: Any) -> Iterator[str]:
    if not isinstance(saved, torch.Tensor):
        if not is_finite(saved):
            yield f"{name}: is {short(saved)}, not a number or a tensor"
    elif problem := tensor_problem(saved, own, tuple(own.shape)):
        yield f"{name}: {problem}"


def _unlike_list(name: str, own: Sequence[Any], saved: Any) -> Iterator[str]:
    if not is_list(saved) or len(saved) != len(own):
        what = f"{len(saved)} items" if is_list(saved) else short(saved)
        yield f"{name}: is {what}, not {len(own)} items"
        return
    for number, (left, right) in enumerate(zip(own, saved, strict=True)):
        yield from unlike(f"{name}.{number}", left, right)


def _unlike_number(name: str, own: float, saved: object) -> Iterator[str]:
    if not is_number(saved):
        yield f"{name}: is {short(saved)}, not a number"
    elif is_finite(own) and not is_finite(saved):
        yield f"{name}: is {short(saved)}, not a number that float32 holds"


def unlike_own(name: str, own: Any, saved: Any) -> Iterator[str]:
    """Why ``saved`` cannot take the place of what a class of the user's has as ``own``.

    Its kind counts, and no size: a history grows, a number lies in a tensor at another time, and
    None is what is not there yet.
    """
    if saved is None or own is None:
        fits = is_plain(saved) or isinstance(saved, Mapping)
    elif isinstance(own, torch.Tensor) or is_number(own) or isinstance(own, bool):
        fits = isinstance(saved, (bool, int, float, torch.Tensor)) and is_plain(saved)
    elif is_list(own):
        fits = is_list(saved)
    else:
        fits = isinstance(saved, Mapping if isinstance(own, Mapping) else type(own))
    if not fits:
        yield f"{name}: is {short(saved)}, not of the kind of {short(own)}"


def independent(value: Any) -> Any:
    """A copy that shares no memory; of plain containers plain ones of the same kind."""
    if isinstance(value, torch.Tensor):
        return value.detach().clone()
    if isinstance(value, Counter):
        return Counter(value)
    if isinstance(value, Mapping):
        kind = OrderedDict if isinstance(value, OrderedDict) else dict
        return kind((key, independent(item)) for key, item in value.items())
    if type(value) in (list, tuple):
        return type(value)(map(independent, value))
    return deepcopy(value)
