"""``oneflow.fx``: torch.fx, with OneFlow's meaning of what it traces."""

from __future__ import annotations

import operator
import sys
from collections.abc import Callable
from types import FrameType, FunctionType
from typing import Any

from torch import fx, nn

from ..errors import NotPorted
from ..names import leaves, table

_HERE = "torchgraph.oneflow._port."


_IN_PLACE = tuple(
    f"i{name}"
    for name in (
        *("add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "matmul"),
        *("and", "or", "xor", "lshift", "rshift"),
    )
)


class _Proxy(fx.Proxy):
    """Of torch's, ``x += 1`` is ``x = x + 1``; here it stays what it is."""


def _in_place(name: str) -> Callable[[fx.Proxy, Any], fx.Proxy]:
    def record(self: fx.Proxy, other: Any) -> fx.Proxy:
        target = getattr(operator, name)
        return self.tracer.create_proxy("call_function", target, (self, other), {})

    return record


for _name in _IN_PLACE:
    setattr(_Proxy, f"__{_name}__", _in_place(_name))


class Tracer(fx.Tracer):
    """Records OneFlow's own functions, methods and operators as such. OneFlow: ``fx.Tracer``."""

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        """True of modules of torch's and of OneFlow's, which are called as a whole."""
        is_ours = type(m).__module__.startswith(_HERE)
        return is_ours or super().is_leaf_module(m, module_qualified_name)

    def trace(self, root: Any, concrete_args: dict[str, Any] | None = None) -> fx.Graph:
        """As torch's; functions of OneFlow's are nodes.

        Raises:
            NotPorted: one is called by a name that was bound before, such as by ``from oneflow
                import max``: torch.fx would look into it, and go by what a tensor is not.
        """
        with leaves.recorded_by(self._leaf):
            return super().trace(root, concrete_args)

    def proxy(self, node: fx.Node) -> fx.Proxy:
        """What stands for a value while it is traced."""
        return _Proxy(node, self)

    def create_proxy(
        self, kind: str, target: Any, args: Any, kwargs: Any, *rest: Any, **named: Any
    ) -> fx.Proxy:
        """A node, of the function that is OneFlow's where it has its own."""
        _refuse_inside()
        if kind == "call_method" and (own := _own(target)) is not None:
            kind, target = "call_function", own
        if kind == "call_function" and getattr(operator, _name_of(target), None) is target:
            target, args = _operator(target, args)
        return super().create_proxy(kind, target, args, kwargs, *rest, **named)

    def _leaf(self, function: FunctionType) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            if not any(isinstance(one, fx.Proxy) for one in _flat((args, kwargs))):
                return function(*args, **kwargs)
            return self.create_proxy("call_function", function, args, kwargs)

        return call


def symbolic_trace(root: Any, concrete_args: dict[str, Any] | None = None) -> fx.GraphModule:
    """The graph of a module or a function. OneFlow: ``fx.symbolic_trace``."""
    tracer = Tracer()
    graph = tracer.trace(root, concrete_args)
    name = type(root).__name__ if isinstance(root, nn.Module) else root.__name__
    return fx.GraphModule(tracer.root, graph, name)


def replace_pattern(gm: fx.GraphModule, pattern: Any, replacement: Any) -> list[Any]:
    """Put one pattern in the place of another. OneFlow: ``fx.replace_pattern``."""
    old, new = (
        one if isinstance(one, fx.GraphModule) else symbolic_trace(one)
        for one in (pattern, replacement)
    )
    return fx.replace_pattern(gm, old, new)


def _name_of(function: Any) -> str:
    return str(getattr(function, "__name__", ""))


def _own(method: str) -> Any:
    row = table().get(f"Tensor.{method}")
    return row.value() if row is not None and (row.is_adapted or row.is_refused) else None


def _operator(function: Any, args: Any) -> tuple[Any, Any]:
    name = function.__name__.strip("_")
    if isinstance(args[0], fx.Proxy):
        return _own(f"__{name}__") or function, args
    reversed_ = _own(f"__r{name}__")
    return (reversed_, args[::-1]) if reversed_ is not None else (function, args)


def _flat(value: Any) -> list[Any]:
    if isinstance(value, dict):
        value = tuple(value.values())
    if isinstance(value, (tuple, list)):
        return [one for each in value for one in _flat(each)]
    return [value]


def _refuse_inside() -> None:
    frame: FrameType | None = sys._getframe(2)
    found = ""
    while frame is not None and (name := _name_in(frame)).startswith(("torch.", _HERE)):
        if name.startswith(_HERE) and name != __name__:
            found = frame.f_code.co_name
        frame = frame.f_back
    if found:
        raise NotPorted(
            f"fx.symbolic_trace: torch.fx would look into OneFlow's {found}, which was bound to a "
            "name before, or belongs to a tensor that is not traced.",
            fix="call functions by their module, as flow.max(x); begin with what is traced: x + w.",
        )


def _name_in(frame: FrameType) -> str:
    return str(frame.f_globals.get("__name__"))
