"""Tensors in a file: their bytes in order, and notes that safetensors viewers do not need."""

from __future__ import annotations

import ctypes
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch.nn.parameter import is_lazy

from ..errors import CheckpointDamaged

# Dtypes that every version of safetensors knows; the others lie in a file as bytes.
CODES = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.int16: "I16",
    torch.int8: "I8",
    torch.uint8: "U8",
    torch.bool: "BOOL",
}
_DTYPES = {code: dtype for dtype, code in CODES.items()}
MOST_DIMS = 64  # of a tensor, as torch has it
_PLAIN = (torch.Tensor, torch.nn.Parameter)


@dataclass
class Stored:
    """A tensor to be written."""

    tensor: torch.Tensor
    identity: object
    """Equal for two tensors that are one in memory."""
    notes: dict[str, object] = field(default_factory=dict)
    """What the tree says besides its name: strides, or the dtype and shape of what lies as bytes"""

    @property
    def code(self) -> str:
        """The dtype in the file."""
        return CODES.get(self.tensor.dtype, "U8")

    @property
    def shape(self) -> list[int]:
        """The shape in the file."""
        return list(self.tensor.shape) if self.tensor.dtype in CODES else [self.tensor.nbytes]

    def in_order(self) -> torch.Tensor:
        """The tensor; a copy where it is not on the CPU, or not contiguous."""
        return self.tensor.detach().cpu().resolve_conj().resolve_neg().contiguous()


def problem_of(tensor: torch.Tensor) -> tuple[str, str] | None:
    """The reason why a tensor cannot be saved, and the way out; None where it can."""
    if is_lazy(tensor):
        return "is a parameter that has no shape yet.", "run the module once before it is saved."
    if type(tensor) not in _PLAIN:
        return f"is a {type(tensor).__name__}, no plain tensor.", "save the plain tensors in it."
    if tensor.layout is not torch.strided:
        return (
            f"is a tensor of layout {tensor.layout}.",
            "save its indices and values, or to_dense().",
        )
    if tensor.is_meta:
        return (
            "is a tensor on the meta device, without values.",
            "move the module to a device first.",
        )
    if tensor.is_quantized:
        return "is a quantized tensor.", "save int_repr() and what it is scaled by."
    if not _has_memory(tensor):
        return "is a tensor whose memory was given back.", "save it before its storage is resized."
    try:
        torch.empty(1, dtype=tensor.dtype).clone()
    except (RuntimeError, NotImplementedError):  # as this torch says that it has no kernel
        return f"is of {tensor.dtype}, which torch cannot copy.", "save view(torch.uint8) of it."
    return None


def _has_memory(tensor: torch.Tensor) -> bool:
    if not tensor.numel():
        return True
    last = sum((size - 1) * step for size, step in zip(tensor.shape, tensor.stride(), strict=True))
    end = (tensor.storage_offset() + last + 1) * tensor.itemsize
    return end <= tensor.untyped_storage().nbytes()


def stored(tensor: torch.Tensor) -> Stored:
    """The form in a file of a tensor that `problem_of` accepts."""
    shape, strides = list(tensor.shape), list(tensor.stride())
    bits = (tensor.is_conj(), tensor.is_neg())
    place = tensor.data_ptr() if tensor.numel() else id(tensor)
    identity = (place, tensor.device, tensor.dtype, *shape, None, *strides, *bits)
    notes: dict[str, object] = {}
    if strides != _in_order(shape) and _is_dense(shape, strides):
        notes["strides"] = strides
    if tensor.dtype not in CODES:
        notes["dtype"], notes["shape"] = str(tensor.dtype).removeprefix("torch."), shape
    return Stored(tensor, identity, notes)


def made(code: str, shape: Sequence[int]) -> torch.Tensor:
    """A tensor without values, as the file has it."""
    if code not in _DTYPES:
        raise CheckpointDamaged(f"{code!r:.80} is no dtype.")
    return torch.empty(list(shape), dtype=_DTYPES[code], device="cpu")


def size_of(code: str, shape: Sequence[int]) -> int:
    """The bytes of a tensor of that dtype code and shape; -1 for an invalid one."""
    if code not in _DTYPES or not all(type(size) is int and size >= 0 for size in shape):
        return -1
    return math.prod(shape) * _DTYPES[code].itemsize


def as_noted(
    tensor: torch.Tensor, dtype: torch.dtype | None, notes: Mapping[str, list[int]]
) -> torch.Tensor:
    """A tensor of a file as it was in memory: of that dtype, with those strides."""
    if dtype is not None:
        shape = notes["shape"]
        if len(shape) > MOST_DIMS or math.prod(shape) * dtype.itemsize != tensor.nbytes:
            raise CheckpointDamaged(f"a tensor of {dtype} has another number of bytes.")
        typed = torch.empty(shape, dtype=dtype, device="cpu")
        memory_of(typed)[:] = memory_of(tensor)
        tensor = typed
    if "strides" not in notes:
        return tensor
    shape, strides = list(tensor.shape), notes["strides"]
    if not _is_dense(shape, strides):
        raise CheckpointDamaged("the strides of a tensor do not fit its shape.")
    return torch.empty_strided(shape, strides, dtype=tensor.dtype, device="cpu").copy_(tensor)


def memory_of(tensor: torch.Tensor) -> memoryview:
    """The bytes of a contiguous tensor on the CPU, to read and to write. It has to outlive them."""
    if not tensor.nbytes:
        return memoryview(bytearray())
    return memoryview((ctypes.c_ubyte * tensor.nbytes).from_address(tensor.data_ptr())).cast("B")


def _in_order(shape: Sequence[int]) -> list[int]:
    strides, step = [0] * len(shape), 1
    for dim in reversed(range(len(shape))):
        strides[dim] = step
        step *= max(shape[dim], 1)
    return strides


def _is_dense(shape: Sequence[int], strides: Sequence[int]) -> bool:
    """True where the elements fill their memory, one beside the other, in any order."""
    if len(shape) != len(strides) or not all(type(step) is int and step >= 0 for step in strides):
        return False
    expected = 1
    for step, size in sorted(zip(strides, shape, strict=True)):
        if size == 1 and step < 2**31:
            continue
        if step != expected:
            return False
        expected *= max(size, 1)
    return True
