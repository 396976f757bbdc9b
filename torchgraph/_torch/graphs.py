"""What lies below the interface of an fx.Graph."""

from __future__ import annotations

import operator
from collections.abc import Callable

from torch import fx

rename: Callable[[fx.Node, str], None] = fx.Node._rename
"""Give a node this name, or one like it that is free."""

root_of: Callable[[fx.Graph], fx.Node] = operator.attrgetter("_root")
"""What the nodes of a graph lie around: before the first, behind the last."""
