"""Around: what a function does around each call of its program: nothing, labels, or clocks."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any, NamedTuple, final

import torch
from torch import fx
from torch.profiler import record_function

from ...costs.owners import own_module
from ...ir.names import module_of
from ...ir.program import Phase, provenance
from ...ir.values import tensors_of
from ..regions.region import Region

Bind = Callable[[Any, str], str]
"""Makes a value a global of the function; takes a hint for its name and returns the name."""


class Around(ABC):
    """The code written around each call."""

    @abstractmethod
    def beginning(self, bind: Bind) -> Sequence[str]:
        """The lines before the first call."""

    @abstractmethod
    def lines(self, node: fx.Node, bind: Bind) -> tuple[str, str]:
        """The lines that open a block around the call of ``node`` and follow it; may be empty."""

    @abstractmethod
    def in_rows(self, owners: Sequence[str]) -> Around:
        """The code around the calls in a loop over rows, for the parameters ``owners``."""

    @abstractmethod
    def row(self, number: str, bind: Bind) -> str:
        """The line that opens a block around a row's calls; ``number``: the loop variable."""


@final
class Nothing(Around):
    """No code around the calls."""

    def beginning(self, bind: Bind) -> Sequence[str]:
        """See `Around`."""
        return ()

    def lines(self, node: fx.Node, bind: Bind) -> tuple[str, str]:
        """See `Around`."""
        return "", ""

    def in_rows(self, owners: Sequence[str]) -> Around:
        """See `Around`."""
        return self

    def row(self, number: str, bind: Bind) -> str:
        """See `Around`."""
        return ""


@final
class Labels(Around):
    """Each call in a range of `torch.profiler`, and of NVTX on a GPU: its phase and its module."""

    def beginning(self, bind: Bind) -> Sequence[str]:
        """See `Around`."""
        return ()

    def lines(self, node: fx.Node, bind: Bind) -> tuple[str, str]:
        """See `Around`."""
        on_gpu = any(value.device.type == "cuda" for value in tensors_of(node))
        label = bind(_in_both if on_gpu else record_function, "label")
        return f"with {label}({label_of(node)!r}, {node.name!r}):", ""

    def in_rows(self, owners: Sequence[str]) -> Around:
        """See `Around`."""
        return RowLabels(owners)

    def row(self, number: str, bind: Bind) -> str:
        """See `Around`."""
        return ""


@final
class RowLabels(Around):
    """One profiler range for all calls of a row, for updates only, which run by rows on no GPU."""

    def __init__(self, owners: Sequence[str]) -> None:
        self._labels = tuple(_label(Phase.UPDATE, module_of(owner)) for owner in owners)

    def beginning(self, bind: Bind) -> Sequence[str]:
        """See `Around`."""
        return ()

    def lines(self, node: fx.Node, bind: Bind) -> tuple[str, str]:
        """See `Around`."""
        return "", ""

    def in_rows(self, owners: Sequence[str]) -> Around:
        """See `Around`."""
        return RowLabels(owners)

    def row(self, number: str, bind: Bind) -> str:
        """See `Around`."""
        return f"with {bind(record_function, 'label')}({bind(self._labels, 'labels')}[{number}]):"


class Span(NamedTuple):
    """A call that ran."""

    node: fx.Node
    start: Any
    end: Any


@final
class Clock(Around):
    """Takes the time after each call: the time between two calls is that of the later.

    Args:
        now: gives the time, or something that stands for it, such as a CUDA event.
    """

    def __init__(self, now: Callable[[], Any]) -> None:
        self.now = now
        self._nodes: list[fx.Node] = []
        self._taken: list[tuple[int, Any]] = []
        self._take = self._taken.append

    def beginning(self, bind: Bind) -> Sequence[str]:
        """See `Around`."""
        return (self._mark(-1, bind),)

    def lines(self, node: fx.Node, bind: Bind) -> tuple[str, str]:
        """See `Around`."""
        self._nodes.append(node)
        return "", self._mark(len(self._nodes) - 1, bind)

    def in_rows(self, owners: Sequence[str]) -> Around:
        """See `Around`. A node is timed with all of its rows."""
        return Nothing()

    def row(self, number: str, bind: Bind) -> str:
        """See `Around`."""
        return ""

    def spans(self) -> list[Span]:
        """The calls since this was last asked, in the order in which they ran."""
        found: list[Span] = []
        before = None
        for number, at in self._taken:
            if number >= 0:
                found.append(Span(self._nodes[number], before, at))
            before = at
        self._taken.clear()
        return found

    def _mark(self, number: int, bind: Bind) -> str:
        return f"{bind(self._take, 'mark')}(({number}, {bind(self.now, 'now')}()))"


def label_of(node: fx.Node) -> str:
    """``forward: model.fc``, ``update``, ``forward and backward: region_0`` of compiled code."""
    if isinstance(node.target, Region):
        phases = dict.fromkeys(provenance(one).phase.value for one in node.target.origins())
        return f"{' and '.join(phases)}: {node.target.__name__}"
    origin = provenance(node)
    return _label(origin.phase, own_module(node))


def _label(phase: Phase, module: str) -> str:
    return f"{phase.value}: {module}" if module else phase.value


@contextmanager
def _in_both(label: str, name: str) -> Iterator[None]:
    nvtx: AbstractContextManager[None] = torch.cuda.nvtx.range(f"{label} {name}")
    with nvtx, record_function(label, name):
        yield
