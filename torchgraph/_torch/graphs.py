"""Private parts of an fx.Graph."""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable
from typing import Any

from torch import fx

rename: Callable[[fx.Node, str], None] = fx.Node._rename
"""Give a node this name, or one like it that is free."""

root_of: Callable[[fx.Graph], fx.Node] = operator.attrgetter("_root")
"""The root of a graph's linked list of nodes: before the first, behind the last."""


def function_of(root: fx.GraphModule, graph: fx.Graph) -> Callable[..., object]:
    """A function that runs ``graph``; its constants are those of ``root``.

    A GraphModule would leave its source in caches of torch's, which nothing empties.
    """
    code = graph.python_code("self")
    scope: dict[str, Any] = dict(code.globals)
    exec(code.src, scope)
    return functools.partial(scope.pop("forward"), root)
