"""A state as a tree of JSON and a dict of tensors, and back.

Numbers, strings, None and lists stand for themselves; all else is an object of JSON with one key
that names its type, such as ``{"tuple": [1, 2]}``.
"""

from __future__ import annotations

import base64
import struct
from collections import Counter, OrderedDict, defaultdict
from collections.abc import Callable, Mapping
from enum import Enum
from typing import Any, TypeAlias

import torch

from .._torch.modules import set_versions, versions_of
from ..errors import CheckpointDamaged, NotSavable
from .tensors import Stored, as_noted, problem_of, stored

DEPTH = 100
"""The deepest nesting of a state; real ones are at ten. JSON's own reader has a limit, too."""

_EXACT = 2**53  # integers up to here are the same in every reader of JSON


Writers: TypeAlias = Mapping[type, Callable[[Any], tuple[str, object]]]
"""For values of further types: the name of their kind, and what they are made of."""
Readers: TypeAlias = Mapping[str, Callable[[Any], object]]
"""The way back, by kind."""


def encoded(
    obj: object, writers: Writers | None = None, root: str = "state"
) -> tuple[object, dict[str, Stored]]:
    """The tree of a state, and its tensors by the names that the tree has for them.

    Args:
        root: what the user calls the state.

    Raises:
        NotSavable: something in it is neither a tensor nor a plain value; names the path to it.
    """
    encoder = _Encoder(writers or {}, root)
    return encoder.encode(obj, ()), encoder.tensors


def decoded(
    tree: object, tensors: Mapping[str, torch.Tensor], readers: Readers | None = None
) -> object:
    """The value that `encoded` was given; a tensor that is named twice is one object.

    Raises:
        CheckpointDamaged: the tree is none of those that `encoded` makes.
    """
    decoder = _Decoder(tensors, readers or {})
    found = decoder.decode(tree)
    if unused := set(tensors) - set(decoder.made):
        raise CheckpointDamaged(f"nothing holds the tensor {min(unused)!r:.80}.")
    return found


class _Encoder:
    def __init__(self, writers: Writers, root: str) -> None:
        self._root = root
        self.tensors: dict[str, Stored] = {}
        self._writers = writers
        self._names: dict[object, str] = {}
        self._around: set[int] = set()

    def encode(self, value: object, keys: tuple[object, ...]) -> object:
        """The tree of a value, to which ``keys`` lead."""
        if value is None or isinstance(value, bool) or type(value) is str:
            return value
        other = self._writers.get(type(value))
        if other is not None:
            kind, parts = other(value)
            return {kind: self.encode(parts, keys)}
        if isinstance(value, torch.Tensor):
            return self._tensor(value, keys)
        plain = _PLAIN.get(type(value))
        if plain is not None:
            return plain(value)
        if isinstance(value, float) and not isinstance(value, Enum):  # NumPy's float64 is one
            return _of_float(float(value))
        if type(value) not in _CONTAINERS:
            what = f"{self._path(keys)} is a {_name(type(value))}, which is not saved."
            raise NotSavable(what, fix=_way_out(value))
        if id(value) in self._around:
            raise NotSavable(f"{self._path(keys)} contains itself.")
        if len(keys) >= DEPTH:
            raise NotSavable(f"{self._path(keys)} is nested deeper than {DEPTH} levels.")
        self._around.add(id(value))
        found = self._container(value, keys)
        self._around.discard(id(value))
        return found

    def _container(self, value: Any, keys: tuple[object, ...]) -> object:
        if not isinstance(value, dict):
            items = [self.encode(item, (*keys, number)) for number, item in enumerate(value)]
            return items if type(value) is list else {_CONTAINERS[type(value)]: items}
        pairs = []
        for key, item in value.items():
            if type(key) not in (str, int, bool, float, type(None)):
                what = f"{self._path(keys)} has a {_name(type(key))} as a key."
                raise NotSavable(what, fix="use strings or numbers as keys.")
            pairs.append([self.encode(key, keys), self.encode(item, (*keys, key))])
        found: dict[str, object] = {_CONTAINERS[type(value)]: pairs}
        versions = versions_of(value)
        if versions is not None:
            found["versions"] = self.encode(versions, (*keys, "versions"))
        return found

    def _tensor(self, tensor: torch.Tensor, keys: tuple[object, ...]) -> object:
        problem = problem_of(tensor)
        if problem:
            raise NotSavable(f"{self._path(keys)} {problem[0]}", fix=problem[1])
        found = stored(tensor)
        if found.identity not in self._names:
            self._names[found.identity] = self._free(keys)
            self.tensors[self._names[found.identity]] = found
        return {"tensor": self._names[found.identity], **found.notes}

    def _free(self, keys: tuple[object, ...]) -> str:
        """A dotted path that no other tensor has; JSON's readers take no half of a character."""
        dotted = ".".join(map(_short, keys)) or "tensor"
        name = dotted = dotted.encode("utf-8", "backslashreplace").decode()
        count = 1
        while name in self.tensors or name == "__metadata__":
            count += 1
            name = f"{dotted}~{count}"
        return name

    def _path(self, keys: tuple[object, ...]) -> str:
        """The Python expression that leads to a value."""
        parts = [f"[{key!r:.60}]" if type(key) is str else f"[{_short(key)}]" for key in keys]
        return self._root + "".join(
            parts if len(parts) < 12 else [*parts[:8], "[...]", *parts[-3:]]
        )


class _Decoder:
    def __init__(self, tensors: Mapping[str, torch.Tensor], readers: Readers) -> None:
        self._tensors = tensors
        self._readers = readers
        self.made: dict[str, torch.Tensor] = {}

    def decode(self, tree: object, depth: int = 0) -> Any:
        """The value of a tree."""
        if depth > DEPTH + 2:  # the versions of a state_dict are a level or two below it
            raise CheckpointDamaged(f"it is nested deeper than {DEPTH} levels.")
        if isinstance(tree, list):
            return [self.decode(item, depth + 1) for item in tree]
        if not isinstance(tree, dict):
            return tree
        (kind, content), *rest = tree.items()
        if kind == "tensor":
            return self._tensor(content, dict(rest))
        if kind in _READ_PLAIN:
            return _READ_PLAIN[kind](content)
        if kind in self._readers:
            return self._readers[kind](self.decode(content, depth + 1))
        found = _READ_CONTAINERS[kind](self._items(kind, content, depth))
        if rest:
            set_versions(found, self.decode(dict(rest)["versions"], depth + 1))
        return found

    def _tensor(self, name: str, notes: dict[str, Any]) -> torch.Tensor:
        if name not in self.made:
            dtype = _of_dtype(notes["dtype"]) if "dtype" in notes else None
            self.made[name] = as_noted(self._tensors[name], dtype, notes)
        return self.made[name]

    def _items(self, kind: str, content: Any, depth: int) -> Any:
        if kind in ("tuple", "Size"):
            return self.decode(content, depth)
        items = {self.decode(key): self.decode(value, depth + 1) for key, value in content}
        if len(items) != len(content):
            raise CheckpointDamaged("a dict has a key twice.")
        return items


def _of_float(value: float) -> object:
    # A NaN has bits of its own; all others are exact, and to be read, in hexadecimal.
    return {"nan": struct.pack(">d", value).hex()} if value != value else {"float": value.hex()}


def _of_int(value: int) -> object:
    return value if abs(value) <= _EXACT else {"int": hex(value)}


def _of_nan(text: str) -> float:
    (value,) = struct.unpack(">d", bytes.fromhex(text))
    return float(value)


_NAMED = {
    str(value).removeprefix("torch."): value
    for value in vars(torch).values()
    if isinstance(value, torch.dtype)
}


def _of_dtype(name: str) -> torch.dtype:
    if name not in _NAMED:
        raise CheckpointDamaged(f"{name!r:.80} is no dtype.")
    return _NAMED[name]


_PLAIN: dict[type, Callable[[Any], object]] = {
    int: _of_int,
    float: _of_float,
    complex: lambda value: {"complex": [_of_float(value.real), _of_float(value.imag)]},
    bytes: lambda value: {"bytes": base64.b64encode(value).decode()},
    torch.dtype: lambda value: {"dtype": str(value).removeprefix("torch.")},
    torch.device: lambda value: {"device": str(value)},
}
_READ_PLAIN: dict[str, Callable[[Any], object]] = {
    "int": lambda text: int(text, 16),
    "float": float.fromhex,
    "nan": _of_nan,
    "complex": lambda pair: complex(*(_Decoder({}, {}).decode(part) for part in pair)),
    "bytes": lambda text: base64.b64decode(text, validate=True),
    "dtype": _of_dtype,
    "device": torch.device,
}
_CONTAINERS: dict[type, str] = {
    list: "list",
    tuple: "tuple",
    torch.Size: "Size",
    dict: "dict",
    defaultdict: "dict",
    OrderedDict: "OrderedDict",
    Counter: "Counter",
}
_READ_CONTAINERS: dict[str, Callable[[Any], Any]] = {
    "tuple": tuple,
    "Size": torch.Size,
    "dict": dict,
    "OrderedDict": OrderedDict,
    "Counter": Counter,
}


def _short(key: object) -> str:
    # Python writes no number of thousands of digits in decimal.
    return hex(key) if type(key) is int and abs(key) > _EXACT else str(key)


def _name(cls: type) -> str:
    module = cls.__module__
    return cls.__qualname__ if module == "builtins" else f"{module}.{cls.__qualname__}"


def _way_out(value: object) -> str:
    if isinstance(value, (set, frozenset)):
        return "save sorted(...) of it."
    if isinstance(value, tuple):
        return "save tuple(...) of it."
    if hasattr(type(value), "__array__"):
        return "save torch.from_numpy(...) of an array, float(...) or int(...) of a number."
    if hasattr(type(value), "state_dict"):
        return "save its state_dict()."
    return ""
