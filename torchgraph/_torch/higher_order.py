"""Ops that take functions, with their functions run on tensors without data."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable
from typing import Any

import torch
from torch._ops import HigherOrderOperator
from torch.utils._python_dispatch import TorchDispatchMode

from . import FakeTensor, FakeTensorMode, ShapeEnv, pytree
from .listening import listening_again, not_listening


def run_on_fakes(function: Callable[..., object], args: Any, kwargs: Any) -> None:
    """Run torch's ``function``, and each function that it hands to an op, on fake tensors.

    Raises:
        NotImplementedError: an op's formula for fake tensors calls not all of its functions.
        What a function raises: it asks for the values of tensors.
    """
    fakes = FakeTensorMode(allow_non_fake_inputs=True, shape_env=ShapeEnv())
    with torch.no_grad(), not_listening():
        args, kwargs = pytree.tree_map(functools.partial(_fake, fakes), (args, kwargs))
        with fakes, _EachFunction(fakes), contextlib.suppress(_AllCalled):
            function(*_flat(args), **kwargs)


class _AllCalled(Exception):
    """All functions of an op have run, and what they give is nothing that its formula takes."""


def _fake(fakes: FakeTensorMode, value: Any) -> Any:
    """``value`` without data; what an op writes of a real tensor, it writes for real."""
    if isinstance(value, torch.Tensor) and not isinstance(value, FakeTensor):
        return fakes.from_tensor(value, static_shapes=True)
    return value


def _flat(args: Any) -> Any:
    """The arguments of an op, the last of which is a flat tuple, as Dynamo makes it.

    `torch.cond` takes dicts and lists for its functions, and the op that it calls does not.
    """
    leaves, spec = pytree.tree_flatten(args[-1])
    if type(args[-1]) not in (list, tuple) or len(leaves) == len(args[-1]):
        return args

    def flat(value: Any) -> Any:
        if not _is_function(value):
            return value
        return lambda *given: value(*pytree.tree_unflatten(given, spec))

    return (*map(flat, args[:-1]), tuple(leaves))


def _is_function(value: object) -> bool:
    others = (torch.Tensor, type, torch._ops.OperatorBase)
    return callable(value) and not isinstance(value, others)


class _EachFunction(TorchDispatchMode):
    """Runs ops by formulas that call all of their functions, since fakes choose no branch."""

    supports_higher_order_operators = True

    def __init__(self, fakes: FakeTensorMode) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._fakes = fakes

    def __torch_dispatch__(self, op: Any, types: Any, args: Any = (), kwargs: Any = None) -> object:
        """Run an op, by a formula that calls its functions."""
        with not_listening():
            return self._run(op, args, kwargs or {})

    def _run(self, op: Any, args: Any, kwargs: Any) -> object:
        if not isinstance(op, HigherOrderOperator):
            args, kwargs = pytree.tree_map(functools.partial(_fake, self._fakes), (args, kwargs))
            return op(*args, **kwargs)
        waiting: set[int] = set()
        args, kwargs = pytree.tree_map(functools.partial(self._counted, waiting), (args, kwargs))
        dense = op.py_kernels.get(torch._C.DispatchKey.CompositeExplicitAutograd)
        found: list[object] = []
        failure: Exception | None = None
        formulas: list[Any] = [op] if dense is None else [op, dense]
        for formula in formulas:
            try:
                found.append(formula(*args, **kwargs))
            except Exception as error:
                failure = error
            if not waiting and found:
                return found[0]
        if not waiting:
            raise _AllCalled
        raise NotImplementedError(f"{op} does not call its functions on fake tensors") from failure

    def _counted(self, waiting: set[int], value: Any) -> Any:
        if not _is_function(value):
            return value
        key = len(waiting)
        waiting.add(key)

        @functools.wraps(value, updated=())
        def call(*args: object, **kwargs: object) -> object:
            # A formula may have taken both away. What is heard here are lines, for what they read.
            with self._fakes, self, listening_again():
                found = value(*args, **kwargs)
            waiting.discard(key)
            return found

        return call
