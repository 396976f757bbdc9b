"""Byte offsets at which torch keeps the tensor fields that compiled checks compare.

Torch says so nowhere, and it differs from version to version. So it is found by experiment: change
one thing of a tensor at a time, and see which bytes change. When an experiment gives anything else
than one clear answer there is no layout, and torch's own checks are called each time.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch

from .._torch import addresses, disable_modes, storage_id

_WORD = ctypes.sizeof(ctypes.c_void_p)
# Bytes that are looked at: no more than there are in any version of torch. A TensorImpl was longer
# up to some version, and what it holds is looked for in that length where it is not in the other.
_LONGER_IMPL = 23 * _WORD
_IMPL, _AUTOGRAD, _STORAGE = 22 * _WORD, 20 * _WORD, 6 * _WORD
_COUNTS = 2 * _WORD  # a C++ object begins with its virtual table and its reference counts

_MOST_UNSET = 2  # torch 2.11 has two such words, later ones have one

Span = tuple[int, int]


class ImplOffsets(NamedTuple):
    """The offsets of a tensor's fields, in bytes."""

    impl: int
    """In the Python object: the address of its TensorImpl."""
    autograd: int
    """In the TensorImpl: the address of its AutogradMeta, or 0."""
    metadata: Span
    """In the TensorImpl: shape, strides, dtype, device, dispatch keys."""
    history: Span
    """In the AutogradMeta: requires_grad, the gradient, what the tensor was computed by."""
    grad: int
    """In the AutogradMeta: the address of the gradient."""
    no_grad: int
    """The word at ``gradient`` of a tensor without one."""
    no_view: int
    """The first word of the AutogradMeta of a tensor that is no view."""
    offset: int
    """In the TensorImpl: the storage offset."""
    shape: int
    """In the TensorImpl: the length of dimension 0."""
    strides: int
    """In the TensorImpl: the stride of dimension 0."""
    dims: int
    """The dimensions that fit in the TensorImpl; a tensor with more keeps them elsewhere."""
    storage: int
    """In the TensorImpl: the address of its storage."""
    start: int
    """In the storage: where its memory starts."""
    unset: tuple[tuple[int, int], ...]
    """Words in the TensorImpl whose bits torch does not all set, and those bits: they are what the
    allocator gave. Two pairs; (0, 0) where there is none."""


@functools.cache
def layout() -> ImplOffsets | None:
    """The layout of tensors here; None when it cannot be told."""
    with disable_modes(), torch.inference_mode(False), torch.enable_grad():
        try:
            return _layout()
        except (_Unclear, RuntimeError):
            return None


class _Unclear(Exception):
    """An experiment had another outcome than expected."""


def _layout() -> ImplOffsets:
    # Memory of somebody else, so that the address of its owner is another one.
    tensor = torch.frombuffer(bytearray(16), dtype=torch.uint8)
    (address,) = addresses([tensor])
    impl = _place_of(address, id(tensor), type(tensor).__basicsize__)
    storage = _place_of(storage_id(tensor), address, _IMPL)
    start = _place_of(tensor.data_ptr(), storage_id(tensor), _STORAGE)
    autograd, metadata, dimensions = _autograd(), _metadata(), _dimensions()
    return ImplOffsets(
        impl,
        autograd,
        metadata,
        _history(autograd),
        *_gradient(autograd),
        _no_view(autograd),
        _offset(),
        *dimensions,
        storage,
        start,
        _unset(metadata, dimensions[-1]),
    )


def _offset() -> int:
    tensor = torch.zeros(2, device="cpu")
    (address,) = addresses([tensor])
    tensor.as_strided_((1,), (1,), 0)
    before = _words(address, _IMPL)
    tensor.as_strided_((1,), (1,), 1)
    now = _words(address, _IMPL)
    return _WORD * _only([i for i, word in enumerate(now) if word != before[i]])


def _dimensions() -> tuple[int, int, int]:
    shape, strides = (101, 103, 107, 109, 113), (127, 131, 137, 139, 149)
    tensor = torch.empty_strided(shape, strides, device="meta")
    words = _words(addresses([tensor])[0], _IMPL)
    places = [
        _WORD * _only([i for i in range(len(words)) if words[i : i + len(run)] == [*run]])
        for run in (shape, strides)
    ]
    return places[0], places[1], len(shape)


def _metadata() -> Span:
    try:
        return _metadata_within(_IMPL)
    except _Unclear:
        return _metadata_within(_LONGER_IMPL)


def _metadata_within(size: int) -> Span:
    changes: tuple[Callable[[torch.Tensor], object], ...] = (
        lambda tensor: tensor.as_strided_((24,), (1,)),
        lambda tensor: tensor.as_strided_((3, 2), (1, 3)),
        lambda tensor: tensor.as_strided_((3, 4), (6, 1), 6),
        lambda tensor: setattr(tensor, "data", tensor.view(torch.complex64)),
        lambda tensor: setattr(tensor, "data", tensor.view(torch.int64)),
        lambda tensor: setattr(tensor, "data", tensor.conj()),
    )
    moved = []
    for change in changes:
        tensor = torch.zeros(4, 6, dtype=torch.complex128, device="cpu")
        moved += _moved(addresses([tensor])[0], size, functools.partial(change, tensor))
    begin, end = min(moved) // _WORD * _WORD, -(-(max(moved) + 1) // _WORD) * _WORD
    here, elsewhere = (torch.empty(4, 6, device=device) for device in ("cpu", "meta"))
    a, b = (_words(start + begin, end - begin) for start in addresses([here, elsewhere]))
    if a == b:
        raise _Unclear
    return begin, end


def _unset(metadata: Span, dims: int) -> tuple[tuple[int, int], ...]:
    """The bits that differ between tensors made alike, in memory that was all zeros or all ones."""
    begin, end = metadata
    shape = (2,) * dims  # no room for more dimensions, which nobody sets either
    known = _words(addresses([torch.zeros(shape, device="cpu")])[0] + begin, end - begin)
    found = [0] * len(known)
    for value in (0, 255):
        for size in range(_AUTOGRAD, _LONGER_IMPL + 4 * _WORD, _WORD):
            used = [torch.full((size,), value, dtype=torch.uint8, device="cpu") for _ in range(40)]
            used.clear()
            for address in addresses([torch.zeros(shape, device="cpu") for _ in range(40)]):
                now = _words(address + begin, end - begin)
                found = [
                    bits | word ^ known[i]
                    for i, (bits, word) in enumerate(zip(found, now, strict=True))
                ]
    pairs = [(begin + _WORD * i, bits) for i, bits in enumerate(found) if bits]
    if len(pairs) > _MOST_UNSET:
        raise _Unclear
    return (*pairs, *[(0, 0)] * (_MOST_UNSET - len(pairs)))


def _autograd() -> int:
    tensor = torch.zeros(2, device="cpu")
    (address,) = addresses([tensor])
    before = _words(address, _IMPL)
    tensor.requires_grad_()
    now = _words(address, _IMPL)
    return _WORD * _only([i for i, word in enumerate(now) if before[i] == 0 != word])


def _history(autograd: int) -> Span:
    leaf, made = _leaf(), _leaf() * 2
    moved = [
        *_moved(_history_of(leaf, autograd), _AUTOGRAD, lambda: leaf.requires_grad_(False)),
        *_moved(_history_of(made, autograd), _AUTOGRAD, made.detach_),
        _gradient(autograd)[0],
    ]
    return min(moved), max(moved) + 1


def _gradient(autograd: int) -> tuple[int, int]:
    leaf, gradient = _leaf(), torch.zeros(2, device="cpu")
    address = _history_of(leaf, autograd)
    before = _words(address, _AUTOGRAD)
    leaf.grad = gradient
    now = _words(address, _AUTOGRAD)
    place = _only([i for i, word in enumerate(now) if word != before[i]])
    if [now[place]] != addresses([gradient]):
        raise _Unclear
    return place * _WORD, before[place]


def _no_view(autograd: int) -> int:
    plain, view = _leaf(), _leaf()[:1]
    found, other = (_words(_history_of(each, autograd), _WORD)[0] for each in (plain, view))
    if found == other:
        raise _Unclear
    return found


def _leaf() -> torch.Tensor:
    return torch.zeros(2, device="cpu", requires_grad=True)


def _history_of(tensor: torch.Tensor, autograd: int) -> int:
    return _words(addresses([tensor])[0] + autograd, _WORD)[0]


def _moved(address: int, size: int, change: Callable[[], object]) -> list[int]:
    """The bytes that a change changes; there must be some."""
    before = ctypes.string_at(address, size)
    change()
    now = ctypes.string_at(address, size)
    moved = [i for i in range(_COUNTS, size) if now[i] != before[i]]
    if not moved:
        raise _Unclear
    return moved


def _place_of(word: int, address: int, size: int) -> int:
    """The offset of a word in the bytes from ``address`` on; it must occur there once."""
    return _WORD * _only([i for i, found in enumerate(_words(address, size)) if found == word])


def _words(address: int, size: int) -> list[int]:
    return [*(ctypes.c_size_t * (size // _WORD)).from_address(address)]


def _only(found: Sequence[int]) -> int:
    if len(found) != 1:
        raise _Unclear
    return found[0]
