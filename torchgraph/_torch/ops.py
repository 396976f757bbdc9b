"""Properties of ops, and the ways to call them."""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable
from typing import Any

import torch
from torch._C import FunctionSchema
from torch._ops import OpOverload

schema_of: Callable[[OpOverload], FunctionSchema] = operator.attrgetter("_schema")
overload_name: Callable[[OpOverload], str] = operator.attrgetter("_overloadname")
"""``"default"`` for an op without a name of that kind."""

FOREACH_LERP: tuple[Any, str] = (torch, "_foreach_lerp_")
PAD_PACKED: tuple[Any, str] = (torch._VF, "_pad_packed_sequence")
"""Functions, as who holds them and under which name: a recording replaces them."""


def is_dispatched(name: str) -> bool:
    """False for what only TorchScript calls, as ``aten::save``."""
    found: bool = torch._C._dispatch_has_kernel(name)
    return found


def schema_if_any(target: Any) -> FunctionSchema | None:
    """The schema of ``target``; None where it is no op."""
    return getattr(target, "_schema", None)


def fast_op(op: OpOverload) -> Callable[..., Any]:
    """The op's C++ entry, one Python frame below ``op.__call__``."""
    return getattr(op, "_op", op)


def op_functions(name: str) -> list[Callable[..., Any]]:
    """Bindings that may reach the ATen op ``name``: the method of an in-place op, functions."""
    methods = [torch._C.TensorBase] if name.endswith("_") else []
    holders = [*methods, torch._C._VariableFunctions, torch._C._nn]
    return [getattr(holder, name) for holder in holders if hasattr(holder, name)]


def composite(op: OpOverload, key: str = "CompositeExplicitAutograd") -> Callable[..., Any]:
    """The op's own C++ body, which calls other ops: run inside a trace, those are recorded."""
    return functools.partial(op._op_dk, getattr(torch._C.DispatchKey, key))
