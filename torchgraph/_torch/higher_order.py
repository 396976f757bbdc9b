"""Ops that take functions, with their functions run on tensors without data."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch._ops import HigherOrderOperator
from torch.utils._python_dispatch import TorchDispatchMode

from . import FakeTensorMode, ShapeEnv, pytree
from .listening import not_listening


def run_on_fakes(function: Callable[..., object], args: Any, kwargs: Any) -> None:
    """Run torch's ``function``, and each function that it hands to an op, on fake tensors.

    Raises:
        NotImplementedError: an op's formula for fake tensors calls not all of its functions.
        What a function raises: it asks for the values of tensors.
    """
    fakes = FakeTensorMode(allow_non_fake_inputs=True, shape_env=ShapeEnv())

    def fake(value: Any) -> Any:
        return (
            fakes.from_tensor(value, static_shapes=True)
            if isinstance(value, torch.Tensor)
            else value
        )

    with torch.no_grad(), not_listening():
        args, kwargs = pytree.tree_map(fake, (args, kwargs))
        with fakes, _EachFunction():
            function(*args, **kwargs)


class _EachFunction(TorchDispatchMode):
    """Has every op call all of its functions: where it has no data to choose by, all the same."""

    supports_higher_order_operators = True

    def __torch_dispatch__(self, op: Any, types: Any, args: Any = (), kwargs: Any = None) -> object:
        """Run an op, by a formula that calls its functions."""
        kwargs = kwargs or {}
        if not isinstance(op, HigherOrderOperator):
            return op(*args, **kwargs)
        waiting: set[int] = set()
        args, kwargs = pytree.tree_map(functools.partial(self._counted, waiting), (args, kwargs))
        dense = op.py_kernels.get(torch._C.DispatchKey.CompositeExplicitAutograd)
        found, failure = [], None
        for formula in filter(None, (op, dense)):
            try:
                found.append(formula(*args, **kwargs))
            except Exception as error:
                failure = error
            if found and not waiting:
                return found[0]
        raise NotImplementedError(f"{op} does not call its functions on fake tensors") from failure

    def _counted(self, waiting: set[int], value: Any) -> Any:
        if not callable(value) or isinstance(value, (torch.Tensor, type, torch._ops.OperatorBase)):
            return value
        key = len(waiting)
        waiting.add(key)

        @functools.wraps(value, updated=())
        def call(*args: object, **kwargs: object) -> object:
            waiting.discard(key)
            with self:
                return value(*args, **kwargs)

        return call
