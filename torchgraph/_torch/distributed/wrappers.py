"""Interception of ops on tensor wrappers: as the ops that the wrapper's class runs."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import torch

from .. import OpOverload
from ..listening import not_listening
from ..names import patched
from .held import is_wrapper

_PROPAGATION = "torch.distributed.tensor._sharding_prop"
_PYTHON = torch._C.DispatchKeySet(torch._C.DispatchKey.Python)


def any_wrapper(args: Sequence[object], kwargs: Mapping[str, object]) -> bool:
    """True when an argument of an op, or what a list among them holds, is a wrapper."""
    return any(map(_holds_wrapper, args)) or any(map(_holds_wrapper, kwargs.values()))


def promises(op: OpOverload) -> bool:
    """True for the op that wraps the pending result of a collective, and computes nothing."""
    return op.namespace == "_c10d_functional" and "_wrap_tensor" in op.name()


def through(op: OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any]) -> object:
    """Call ``op`` by the ``__torch_dispatch__`` of its wrappers: listeners hear the inner ops."""
    return op.redispatch(_PYTHON, *args, **kwargs)


@contextmanager
def layouts_found_unheard() -> Iterator[None]:
    """Hide from listeners the ops by which DTensor finds a result's layout, in the block.

    It does not go by numbers, which may be some that move: it gets what they are now.
    """
    module = sys.modules.get(_PROPAGATION)
    with ExitStack() as stack:
        if module is not None:
            cls = module.ShardingPropagator
            original: Callable[..., object] = cls.propagate_op_sharding_non_cached

            def unobserved(self: object, schema: Any, *args: object) -> object:
                numbers = ("args_schema", "kwargs_schema")
                plain = {name: _plain(getattr(schema, name)) for name in numbers}
                with not_listening():
                    return original(self, dataclasses.replace(schema, **plain), *args)

            stack.enter_context(patched(cls, "propagate_op_sharding_non_cached", unobserved))
        yield


def _plain(value: Any) -> Any:
    if isinstance(value, (torch.SymFloat, torch.SymInt)):
        return value.node.hint
    if type(value) is dict:
        return {key: _plain(item) for key, item in value.items()}
    return type(value)(map(_plain, value)) if type(value) in (list, tuple) else value


def _holds_wrapper(value: object) -> bool:
    if isinstance(value, torch.Tensor):
        return is_wrapper(value)
    return isinstance(value, (list, tuple)) and any(map(_holds_wrapper, value))
