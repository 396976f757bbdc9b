"""What a pickle of OneFlow's says, as values: records become tensors, arrays, dtypes and shapes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from ....._torch.modules import set_versions, versions_of
from .....errors import CheckpointDamaged
from ..dtypes import from_file, in_file, named
from .records import ArrayRecord, DtypeRecord, Global, SizeRecord, TensorRecord, refused

DEPTH = 100
"""How deep a state may be nested, as `torchgraph.save` has it."""
_NUMBERS = frozenset(
    {"b1", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "f2", "f4", "f8", "c8", "c16"}
)
"""Codes of NumPy's dtypes that hold numbers alone."""
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
        if isinstance(record, TensorRecord):
            return self._tensor(record), 0
        if isinstance(record, ArrayRecord):
            return self._array(record), 0
        if isinstance(record, DtypeRecord):
            return named(str(record.number)), 0
        if isinstance(record, SizeRecord):
            return _size(record), 0
        if depth >= DEPTH:
            raise refused(f"it is nested deeper than {DEPTH} levels.")
        return self._container(record, depth + 1)

    def _container(self, record: Any, depth: int) -> tuple[Any, int]:
        if isinstance(record, dict):
            items = {key: self._known(value, depth) for key, value in record.items()}
            heights = [height for _, height in items.values()]
            made: Any = type(record)((key, value) for key, (value, _) in items.items())
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
            raise refused(f"it holds {_shown(record)} where a value belongs.")
        return made, 1 + max(heights, default=0)

    # --- tensors and arrays -----------------------------------------------------------------------

    def _tensor(self, record: TensorRecord) -> torch.Tensor:
        state = record.state or {}
        if set(state) == {"path"} and type(state["path"]) is str:
            return self._found(state["path"])
        data, dtype = state.get("data"), state.get("dtype")
        known = isinstance(data, ArrayRecord) and isinstance(dtype, DtypeRecord)
        if not known or set(state) - {"data", "dtype", "device"}:
            raise refused("it has a tensor of a form that flow.save does not write.")
        return _tensor_of(self.value(data), self.value(dtype))

    def _found(self, path: str) -> torch.Tensor:
        if self._find is None:
            raise refused(f"it has a tensor in a folder {path!r:.80}, and there are no folders.")
        # Each folder is read once, however many tensors name it.
        if path not in self._tensors:
            self._tensors[path] = self._find(path)
        return self._tensors[path]

    def _array(self, record: ArrayRecord) -> Any:
        dtype = record.dtype
        if dtype is None or dtype.code not in _NUMBERS:
            raise refused("it has an array of NumPy's that holds no numbers.")
        if (dtype.order == "|") != (dtype.code in ("b1", "i1", "u1")):
            raise refused("it has an array of NumPy's without an order of bytes.")
        kind = np.dtype("<" + dtype.code)
        shape = record.shape or ()
        wanted = kind.itemsize
        for size in shape:
            wanted *= size
        if wanted != len(record.content) or len(shape) > 32 or max(shape, default=0) > 2**62:
            raise refused("it has an array of NumPy's with another number of bytes.")
        self._left -= len(record.content)
        if self._left < 0:
            raise refused("it has one array in many places.")
        if dtype.code == "b1" and record.content.strip(b"\0\1"):
            raise refused("it has an array of booleans with other bytes than 0 and 1.")
        order: Any = "F" if record.is_fortran else "C"
        made: Any = np.ndarray(shape, kind, record.content, order=order)
        return made[()] if record.shape is None else made.copy(order)


def _tensor_of(values: Any, dtype: torch.dtype) -> torch.Tensor:
    """The tensor of an array; bfloat16 lies there as float32."""
    if not isinstance(values, np.ndarray):
        raise refused("it has a tensor without values.")
    made = torch.from_numpy(np.ascontiguousarray(values).reshape(values.shape))
    if made.dtype != in_file(dtype):
        raise refused(f"it has a tensor of {dtype} with values of {made.dtype}.")
    return from_file(made, dtype)


def _size(record: SizeRecord) -> torch.Size:
    if not all(type(size) is int and 0 <= size < 2**63 for size in record.sizes):
        raise refused("it has a shape that is none.")
    return torch.Size(record.sizes)


def _shown(record: Any) -> str:
    return ".".join(record.name) if isinstance(record, Global) else f"a {type(record).__name__}"


def data_of(content: Any, values: Values) -> Any:
    """What `flow.save` was given, of what its pickle says.

    Raises:
        CheckpointDamaged: it is of another kind, or of a later version of the format.
    """
    known = type(content) is dict and {"protocol_version", "data"} <= set(content)
    if not known or set(content) - {"protocol_version", "data", "oneflow", "__oneflow__"}:
        raise CheckpointDamaged("it is a pickle, but none that flow.save has written.")
    if content["protocol_version"] != 1:
        raise CheckpointDamaged(
            f"it is of version {content['protocol_version']!r:.20}; version 1 is read.",
            fix="save it with OneFlow 0.6 to 1.0.",
        )
    return values.value(content["data"])
