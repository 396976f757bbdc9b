"""The quickest Python callable for an op, proven to reach exactly that op with those arguments.

``torch.add`` parses its arguments about a third faster than ``torch.ops.aten.add.Tensor``. Which
overload it would choose is not guessed: it is called once on fake arguments under a dispatch mode
that looks.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any

import torch
from torch import fx
from torch.fx.node import Argument

from ..._torch import (
    OpOverload,
    TorchDispatchMode,
    below_autograd,
    fast_op,
    op_functions,
    schema_of,
)
from ...library import quick_draws
from ...library.expect import KERNELS
from ...optimizers import fused
from ..memory.block import OutCall

_PLAIN = (
    int,
    float,
    bool,
    str,
    type(None),
    torch.dtype,
    torch.device,
    torch.layout,
    torch.memory_format,
)
_KERNELS = {**KERNELS, **quick_draws.KERNELS}
"""By op, what is called in its place."""


class _Seen(Exception):
    """Ends the trial call as soon as an op is dispatched."""


class _Look(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # not annotated in torch
        self.call: tuple[object, tuple[object, ...], Mapping[str, object]] | None = None

    def __torch_dispatch__(
        self,
        func: object,
        types: object,
        args: tuple[object, ...] = (),
        kwargs: Mapping[str, object] | None = None,
    ) -> object:
        self.call = (func, args, kwargs or {})
        raise _Seen


class Calls:
    """Chooses a callable per op and kind of arguments; one per lowering remembers its trials."""

    def __init__(self) -> None:
        self._chosen: dict[Hashable, Callable[..., object]] = {}

    def best(self, call: fx.Node | OutCall) -> Callable[..., object]:
        """A callable that takes the call's own args and kwargs."""
        op = call.target
        assert isinstance(op, OpOverload)
        known = _KERNELS.get(op)
        if known is None and isinstance(call, fx.Node):
            known = fused.kernel(op, call)
        if known is not None:
            return known
        key = (op, _kind(call.args), _kind(call.kwargs))
        found = self._chosen.get(key)
        if found is None:
            found = self._chosen[key] = _choose(op, call.args, call.kwargs)
        return found


def _choose(
    op: OpOverload, args: tuple[Argument, ...], kwargs: dict[str, Argument]
) -> Callable[..., object]:
    if op.namespace == "aten":
        args = fx.map_arg(args, _sample)
        kwargs = fx.map_arg(kwargs, _sample)
        for candidate in op_functions(schema_of(op).name.removeprefix("aten::")):
            if _dispatches_to(candidate, op, args, kwargs):
                return candidate
    return fast_op(op)


def _sample(node: fx.Node) -> Any:
    """A stand-in for the node's run-time value: a fake tensor, or a number of its type."""
    value = node.meta["val"]
    return value.node.hint if isinstance(value, (torch.SymFloat, torch.SymInt)) else value


def _dispatches_to(
    candidate: Callable[..., object],
    op: OpOverload,
    args: Sequence[object],
    kwargs: Mapping[str, object],
) -> bool:
    look = _Look()
    try:
        with torch.no_grad(), below_autograd(), look:
            candidate(*args, **kwargs)
    except _Seen:
        pass
    except (TypeError, ValueError, RuntimeError, NotImplementedError):
        return False
    if look.call is None or look.call[0] is not op:
        return False
    return _filled(op, *look.call[1:]) == _filled(op, args, kwargs)


def _filled(op: OpOverload, args: Sequence[object], kwargs: Mapping[str, object]) -> list[object]:
    """The values of all arguments of the schema, defaults filled in, tensors by identity."""
    filled = []
    for position, argument in enumerate(schema_of(op).arguments):
        if position < len(args):
            value = args[position]
        else:
            value = kwargs.get(argument.name, argument.default_value)
        filled.append(_comparable(value))
    return filled


def _comparable(value: object) -> object:
    if isinstance(value, torch.Tensor):
        return id(value)
    if isinstance(value, (list, tuple)):
        return [_comparable(item) for item in value]
    return value


def _kind(value: object) -> object:
    """A key of the properties of ``value`` that overload resolution can depend on."""
    if isinstance(value, fx.Node):
        found = value.meta.get("val")
        return torch.Tensor if isinstance(found, torch.Tensor) else type(found)
    if isinstance(value, (list, tuple)):
        return tuple(map(_kind, value))
    if isinstance(value, dict):
        return tuple((key, _kind(item)) for key, item in value.items())
    return (type(value), value) if isinstance(value, _PLAIN) else type(value)
