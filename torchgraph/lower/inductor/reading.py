"""The graph that a region's text describes, with the place of each op; nothing of it runs.

Running it, as make_fx does, would settle which reshape is a view by other strides than those that
values have once Inductor has decomposed their ops.
"""

from __future__ import annotations

import functools
import math
import re
from typing import Any

import torch
from torch import fx
from torch.fx.proxy import GraphAppendingTracer

from ..._torch import OpOverload

_PLACE = re.compile(r'File "region", line (\d+)')


def read(code: str, inputs: int) -> fx.GraphModule:
    """The graph of ``forward(self, ...)`` as fx wrote it, which takes so many inputs."""
    graph = fx.Graph()
    tracer = GraphAppendingTracer(graph)
    namespace: dict[str, Any] = {"device": torch.device, "inf": math.inf, "nan": math.nan}
    namespace["torch"] = _Torch(tracer)
    exec(code, namespace)
    given = [fx.Proxy(graph.placeholder(f"tensor_{i}"), tracer) for i in range(inputs)]
    graph.output(tracer.create_arg(namespace["forward"](None, *given)))
    for place, node in enumerate(graph.nodes):
        node.stack_trace = f'  File "region", line {place}, in forward'
    return fx.GraphModule({}, graph)


def place(said: str) -> int | None:
    """The position of the node at which a compilation failed, if its message names one."""
    found = _PLACE.search(said)
    return int(found[1]) if found else None


class _Torch:
    """``torch`` in the text: types are torch's, ops are recorded."""

    def __init__(self, tracer: GraphAppendingTracer) -> None:
        self.ops = _Ops(tracer, torch.ops)

    def __getattr__(self, name: str) -> Any:
        return getattr(torch, name)


class _Ops:
    """``torch.ops`` in the text, or a part of it."""

    def __init__(self, tracer: GraphAppendingTracer, found: Any) -> None:
        self._tracer = tracer
        self._found = found

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._found, name)
        if isinstance(found, OpOverload):
            return functools.partial(self._call, found)
        return _Ops(self._tracer, found)

    def _call(self, op: OpOverload, *args: Any, **kwargs: Any) -> fx.Proxy:
        made: fx.Proxy = self._tracer.create_proxy("call_function", op, args, kwargs)
        return made
