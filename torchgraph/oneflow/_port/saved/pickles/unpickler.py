"""The standard library's unpickler over a pickle of OneFlow's, with a list of names and opcodes.

`pickletools` goes through the pickle first: the unpickler takes memory for whatever length or
number a pickle states. A name is never imported: each that is known stands for a `Record` or a dict
of this module, which hold what they are given and do nothing.
"""

from __future__ import annotations

import io
import pickle
import pickletools
from collections import OrderedDict
from typing import Any

from ....._torch.modules import set_versions
from .....errors import CheckpointDamaged

_REPLACED = {"FRAME": (9, b""), "EMPTY_DICT": (1, b"cbuiltins\ndict\n)R")}
"""By the opcode: its bytes, its argument's among them, and what the unpickler gets."""
_MEMOIZED = frozenset({"MEMOIZE", "BINPUT", "LONG_BINPUT"})
_OPCODES = (
    _MEMOIZED
    | {"PROTO", "FRAME", "STOP", "MARK", "BINGET", "LONG_BINGET", "NONE", "NEWTRUE", "NEWFALSE"}
    | {"BININT", "BININT1", "BININT2", "LONG1", "LONG4", "BINFLOAT"}
    | {"BINUNICODE", "SHORT_BINUNICODE", "BINUNICODE8", "BINBYTES", "SHORT_BINBYTES", "BINBYTES8"}
    | {"EMPTY_TUPLE", "TUPLE", "TUPLE1", "TUPLE2", "TUPLE3", "EMPTY_LIST", "APPEND", "APPENDS"}
    | {"EMPTY_DICT", "SETITEM", "SETITEMS", "GLOBAL", "STACK_GLOBAL", "REDUCE", "NEWOBJ", "BUILD"}
)
"""What plain values, records and containers are written with; none calls a name it does not get."""


def read(content: bytes) -> Any:
    """What a pickle says: plain values, containers, and records of tensors and arrays.

    Raises:
        CheckpointDamaged: it is cut, or has an opcode or a name that no checkpoint needs.
    """
    try:
        return _Unpickler(_scanned(content)).load()
    except CheckpointDamaged:
        raise
    except Exception as error:  # a file may hold anything
        raise CheckpointDamaged("its pickle makes no sense.") from error


def refused(what: str) -> CheckpointDamaged:
    """The error for what a checkpoint does not have."""
    return CheckpointDamaged(
        what,
        fix="load it with OneFlow if you trust it, and save tensors and plain values alone.",
    )


def _scanned(content: bytes) -> io.BytesIO:
    """The pickle, of known opcodes, with each length as it states it, and numbers in order.

    Frames are left out: the unpickler takes other bytes than `pickletools` where one ends amid an
    opcode. A dict is made by its name, so that `Items` sees its keys before they are hashed.
    """
    found, view, start, memoized = io.BytesIO(), memoryview(content), 0, 0
    for opcode, argument, at in pickletools.genops(content):
        if opcode.name not in _OPCODES:
            raise refused(f"its pickle has the opcode {opcode.name}, which no checkpoint needs.")
        if opcode.name in _MEMOIZED:
            if (argument or 0) > memoized:
                raise refused("its pickle numbers its values out of order.")
            memoized += 1
        elif opcode.name in _REPLACED:
            size, replacement = _REPLACED[opcode.name]
            found.write(view[start:at])
            found.write(replacement)
            start = (at or 0) + size
    found.write(view[start:])
    found.seek(0)
    return found


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> type:
        """The class that stands for a name; nothing is imported."""
        if (module, name) not in _NAMES:
            raise refused(f"it holds {module!r:.60}.{name!r:.60}, which is none of OneFlow's.")
        return _NAMES[module, name]


class Record:
    """An object of a pickle: its arguments, and the one state that it is given."""

    arguments: tuple[Any, ...]
    state: tuple[Any, ...] = ()

    def __new__(cls, *arguments: Any) -> Any:
        made = super().__new__(cls)
        made.arguments = arguments
        return made

    # Without this method, the unpickler would set any attribute.
    def __setstate__(self, state: Any) -> None:
        if self.state:
            raise refused("it has an object with two states.")
        self.state = (state,)


class Tensor(Record):
    """A tensor: a path to where it lies, or its values and dtype."""


class Dtype(Record):
    """A dtype of OneFlow's, by its number."""


class Size(Record):
    """The shape of a tensor."""


class Array(Record):
    """An array of NumPy's."""


class ArrayType(Record):
    """The class of an array: an argument of one."""


class Number(Record):
    """A number of NumPy's."""


class NumpyDtype(Record):
    """A dtype of NumPy's."""


class Encoded(Record):
    """Bytes, as text."""


class Complex(Record):
    """A complex number."""


class Items(dict[Any, Any]):
    """A dict whose keys are looked at first."""

    __slots__ = ()

    def __new__(cls) -> Any:
        return super().__new__(cls)

    def __setitem__(self, key: Any, value: Any) -> None:
        # A nested tuple would be hashed by recursion, and a long number is like many others.
        if type(key) not in (str, int, float, bool, type(None)) or (
            type(key) is int and key.bit_length() > 64
        ):
            raise refused(f"it has a {type(key).__name__} as a key, or a very large number.")
        super().__setitem__(key, value)

    def __setstate__(self, state: Any) -> None:
        raise refused("it has a dict with attributes of its own.")


class OrderedItems(Items, OrderedDict[Any, Any]):
    """An OrderedDict, which may have versions of modules."""

    def __setstate__(self, state: Any) -> None:
        if not isinstance(state, Items) or list(state) != ["_metadata"]:
            raise refused("it has an OrderedDict with attributes of its own.")
        set_versions(self, state["_metadata"])


_NAMES: dict[tuple[str, str], type] = {
    ("builtins", "dict"): Items,
    ("collections", "OrderedDict"): OrderedItems,
    ("_codecs", "encode"): Encoded,
    ("builtins", "complex"): Complex,
    ("numpy", "dtype"): NumpyDtype,
    ("numpy", "ndarray"): ArrayType,
    ("numpy.core.multiarray", "_reconstruct"): Array,
    ("numpy._core.multiarray", "_reconstruct"): Array,
    ("numpy.core.multiarray", "scalar"): Number,
    ("numpy._core.multiarray", "scalar"): Number,
    ("oneflow", "Tensor"): Tensor,
    ("oneflow.nn", "Parameter"): Tensor,
    ("oneflow._oneflow_internal", "Tensor"): Tensor,
    ("oneflow", "Size"): Size,
    ("oneflow._oneflow_internal", "dtype"): Dtype,
}
