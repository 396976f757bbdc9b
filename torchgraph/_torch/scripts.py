"""Private properties of TorchScript modules."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from .names import patched

optimizes: Callable[[], bool] = torch._C._get_graph_executor_optimize
set_optimize: Callable[[bool], None] = torch._C._set_graph_executor_optimize
"""False in ``torch.jit.optimized_execution(False)``: other formulas then."""


def reader_of(module: Any) -> Callable[[str], Any]:
    """Reads attributes of a TorchScript module past Python's."""
    read: Callable[[str], Any] = module._c.getattr
    return read


def set_attribute(module: Any, name: str, value: Any) -> None:
    """Write an attribute of a TorchScript module past Python's."""
    module._c.setattr(name, value)


def identity_of(module: Any) -> int | None:
    """The hash of the module's C++ object, which owns its methods; None for other modules."""
    scripted = issubclass(type(module), torch.jit.ScriptModule)
    return hash(module._c) if scripted and hasattr(module, "_c") else None


def names_of(module: Any) -> tuple[str, ...] | None:
    """The names of a module's attributes, parameters and buffers; None where unknown."""
    concrete: object = getattr(module, "_concrete_type", None)
    if concrete is None:
        concrete = torch._C.ConcreteModuleType.from_jit_type(module._c._type())
    if not hasattr(concrete, "get_attributes"):
        return None
    names = dict.fromkeys((*concrete.get_attributes(), "training"))
    kinds: tuple[Any, ...] = (torch._C.ParameterDict, torch._C.BufferDict)
    names.update(dict.fromkeys(name for kind in kinds for name, _ in kind(module._c).items()))
    return tuple(name for name in names if module._c.hasattr(name))


def ops_of(module: Any) -> set[str]:
    """The kinds of nodes in the module's methods, calls inlined."""
    methods = map(module._c._get_method, module._c._method_names())
    return ops_of_functions(methods)


def ops_of_functions(functions: Iterable[Any]) -> set[str]:
    """The kinds of nodes in functions of TorchScript, calls inlined."""
    found: set[str] = set()
    for function in functions:
        graph = function.inlined_graph  # held: it owns its nodes
        pending: list[Any] = [graph]
        while pending:
            for node in pending.pop().nodes():
                found.add(node.kind())
                pending.extend(node.blocks())
    return found


def can_fuse(device: str) -> bool:
    """True where TorchScript makes kernels of its own of several ops."""
    if device == "cpu":
        return bool(torch._C._jit_can_fuse_on_cpu() or torch._C._jit_can_fuse_on_cpu_legacy())
    return True


@contextmanager
def hearing_scripts(
    heard: Callable[[object, str], None], heard_function: Callable[[Any], None]
) -> Iterator[None]:
    """Report the TorchScript that this thread calls: methods, as ``Net.forward``, and functions."""
    here = threading.get_ident()
    methods, functions = torch._C.ScriptMethod, torch._C.ScriptFunction

    def told(run: Any, tell: Callable[[Any], None]) -> Callable[..., object]:
        def __call__(called: Any, *args: object, **kwargs: object) -> object:
            if threading.get_ident() == here:
                tell(called)
            return run(called, *args, **kwargs)

        return __call__

    def tell_method(method: Any) -> None:
        heard(method.owner, f"{method.owner._type().name()}.{method.name}")

    of_methods = told(methods.__call__, tell_method)
    of_functions = told(functions.__call__, heard_function)
    with (
        patched(methods, "__call__", of_methods),
        patched(functions, "__call__", of_functions),
    ):
        yield
