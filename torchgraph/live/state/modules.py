"""Checks of the state of a module, and a form of it that is safe to load."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import torch
from torch import nn
from torch.nn.parameter import is_lazy

from ..._torch.modules import (
    EXTRA_STATE,
    buffers_of,
    loads_by_itself,
    parameters_of,
    set_versions,
    versions_of,
)
from .values import short, tensor_problem


def module_problems(name: str, module: nn.Module, saved: object, *, strict: bool) -> Iterator[str]:
    """Problems that keep a state from being loaded into a module."""
    if not isinstance(saved, Mapping):
        yield f"{name}: is {short(saved)}, not a dict"
        return
    own = module.state_dict()
    # What a module loads in a way of its own, by other names say, it judges itself.
    free = tuple(f"{path}." if path else "" for path in _loading_themselves(module))
    yield from (f"{name}: has {short(key)} as a key" for key in saved if type(key) is not str)
    if strict:
        missing = [key for key in own if key not in saved]
        unexpected = [key for key in saved if type(key) is str and key not in own]
        for word, keys in (("missing", missing), ("unexpected", unexpected)):
            yield from (f"{name}.{key}: {word}" for key in keys if not key.startswith(free))
    for key, value in own.items():
        if key in saved and isinstance(value, torch.Tensor) and not key.endswith(EXTRA_STATE):
            shape = None if is_lazy(value) or key.startswith(free) else tuple(value.shape)
            if problem := tensor_problem(saved[key], value, shape):
                yield f"{name}.{key}: {problem}"


def _loading_themselves(module: nn.Module) -> Iterable[str]:
    return (path for path, inner in module.named_modules() if loads_by_itself(inner))


def safe_to_load(
    module: nn.Module, saved: Mapping[str, Any], written: set[int]
) -> OrderedDict[str, Any]:
    """A state that loading does not change while it is read.

    Args:
        written: the addresses of all memory that is written.
    """
    own = module.state_dict()
    found = OrderedDict(
        (key, value.detach().clone() if _is_written(value, own.get(key), written) else value)
        for key, value in saved.items()
    )
    if (versions := versions_of(saved)) is not None:
        set_versions(found, versions)
    return found


def memory_of(modules: Iterable[nn.Module]) -> set[int]:
    """Addresses of the memory of parameters and buffers."""
    return {
        address
        for module in modules
        for inner in module.modules()
        for tensor in (*parameters_of(inner).values(), *buffers_of(inner).values())
        if (address := _address(tensor))
    }


def _address(tensor: object) -> int:
    """The start address of a tensor's memory; 0 for a value without memory of its own."""
    if not isinstance(tensor, torch.Tensor) or is_lazy(tensor):
        return 0
    try:
        return tensor.untyped_storage().data_ptr()
    except (NotImplementedError, RuntimeError):  # a sparse tensor, or one without values
        return 0


def _is_written(value: object, own: object, written: set[int]) -> bool:
    if not isinstance(value, torch.Tensor) or _address(value) not in written:
        return False
    # What is written over itself may stay.
    return not isinstance(own, torch.Tensor) or (
        (value.data_ptr(), value.dtype, value.shape, value.stride())
        != (own.data_ptr(), own.dtype, own.shape, own.stride())
    )
