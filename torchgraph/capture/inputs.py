"""The arguments of a call by path: tensors, apart from the values that a program is made for."""

from __future__ import annotations

import copy
import dataclasses
import inspect
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import torch

from .._torch import FakeTensor, pytree
from ..aliasing import has_strides
from ..errors import UnsupportedInput
from ..guards import Starts, starts_of_like
from ..program import TensorMeta


class Call(NamedTuple):
    """One call: its tensors, and the key that tells which programs can serve it."""

    tensors: list[torch.Tensor]
    key: tuple[Any, ...]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    memory: Sequence[int] = ()
    """Where the storage of each tensor starts."""

    def without_data(self) -> Call:
        """The call as a description: keeping it keeps no batch alive."""
        args, kwargs = map_leaves((self.args, self.kwargs), torch.Tensor, hollow)
        return Call(list(map(hollow, self.tensors)), self.key, args, kwargs)


def hollow(tensor: torch.Tensor) -> torch.Tensor:
    """A tensor of the same shape, strides and dtype that holds no data."""
    return torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device="meta")


class Inputs:
    """Binds calls of one `build`: keyword order never matters, all else is part of the key."""

    def __init__(self, build: Callable[..., Any]) -> None:
        self._signature = inspect.signature(build)
        self._counts: set[int] = set()
        self._starts: Starts | None = None
        self._key: tuple[Any, ...] = ()
        """Of calls whose tensors, all different, ``_starts`` accepts."""

    def bind(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Call:
        """Flatten one call.

        Raises:
            TypeError: the arguments do not fit `build`.
            UnsupportedInput: an argument cannot be bound or compared; names its path.
        """
        if self._starts is not None and not kwargs:
            found = self._starts(args)
            if found is not None:
                return Call(list(args), self._key, args, kwargs, found)
        if kwargs or len(args) not in self._counts:
            bound = self._signature.bind(*args, **kwargs)
            args, kwargs = bound.args, dict(sorted(bound.kwargs.items()))
            if not kwargs:
                self._counts.add(len(args))
        if not kwargs and all(type(arg) is torch.Tensor for arg in args):
            keys = tuple(map(_tensor_key, args))  # and no tensor without a storage is left
            memory = list(map(_start, args))
            flat = (keys, _sharing(args, memory))
            self._starts, self._key = (None if flat[1] else starts_of_like(args)), flat
            return Call(list(args), flat, args, kwargs, memory)
        tensors: list[torch.Tensor] = []
        tree = (_flatten(args, "args", tensors), _flatten(kwargs, "kwargs", tensors))
        keys = tuple(map(_tensor_key, tensors))
        memory = list(map(_start, tensors))
        return Call(tensors, (tree, keys, _sharing(tensors, memory)), args, kwargs, memory)


def _tensor_key(tensor: torch.Tensor) -> tuple[Any, ...]:
    if tensor.is_nested:
        raise UnsupportedInput(
            f"An input of {tensor.size(0)} sequences is a nested tensor.",
            fix="pass a padded tensor (to_padded_tensor()) and the lengths.",
        )
    if tensor.grad_fn is not None:
        raise UnsupportedInput(
            f"An input of shape {tuple(tensor.shape)} carries an autograd graph "
            f"({tensor.grad_fn}); gradients cannot flow out of the program into it.",
            fix="detach() it, or move the computation that makes it into build.",
        )
    if tensor.layout is not torch.strided:
        raise UnsupportedInput(
            f"An input of shape {tuple(tensor.shape)} has the layout {tensor.layout}.",
            fix="pass a strided tensor (to_dense()).",
        )
    lazy = (tensor.is_conj(), tensor.is_neg())
    return (tensor.shape, tensor.dtype, tensor.stride(), tensor.device, tensor.requires_grad, lazy)


def _start(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


def _sharing(
    tensors: Sequence[torch.Tensor], memory: Sequence[int]
) -> tuple[tuple[int, int, int], ...]:
    """(first, other, distance) for tensors of one storage: part of what a program is made for."""
    if len(set(memory)) == len(memory):
        return ()
    first_of: dict[int, int] = {}
    found = []
    for position, (tensor, pointer) in enumerate(zip(tensors, memory, strict=True)):
        first = first_of.setdefault(pointer, position)
        if first != position and pointer:  # empty tensors have no memory
            distance = int(tensor.storage_offset() - tensors[first].storage_offset())
            found.append((first, position, distance))
    return tuple(found)


def _flatten(value: Any, path: str, tensors: list[torch.Tensor]) -> Any:
    """Collect the tensors of a tree; the rest comes back as a hashable description."""
    if isinstance(value, torch.Tensor):
        _check_tensor(value, path)
        tensors.append(value)
        return torch.Tensor
    if isinstance(value, dict):
        items = ((key, _flatten(item, f"{path}[{key!r}]", tensors)) for key, item in value.items())
        return (type(value), tuple(items))
    if isinstance(value, (list, tuple)):
        parts = [_flatten(item, f"{path}[{i}]", tensors) for i, item in enumerate(value)]
        own = ((n, _flatten(item, f"{path}.{n}", tensors)) for n, item in _own(value).items())
        return (type(value), (*parts, *own))
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = ((f.name, getattr(value, f.name)) for f in dataclasses.fields(value))
        return (type(value), tuple((n, _flatten(v, f"{path}.{n}", tensors)) for n, v in fields))
    return _static_key(value, path)


def _check_tensor(tensor: torch.Tensor, path: str) -> None:
    if isinstance(tensor, FakeTensor):
        raise UnsupportedInput(f"{path} is a fake tensor: it holds no data.")


def _static_key(value: Any, path: str) -> tuple[Any, ...]:
    try:
        hash(value)
    except TypeError:
        raise UnsupportedInput(
            f"{path} is a {type(value).__name__}, which can neither be bound like a tensor nor "
            "compared from call to call."
        ) from None
    # 1, 1.0 and True are equal, and so are 0.0 and -0.0, but they are not the same program.
    return (type(value), repr(value) if isinstance(value, (float, complex)) else value)


def map_leaves(value: Any, kind: type, replace: Callable[[Any], Any]) -> Any:
    """The same tree with each leaf of one kind replaced; dataclasses are copied, the rest kept."""
    if isinstance(value, kind):
        return replace(value)
    if isinstance(value, dict):
        return _like_dict(
            value, {key: map_leaves(item, kind, replace) for key, item in value.items()}
        )
    if isinstance(value, (list, tuple)):
        items = [map_leaves(item, kind, replace) for item in value]
        own = {name: map_leaves(item, kind, replace) for name, item in _own(value).items()}
        return _like_sequence(value, items, own)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        changed = {
            f.name: map_leaves(getattr(value, f.name), kind, replace) for f in _init_fields(value)
        }
        return _like_dataclass(value, changed)
    return value


def _like_dataclass(original: Any, fields: dict[str, Any]) -> Any:
    try:
        return dataclasses.replace(original, **fields)
    except Exception:  # its own __post_init__ looks at what it is given: no placeholder passes
        like = copy.copy(original)
        for name, value in fields.items():
            object.__setattr__(like, name, value)
        return like


def _init_fields(value: Any) -> list[Any]:
    return [f for f in dataclasses.fields(value) if f.init]


def _like_dict(original: Any, items: dict[Any, Any]) -> Any:
    if type(original) is dict:
        return items
    if dataclasses.is_dataclass(type(original)):  # a transformers ModelOutput is both
        return type(original)(**items)
    like = original.copy()
    like.update(items)
    return like


def _own(value: Any) -> dict[str, Any]:
    """The attributes of an object of a named tuple's class, besides its fields."""
    return vars(value) if hasattr(value, "_fields") and hasattr(value, "__dict__") else {}


def _like_sequence(original: Any, items: list[Any], own: dict[str, Any]) -> Any:
    if type(original) is list:
        return items
    if not hasattr(original, "_fields"):
        return type(original)(items)
    # Its own __new__ may look at what it is given, as PackedSequence's does: no placeholder passes.
    like = tuple.__new__(type(original), items)
    if own:
        vars(like).update(own)
    return like


def paths(args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[str]:
    """The path of each tensor of a call, in binding order."""
    return [path for path, leaf in leaves(args, kwargs) if isinstance(leaf, torch.Tensor)]


def leaves(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    """(path such as ``args[0].mask``, value) of each leaf of a call, tensor or not."""
    yield from _leaves(args, "args")
    yield from _leaves(kwargs, "kwargs")


def _leaves(value: Any, path: str) -> Iterator[tuple[str, Any]]:
    if isinstance(value, dict):
        for key, item in value.items():
            yield from _leaves(item, f"{path}[{key!r}]")
    elif isinstance(value, (list, tuple)):
        for position, item in enumerate(value):
            yield from _leaves(item, f"{path}[{position}]")
        for name, item in _own(value).items():
            yield from _leaves(item, f"{path}.{name}")
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        for field in dataclasses.fields(value):
            yield from _leaves(getattr(value, field.name), f"{path}.{field.name}")
    else:
        yield path, value


def described(tree: Any) -> tuple[tuple[str, TensorMeta | str], ...]:
    """(path such as ``0.1``, tensor metadata or type name) of every leaf, for the debug tree."""
    return tuple(
        (_joined(path), TensorMeta.of(leaf) if _has_meta(leaf) else type(leaf).__name__)
        for path, leaf in _with_paths(tree)
    )


def _with_paths(tree: Any) -> list[tuple[Any, Any]]:
    try:
        return list(pytree.tree_flatten_with_path(tree)[0])
    except ValueError:  # a class is registered without the names of its parts, as diffusers' are
        return [((number,), leaf) for number, leaf in enumerate(pytree.tree_leaves(tree))]


def _has_meta(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and has_strides(value)


def _joined(path: Any) -> str:
    return ".".join(
        str(getattr(key, "idx", getattr(key, "key", getattr(key, "name", key)))) for key in path
    )
