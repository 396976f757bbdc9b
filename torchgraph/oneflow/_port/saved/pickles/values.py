"""Records of a pickle as tensors, arrays, dtypes and shapes: of known forms, or refused."""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from ....._torch.modules import set_versions, versions_of
from .....errors import CheckpointDamaged
from ..dtypes import from_file, in_file, named
from . import unpickler as kinds
from .unpickler import Record, refused

DEPTH = 100
"""How deep a state may be nested, as `torchgraph.save` has it."""
_NUMBERS = frozenset({"i2", "i4", "i8", "u2", "u4", "u8", "f2", "f4", "f8", "c8", "c16"})
_BYTES = frozenset({"b1", "i1", "u1"})
"""Codes of NumPy's dtypes that hold numbers alone, little-endian or of one byte."""
_PLAIN = (str, int, float, complex, bool, bytes, type(None))

Find = Callable[[str], torch.Tensor]
"""The tensor of a folder, by its name."""


class Values:
    """Records on their way to values.

    Args:
        find: None where a checkpoint has no folders.
        most: bytes that all arrays may take together: a pickle has no more than it is long.
    """

    def __init__(self, find: Find | None, most: int) -> None:
        self._find = find
        self._left = most
        self._done: dict[int, tuple[object, Any, int]] = {}
        """By identity: what it was, which keeps it alive; what it is; how deep it is nested."""
        self._around: set[int] = set()
        self._tensors: dict[str, torch.Tensor] = {}

    def value(self, record: Any, depth: int = 0) -> Any:
        """The value of a record, or of a container of them; what is shared stays shared.

        Raises:
            CheckpointDamaged: it is none, contains itself, or is nested too deep.
        """
        return self._known(record, depth)[0]

    def _known(self, record: Any, depth: int) -> tuple[Any, int]:
        if type(record) in _PLAIN:
            return record, 0
        found = self._done.get(id(record))
        if found is None:
            if id(record) in self._around:
                raise refused("it contains itself.")
            self._around.add(id(record))
            made, height = self._made(record, depth)
            self._around.discard(id(record))
            found = self._done[id(record)] = record, made, height
        if depth + found[2] > DEPTH:
            raise refused(f"it is nested deeper than {DEPTH} levels.")
        return found[1], found[2]

    def _made(self, record: Any, depth: int) -> tuple[Any, int]:
        if isinstance(record, Record):
            return self._of_record(record), 0
        if depth >= DEPTH:
            raise refused(f"it is nested deeper than {DEPTH} levels.")
        return self._container(record, depth + 1)

    def _container(self, record: Any, depth: int) -> tuple[Any, int]:
        if isinstance(record, kinds.Items):
            items = {key: self._known(value, depth) for key, value in record.items()}
            heights = [height for _, height in items.values()]
            kind = OrderedDict if isinstance(record, OrderedDict) else dict
            made: Any = kind((key, value) for key, (value, _) in items.items())
            versions = versions_of(record)
            if versions is not None:
                value, height = self._known(versions, depth)
                set_versions(made, value)
                heights.append(height)
        elif type(record) in (list, tuple):
            parts = [self._known(value, depth) for value in record]
            heights = [height for _, height in parts]
            made = type(record)(value for value, _ in parts)
        else:
            raise refused("it holds a class where a value belongs.")
        return made, 1 + max(heights, default=0)

    # --- records ----------------------------------------------------------------------------------

    def _of_record(self, record: Record) -> Any:
        match record, record.arguments, record.state:
            case kinds.Tensor(), (), ({"path": str() as path, **rest},) if not rest:
                return self._found(path)
            case kinds.Tensor(), (), ({"data": kinds.Array() as data, "dtype": dtype, **rest},) if (
                isinstance(dtype, kinds.Dtype) and not set(rest) - {"device"}
            ):
                return _tensor_of(self.value(data), self.value(dtype))
            case kinds.Dtype(), (), (int() as number,):
                return named(str(number))
            case kinds.Size(), (tuple() as sizes,), () if _are_sizes(sizes):
                return torch.Size(sizes)
            case kinds.Complex(), (float() as real, float() as imaginary), ():
                return complex(real, imaginary)
            case kinds.Encoded(), _, ():
                return self._bytes(record)
            case kinds.Number(), (dtype, content), ():
                return self._array(dtype, (), content, "C")[()]
            case kinds.Array(), (kinds.ArrayType, _, _), (
                (_, shape, dtype, bool() as is_fortran, content),
            ):
                return self._array(dtype, shape, content, "F" if is_fortran else "C")
        name = type(record).__name__
        raise refused(f"it has a {name} of a form that OneFlow does not write.")

    def _found(self, path: str) -> torch.Tensor:
        if self._find is None:
            raise refused(f"it has a tensor in a folder {path!r:.80}, and there are no folders.")
        # Each folder is read once, however many tensors name it.
        if path not in self._tensors:
            self._tensors[path] = self._find(path)
        return self._tensors[path]

    def _array(self, dtype: Any, shape: Any, content: Any, order: Any) -> Any:
        kind = _numpy_dtype(dtype)
        if type(shape) is not tuple or len(shape) > 32 or not _are_sizes(shape):
            raise refused("it has an array of NumPy's of no shape.")
        found = self._bytes(content)
        if math.prod(shape) * kind.itemsize != len(found):
            raise refused("it has an array of NumPy's with another number of bytes.")
        if kind == np.bool_ and found.strip(b"\0\1"):
            raise refused("it has an array of booleans with other bytes than 0 and 1.")
        return np.ndarray(shape, kind, found, order=order).copy(order)

    def _bytes(self, content: Any) -> bytes:
        """What a copy is made of: as many bytes in all as the pickle has."""
        match content:
            case kinds.Encoded(arguments=(str() as found, "latin1"), state=()):
                pass
            case bytes() as found:
                pass
            case _:
                raise refused("it has bytes that are none, or an array of objects.")
        self._left -= len(found)
        if self._left < 0:
            raise refused("it has one array in many places.")
        return found.encode("latin1") if isinstance(found, str) else found


def _numpy_dtype(record: Any) -> np.dtype[Any]:
    if isinstance(record, kinds.NumpyDtype):
        match record.arguments, record.state:
            case (str() as code, *_), ((_, "<", None, None, None, _, _, _),) if code in _NUMBERS:
                return np.dtype("<" + code)
            case (str() as code, *_), ((_, "|", None, None, None, _, _, _),) if code in _BYTES:
                return np.dtype(code)
    raise refused("it has an array of NumPy's that is not little-endian, or holds no numbers.")


def _are_sizes(sizes: tuple[Any, ...]) -> bool:
    return all(type(size) is int and 0 <= size <= 2**62 for size in sizes)


def _tensor_of(values: Any, dtype: torch.dtype) -> torch.Tensor:
    """The tensor of an array; bfloat16 lies there as float32."""
    made = torch.from_numpy(np.ascontiguousarray(values).reshape(values.shape))
    if made.dtype != in_file(dtype):
        raise refused(f"it has a tensor of {dtype} with values of {made.dtype}.")
    return from_file(made, dtype)


def data_of(content: Any, values: Values) -> Any:
    """What `flow.save` was given, of what its pickle says.

    Raises:
        CheckpointDamaged: it is of another kind, or of a later version of the format.
    """
    known = isinstance(content, dict) and {"protocol_version", "data"} <= set(content)
    if not known or set(content) - {"protocol_version", "data", "oneflow", "__oneflow__"}:
        raise CheckpointDamaged("it is a pickle, but none that flow.save has written.")
    if content["protocol_version"] != 1:
        raise CheckpointDamaged(
            f"it is of version {content['protocol_version']!r:.20}; version 1 is read.",
            fix="save it with OneFlow 0.6 to 1.0.",
        )
    return values.value(content["data"])
