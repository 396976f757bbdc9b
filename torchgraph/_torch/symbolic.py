"""Python's own functions over symbolic numbers: torch's, and what they hide from a trace."""

from __future__ import annotations

import builtins
import contextlib
import functools
import math
from collections.abc import Callable, Iterator, Mapping
from contextvars import ContextVar
from types import CodeType
from typing import Any
from unittest import mock

import torch

from .names import standing_for


def symbolic_function(name: str) -> Callable[[object], object] | None:
    """The function for ``exp`` or ``sin`` of a symbolic number; None where torch has none."""
    return getattr(torch, f"_sym_{name}", None)


def _is_symbolic(value: object) -> bool:
    return isinstance(value, (torch.SymInt, torch.SymFloat))


def _symbolic_extreme(
    plain: Callable[..., object], symbolic: Callable[..., object]
) -> Callable[..., object]:
    @functools.wraps(plain)
    def extreme(*values: object, **options: object) -> object:
        tensors = any(isinstance(value, torch.Tensor) for value in values)  # Python compares them
        if len(values) > 1 and not options and not tensors and any(map(_is_symbolic, values)):
            return functools.reduce(symbolic, values)
        return plain(*values, **options)

    return extreme


def _symbolic_function(
    plain: Callable[..., object], symbolic: Callable[..., object]
) -> Callable[..., object]:
    @functools.wraps(plain)
    def function(value: object) -> object:
        return symbolic(value) if _is_symbolic(value) else plain(value)

    return function


def _symbolic_power(plain: Callable[..., float]) -> Callable[..., object]:
    @functools.wraps(plain)
    def power(base: Any, exponent: object) -> object:
        """C's ``pow``, which is Python's ``**`` of two floats, as long as the base is positive."""
        given = (base, exponent)
        tensors = any(isinstance(one, torch.Tensor) for one in given)
        if any(map(_is_symbolic, given)) and not tensors and base > 0:
            return torch.sym_float(base) ** torch.sym_float(exponent)
        return plain(base, exponent)

    return power


_ASKED: dict[str, Callable[[Any], object]] = {
    "isnan": lambda number: number != number,
    "isinf": lambda number: abs(number) == math.inf,
    "isfinite": lambda number: abs(number) < math.inf,
}
"""By name, what ``math`` asks of a number, as comparisons: they do not go by its value."""


class _ForSymbols(type):
    def __call__(cls, *args: object, **options: object) -> object:
        if len(args) != 1 or options:
            return type(*args, **options)
        kind = type(args[0])
        if kind is type:
            return cls  # ``type(x) is type``
        return args[0].__class__ if _is_symbolic(args[0]) else kind

    def __instancecheck__(cls, value: object) -> bool:
        return isinstance(value, type)

    def __subclasscheck__(cls, kind: Any) -> bool:
        return issubclass(kind, type)


class Type(type, metaclass=_ForSymbols):
    """A ``type`` that says of a symbolic number the type that it stands for."""


def clip_grad_norm(parameters: Any, max_norm: Any, norm_type: float) -> torch.Tensor:
    """`torch.nn.utils.clip_grad_norm_`, which first makes a symbolic ``max_norm`` a constant."""
    space = vars(torch.nn.utils.clip_grad)
    keep = {"float": lambda number: number if _is_symbolic(number) else float(number)}
    with standing_for(space, keep):
        return torch.nn.utils.clip_grad_norm_(parameters, max_norm, norm_type)


_NAMES: dict[str, object] = {
    "max": _symbolic_extreme(builtins.max, torch.sym_max),
    "min": _symbolic_extreme(builtins.min, torch.sym_min),
    "type": Type,
}
_PutIn = Callable[[dict[str, Any], "CodeType | None"], None]
_put_in: ContextVar[_PutIn | None] = ContextVar("_put_in", default=None)


def also_in(namespace: dict[str, Any], code: CodeType) -> None:
    """Apply the current `standing_in` to the globals of a function that runs now."""
    put_in = _put_in.get()
    if put_in is not None:
        put_in(namespace, code)


@contextlib.contextmanager
def standing_in(
    namespaces: list[dict[str, Any]],
    names: Callable[[dict[str, Any], CodeType | None], Mapping[str, object]],
) -> Iterator[None]:
    """Replace ``names`` in these namespaces, and in those of `also_in`, in the block.

    ``names`` is asked once for each code that runs there.
    """
    with contextlib.ExitStack() as stack:
        known: set[tuple[int, int]] = set()
        is_over = False

        def put_in(namespace: dict[str, Any], code: CodeType | None) -> None:
            # A block within it that ends after it makes this the current one again.
            if not is_over and (id(namespace), id(code)) not in known:
                known.add((id(namespace), id(code)))
                stack.enter_context(standing_for(namespace, names(namespace, code)))

        for namespace in namespaces:
            put_in(namespace, None)
        token = _put_in.set(put_in)
        stack.callback(_put_in.reset, token)
        try:
            yield
        finally:
            is_over = True


def _without_own(namespace: dict[str, Any], code: object) -> dict[str, object]:
    """Replacements of builtins that the module does not shadow by a name of its own."""
    return {name: made for name, made in _NAMES.items() if name not in namespace}


@contextlib.contextmanager
def symbolic_python_math(namespaces: list[dict[str, Any]]) -> Iterator[None]:
    """Let ``max``, ``min`` and ``type`` in these namespaces, and ``math.sqrt``, accept symbols."""
    if not namespaces:
        yield
        return
    with contextlib.ExitStack() as stack:
        stack.enter_context(standing_in(namespaces, _without_own))
        stack.enter_context(mock.patch.object(math, "pow", _symbolic_power(math.pow)))
        for name in ("sqrt", "exp", "cos", "sin", "tanh", "log2"):
            symbolic = getattr(torch, f"_sym_{name}", None)
            if symbolic is not None:
                plain = getattr(math, name)
                stack.enter_context(
                    mock.patch.object(math, name, _symbolic_function(plain, symbolic))
                )
        for name, asked in _ASKED.items():
            wrapped = _symbolic_function(getattr(math, name), asked)
            stack.enter_context(mock.patch.object(math, name, wrapped))
        yield
