"""Keys: all of an object but its tensors, to be compared from call to call."""

from __future__ import annotations

import functools
import gc
import io
import types
from collections.abc import Iterator
from decimal import Decimal
from typing import Any

import torch

from .._torch import FakeTensor
from ..ir.aliasing import is_opaque
from ..objects import is_a
from .kinds import OPAQUE, SYMBOLS, ArrayContent, SameAsItem, hash_of, kind_of

Key = tuple[object, ...]
_Seen = dict[int, tuple[int, object]]


class Unread:
    """Stands for an argument that the step does not read."""

    __slots__ = ()

    def __repr__(self) -> str:
        return "an argument that the step does not read"

    def __reduce__(self) -> str:
        return "UNREAD"


UNREAD = Unread()

_VALUES = frozenset(
    {bool, int, str, bytes, type(None), type(...), torch.dtype, torch.device, torch.layout}
    | {torch.Size, torch.memory_format, SameAsItem, Unread}
)
"""Types whose objects are leaves, equal when they are."""


class Unfit(Exception):
    """A leaf that can be neither bound nor compared, and what to do about it."""

    def __init__(self, what: str, fix: str = "") -> None:
        super().__init__(what)
        self.what, self.fix = what, fix


def key_of(value: Any, tensors: list[torch.Tensor], seen: _Seen) -> object:
    """The key of ``value``; its tensors are added to ``tensors``.

    ``seen``: the objects met so far. One that is met again is told from another one like it.

    Raises:
        Unfit: a leaf has no key.
    """
    cls = type(value)
    if cls is torch.Tensor:
        tensors.append(value)
        return torch.Tensor
    if cls in _VALUES:
        return (cls, value)
    if cls is float or cls is complex:
        # 0.0 and -0.0 are equal, and so are 1, 1.0 and True: they are not the same program.
        return (cls, repr(value))
    known = seen.get(id(value))
    if known is not None:
        return (known[0],)
    if cls is dict:
        seen[id(value)] = (len(seen), value)
        return (
            cls,
            tuple([(key_name(name), key_of(part, tensors, seen)) for name, part in value.items()]),
        )
    if cls is list or cls is tuple:
        seen[id(value)] = (len(seen), value)
        return (cls, tuple([key_of(part, tensors, seen) for part in value]))
    kind = kind_of(cls)
    if kind is None:
        if not isinstance(value, torch.Tensor):  # asking a class of tensors takes a while
            return leaf_key(value)
        _check_class(value)
        tensors.append(value)
        return cls
    seen[id(value)] = (len(seen), value)
    parts = kind.parts(value)
    return (
        cls,
        tuple([(how, key_name(n), key_of(part, tensors, seen)) for (how, n), part in parts]),
    )


def _check_class(tensor: torch.Tensor) -> None:
    """Raise Unfit for a subclass that is not the memory that it shows."""
    if isinstance(tensor, FakeTensor):
        raise Unfit("is a fake tensor: it holds no data")
    if is_opaque(tensor):
        what = f"is a {type(tensor).__name__}, a tensor with a dispatch of its own"
        raise Unfit(what, fix="pass the tensors that it holds.")


def key_name(name: object) -> object:
    """A key of a dict, which is no other one that it equals."""
    if type(name) is str:
        return name
    tensors: list[torch.Tensor] = []
    try:
        found = key_of(name, tensors, {})
    except Unfit:
        found = (type(name), id(name), name)
    if tensors:
        raise Unfit("has a tensor as a key", "key it by a string or a number.")
    return found


def leaf_key(value: Any) -> Key:
    """The key of an object that is not taken apart.

    Raises:
        Unfit: it has none.
    """
    cls = type(value)
    if cls is ArrayContent and value.data is None:
        what = f"is a ndarray of {value.shape}, dtype {value.dtype}, which is no small constant"
        raise Unfit(what, "pass torch.from_numpy(...).")
    if cls in _VALUES or cls is ArrayContent:
        return (cls, value)
    if issubclass(cls, SYMBOLS):
        return (cls,)
    if issubclass(cls, _ONE_WAY) or cls.__module__ == "numpy":
        return (cls, repr(value))
    if issubclass(cls, OPAQUE):
        raise Unfit(f"is a {cls.__name__}, in which no tensor can be found", _advice(value))
    try:
        hash(value)
    except Exception:  # a memoryview raises ValueError
        what = f"is a {cls.__name__}, which can neither be bound like a tensor nor compared"
        raise Unfit(f"{what} from call to call") from None
    if hash_of(cls) is hash_of(object) or is_a(value, _CALLABLE):
        hidden = next(_hidden(value, 4), None)
        if hidden is not None:
            name = getattr(value, "__qualname__", cls.__name__)
            raise Unfit(
                f"is a {cls.__name__} ({name}) that holds a tensor of shape {tuple(hidden.shape)}, "
                "where no program can follow it",
                "give the step the tensor itself, as an argument beside it.",
            )
    return (cls, value)


_ONE_WAY = (float, complex, Decimal, range)
"""Equal ones may be written in several ways, and then are not the same in all they do."""
_CALLABLE = (types.FunctionType, types.BuiltinFunctionType)
_NATIVE = (list, tuple, dict, set, frozenset, types.CellType, functools.partial)


def _advice(value: object) -> str:
    if issubclass(type(value), io.IOBase):
        return "read it before, and pass what it holds."
    return "take from it before the call (next(...), list(...)), and pass that."


def _hidden(value: object, depth: int) -> Iterator[torch.Tensor]:
    """The tensors that an opaque object holds in plain sight of the garbage collector."""
    if is_a(value, torch.Tensor):
        yield value
    elif depth:
        for part in _held(value):
            if is_a(part, (torch.Tensor, *_NATIVE, *_CALLABLE)):
                yield from _hidden(part, depth - 1)


def _held(value: object) -> list[object]:
    if is_a(value, types.FunctionType):
        cells = [cell.cell_contents for cell in value.__closure__ or () if _is_set(cell)]
        return [*cells, *(value.__defaults__ or ()), *(value.__kwdefaults__ or {}).values()]
    if is_a(value, _NATIVE) or not type(value).__dictoffset__:  # an object of C
        return gc.get_referents(value)[:_LOOK]
    return []


_LOOK = 1000
"""The most parts of an opaque object that are compared at each call."""


def _is_set(cell: types.CellType) -> bool:
    try:
        _ = cell.cell_contents
    except ValueError:
        return False
    return True
