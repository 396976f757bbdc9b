"""The call of what Inductor has compiled, without what torch does around it in each call.

AOTAutograd and `CompiledFxGraph` stand around generated code with four functions in Python, which
put right what a graph does to views and to its inputs, turn off grad mode, and tell a profiler. Of
a graph that leaves nothing to put right, grad mode is all that a call needs.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from .surroundings import is_profiling

Compiled = Callable[..., Sequence[torch.Tensor]]
_Generated = Callable[[list[torch.Tensor]], Sequence[torch.Tensor]]
_WRAPPERS = "torch._functorch._aot_autograd.runtime_wrappers"
_GRAPHS = "torch._inductor.output_code"
_LEFT_OUT = (
    *("num_mutated_inp_runtime_indices", "num_outputs_aliased", "num_intermediate_bases"),
    *("dynamic_outputs", "grad_enabled_mutation", "tokens", "is_rng_op_functionalized"),
)
"""What a graph may leave to its wrapper, in the metadata of AOTAutograd."""

Wrapped = list[tuple[object, object]]
"""Each function that AOTAutograd put its wrapper around, and the metadata."""


@contextmanager
def wrapped() -> Iterator[Wrapped]:
    """What AOTAutograd wraps in the block, where a compiled graph is loaded."""
    cls: Any = getattr(importlib.import_module(_WRAPPERS), "RuntimeWrapper", None)
    original = getattr(cls, "post_compile", None)
    found: Wrapped = []
    if original is None:
        yield found
        return

    def post_compile(self: object, function: object, *args: Any, **kwargs: Any) -> Any:
        found.append((function, kwargs.get("runtime_metadata")))
        return original(self, function, *args, **kwargs)

    cls.post_compile = post_compile
    try:
        yield found
    finally:
        cls.post_compile = original


def unwrapped(whole: Compiled, found: Wrapped) -> Compiled:
    """``whole``, or a function that gives the same with less around it.

    Args:
        found: what was `wrapped` when ``whole`` was loaded.
    """
    inner = _generated(*found[0]) if len(found) == 1 else None
    if inner is None:
        return whole
    code, has_run = inner, False

    def function(*inputs: torch.Tensor) -> Sequence[torch.Tensor]:
        nonlocal has_run
        if not has_run or is_profiling():  # a first call ends what compiling began
            has_run = True
            return whole(*inputs)
        if not torch.is_grad_enabled():
            return code([*inputs])
        torch._C._set_grad_enabled(False)
        try:
            return code([*inputs])
        finally:
            torch._C._set_grad_enabled(True)

    return function


def _generated(graph: Any, metadata: object) -> _Generated | None:
    """The code of a graph that leaves nothing to its wrappers; None where that is not known."""
    if type(graph) is not graph_class() or any(getattr(metadata, n, True) for n in _LEFT_OUT):
        return None
    code: Any = getattr(graph, "current_callable", None)
    return code if callable(code) else None


def graph_class() -> type | None:
    """torch's class of compiled graphs."""
    found: type | None = getattr(importlib.import_module(_GRAPHS), "CompiledFxGraph", None)
    return found
