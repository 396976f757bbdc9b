"""``meta`` of a variable: shape and dtype, as the text of a protobuf message."""

from __future__ import annotations

import re
from collections.abc import Sequence

import torch

from ....artifact.tensors import MOST_DIMS
from ....errors import CheckpointDamaged
from .dtypes import in_file, named

LONGEST = 16_384
"""Bytes of a ``meta``: one of 64 dimensions has less than two thousand."""
_MOST_BYTES = 2**62
_TOKEN = re.compile(r"\w+|[^\w\s]", re.ASCII)
_SHAPE, _KIND = r"shape (?:: )?{ (?P<shape>(?:dim : \d{1,19} )*)} ", r"data_type : (?P<kind>\w+) "
_MESSAGES = [re.compile(_SHAPE + _KIND, re.ASCII), re.compile(_KIND + _SHAPE, re.ASCII)]


def parsed(text: str) -> tuple[list[int], torch.dtype]:
    """Shape and dtype.

    Raises:
        CheckpointDamaged: it is no such text, or a tensor that cannot be.
    """
    tokens = "".join(f"{token} " for token in _TOKEN.findall(text))
    found = next(filter(None, (one.fullmatch(tokens) for one in _MESSAGES)), None)
    if not found:
        raise CheckpointDamaged(f"its meta is none that OneFlow writes: {text!r:.80}.")
    dtype = named(found["kind"])
    dims = [int(size) for size in re.findall(r"\d+", found["shape"])]
    size_of(dims, dtype)
    return dims, dtype


def written(shape: Sequence[int], name: str) -> str:
    """The text, as OneFlow writes it."""
    dims = "".join(f"  dim: {size}\n" for size in shape)
    return f"shape {{\n{dims}}}\ndata_type: {name}\n"


def size_of(shape: Sequence[int], dtype: torch.dtype) -> int:
    """How many bytes such a tensor has in a file.

    Raises:
        CheckpointDamaged: no tensor has this shape.
    """
    elements = room = in_file(dtype).itemsize
    for size in shape:
        if type(size) is not int or size < 0:
            raise CheckpointDamaged("a tensor has a shape that is none.")
        elements *= size
        room *= max(size, 1)
        if room > _MOST_BYTES:
            raise CheckpointDamaged("a tensor is larger than any can be.")
    if len(shape) > MOST_DIMS:
        raise CheckpointDamaged(f"a tensor has more than {MOST_DIMS} dimensions.")
    return elements
