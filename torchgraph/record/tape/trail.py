"""The source location of the trace: module path, phase, user lines. The provenance of nodes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

import torch
from torch import fx

from ..._torch import current_autograd_node, engine_watch, sequence_number, sequence_number_of
from ..._torch.graphs import root_of
from ...errors import SourceLine, user_frames
from ...ir.names import module_of
from ...ir.program import Phase, Provenance
from ...lines import Depth as Depth


class Trail:
    """The current source location of a recording.

    A backward node belongs to the forward node whose autograd function it runs, found by the
    sequence number that autograd gives to both.
    """

    def __init__(self, depth: Depth, accumulates: Callable[[torch.Tensor], str]) -> None:
        self._depth = depth
        self._accumulates = accumulates
        self._modules: list[tuple[str, int]] = []
        self._calls = 0
        self._phase = Phase.FORWARD
        self._forward: dict[int, Provenance] = {}
        self._numbered = sequence_number()
        """The last autograd node whose forward location is known."""
        self._around: list[Phase] = []
        """The phases that running engines interrupted: engines nest in custom backwards."""
        self.backward_runs = 0
        self.only_logs: Callable[[], bool] = lambda: False
        """True where the user's line only logs."""
        self._one: Provenance | None = None
        """The provenance of every node of the update while it runs from one line."""

    @property
    def phase(self) -> Phase:
        """The current phase."""
        return self._phase

    @property
    def line(self) -> SourceLine | None:
        """The user's current line."""
        frames = user_frames(1)
        return frames[0] if frames else None

    @contextmanager
    def module(self, path: str) -> Iterator[None]:
        """Attribute nodes recorded in the block to the module at ``path``."""
        self._calls += 1
        self._modules.append((path, self._calls))
        try:
            yield
        finally:
            self._modules.pop()

    @contextmanager
    def update(self) -> Iterator[None]:
        """Attribute nodes recorded in the block to the optimizer step."""
        outer, self._phase = self._phase, Phase.UPDATE
        try:
            yield
        finally:
            self._phase = outer

    @contextmanager
    def from_one_line(self) -> Iterator[None]:
        """Attribute all nodes of the block to the user's line around it."""
        outer, self._one = self._one, self._here(Phase.UPDATE)
        try:
            yield
        finally:
            self._one = outer

    def watching_engine(
        self,
        around: Callable[..., AbstractContextManager[None]],
        scaled: Callable[[torch.Tensor], torch.Tensor] | None,
    ) -> AbstractContextManager[None]:
        """Attribute nodes recorded during runs of the autograd engine to the backward phase."""
        return engine_watch(self._enter_engine, self._leave_engine, around, scaled)

    def here(self) -> Provenance:
        """The provenance of a node recorded now."""
        if self._phase is Phase.BACKWARD:
            return self._of_backward()
        if self._one is not None and self._phase is Phase.UPDATE:
            return self._one
        found = self._here(self._phase)
        if self._phase is Phase.FORWARD:
            last = sequence_number()
            # An in-place op that saves what it overwrites makes its own node, then that of a copy.
            for number in range(min(self._numbered, last - 1) + 1, last + 1):
                self._forward.setdefault(number, found)
            self._numbered = last
        return found

    def _here(self, phase: Phase) -> Provenance:
        module = self._modules[-1][0] if self._modules else ""
        # An error names a line of the user's, also where no node is to show any.
        lines, libraries = self._depth
        frames = user_frames(max(1, lines))
        stack = user_frames(lines, libraries=True) if libraries else ()
        return Provenance(module, phase, frames, calls=tuple(self._modules), stack=stack)

    def _enter_engine(self, roots: tuple[object, ...]) -> None:
        self.backward_runs += 1
        self._around.append(self._phase)
        self._phase = Phase.BACKWARD

    def _leave_engine(self) -> None:
        self._phase = self._around.pop()

    def _of_backward(self) -> Provenance:
        """The provenance of the running autograd node."""
        node = current_autograd_node()
        variable = getattr(node, "variable", None)
        if variable is not None:
            return Provenance(module_of(self._accumulates(variable)), Phase.BACKWARD)
        forward = None if node is None else self._forward.get(sequence_number_of(node))
        if forward is None:
            return Provenance(phase=Phase.BACKWARD)
        return Provenance(forward.module, Phase.BACKWARD, forward.frames, stack=forward.stack)


class Stamp:
    """A writer of provenance on the new nodes of a growing `fx.Graph`."""

    def __init__(self, graph: fx.Graph) -> None:
        self._graph = graph
        self._last = root_of(graph)

    def new_nodes(self, found: Callable[[], Provenance]) -> None:
        """Stamp the nodes made since the last call."""
        stamp: Provenance | None = None
        for node in self.unstamped():
            stamp = stamp or found()
            node.meta.setdefault("provenance", stamp)
        self._last = next(iter(reversed(self._graph.nodes)), root_of(self._graph))

    def unstamped(self) -> Iterator[fx.Node]:
        """The nodes made since the last call of ``new_nodes``, newest first."""
        for node in reversed(self._graph.nodes):
            if node is self._last:
                return
            yield node
