"""OneFlow's dtypes by their numbers and names in a file, and what lies there for each."""

from __future__ import annotations

import torch

from ....errors import CheckpointDamaged

NUMBERS: dict[str, int] = {
    "kFloat": 2,
    "kDouble": 3,
    "kInt8": 4,
    "kInt32": 5,
    "kInt64": 6,
    "kUInt8": 7,
    "kFloat16": 9,
    "kBFloat16": 11,
    "kBool": 12,
    "kInt16": 17,
    "kComplex64": 20,
    "kComplex128": 21,
}
"""The numbers of ``data_type.proto``; the others have no tensors, or none of torch's."""

BY_NAME: dict[str, torch.dtype] = {
    "kFloat": torch.float32,
    "kDouble": torch.float64,
    "kInt8": torch.int8,
    "kInt32": torch.int32,
    "kInt64": torch.int64,
    "kUInt8": torch.uint8,
    "kFloat16": torch.float16,
    "kBFloat16": torch.bfloat16,
    "kBool": torch.bool,
    "kInt16": torch.int16,
    "kComplex64": torch.complex64,
    "kComplex128": torch.complex128,
}

WRITTEN: dict[torch.dtype, str] = {
    dtype: name
    for name, dtype in BY_NAME.items()
    if name not in ("kBFloat16", "kInt16", "kComplex64", "kComplex128")
}
"""What OneFlow 0.9 reads back: it writes bfloat16, and then cannot load it."""


def named(name: str) -> torch.dtype:
    """The dtype of that name, or of that number in digits.

    Raises:
        CheckpointDamaged: OneFlow has no tensors of it, or torch none.
    """
    if name not in BY_NAME:
        found = [one for one, number in NUMBERS.items() if str(number) == name]
        if not found:
            raise CheckpointDamaged(f"{name!r:.80} is no dtype that is read.")
        name = found[0]
    return BY_NAME[name]


def in_file(dtype: torch.dtype) -> torch.dtype:
    """The dtype of the values in a file: OneFlow writes bfloat16 as float32."""
    return torch.float32 if dtype is torch.bfloat16 else dtype


def from_file(raw: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """The tensor of values as they lie in a file.

    Raises:
        CheckpointDamaged: they are none of that dtype.
    """
    if dtype is torch.bool and raw.numel() and int(raw.view(torch.uint8).max()) > 1:
        raise CheckpointDamaged("a tensor of booleans has other bytes than 0 and 1.")
    if dtype is not torch.bfloat16:
        return raw
    bits = raw.view(torch.int32)
    if bits.numel() and bool((bits & 0xFFFF).any()):
        raise CheckpointDamaged("a tensor of bfloat16 has other values than those of bfloat16.")
    return (bits >> 16).to(torch.int16).view(torch.bfloat16)
