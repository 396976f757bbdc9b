"""Observation of one run of a program, op by op, for the first value that is not finite."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import fx

from ..ir import effects
from ..ir.each import expanded
from ..ir.ops import UNSET, base_name
from ..ir.program import Program, Role
from .compare import largest
from .infinities import AnyIsBad, Expected, floats, kinds_of
from .run import arguments, parts_of, walk_parts


@dataclass
class OpCall:
    """One call of an op, with its arguments."""

    node: fx.Node
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    random: torch.Tensor
    """The state of torch's generator before it."""


@dataclass
class _Trail:
    """The origins of values that should be finite and are not."""

    expected: Expected
    source: fx.Node | None = None
    reader: OpCall | None = None
    leaks: bool = False
    """True when a result is bad, and was not in the good step, that nothing bad leads to."""
    _begun: dict[fx.Node, dict[fx.Node, None]] = field(default_factory=dict)
    """Bad node -> the nodes where that began."""
    _calls: dict[fx.Node, OpCall] = field(default_factory=dict)

    def fine(self, node: fx.Node) -> None:
        """Forget the origins of ``node``, whose value is finite now."""
        self._begun.pop(node, None)

    def bad(
        self,
        node: fx.Node,
        kinds: frozenset[str],
        values: Mapping[fx.Node, Any],
        call: Callable[[fx.Node], OpCall],
    ) -> None:
        """Record the origins of the value of ``node``, which is not finite."""
        self.fine(node)
        inputs = [one for one in node.all_input_nodes if one in self._begun]
        if inputs:
            self._begun[node] = {source: None for one in inputs for source in self._begun[one]}
        elif self.expected.holds(node, kinds, values):
            return
        else:
            self._begun[node] = {node: None}
        op = node.op == "call_function"
        for source in self._begun[node] if op else ():
            if source not in self._calls and (source is node or source.op != "call_function"):
                self._calls[source] = call(node)

    def end(
        self, output: fx.Node, kinds: Mapping[str, frozenset[str]], order: list[fx.Node]
    ) -> None:
        """End a part of the step: the earliest origin that reaches its results is the source."""
        found = {source for one in output.all_input_nodes for source in self._begun.get(one, ())}
        for one in output.all_input_nodes:
            bad = kinds.get(one.name, frozenset())
            explained = one in self._begun or self.expected.was_there(one, bad)
            self.leaks = self.leaks or bool(bad and not explained)
        if self.source is None and found:
            self.source = min(found, key=order.index)
            self.reader = self._calls.get(self.source)
        self._begun, self._calls = {}, {}


class Watch:
    """Observer of the values of a run; see `watched`.

    Args:
        wanted: the name of a node whose call is kept.
        expected: what is no fault although it is not finite; the first that explains all results.
    """

    def __init__(self, wanted: str, expected: Sequence[Expected]) -> None:
        self.call: OpCall | None = None
        """The call of the node that is wanted; of several, the first."""
        self.sizes: dict[str, float] = {}
        """The largest magnitude of each node, of its finite elements."""
        self.kinds: dict[str, frozenset[str]] = {}
        """The kinds of elements that are not finite in each node's value, if any."""
        self._wanted = wanted
        self._trails = [*map(_Trail, expected), _Trail(AnyIsBad())]
        """The last for a step in which all that is bad may be."""
        self._values: dict[fx.Node, Any] = {}
        self._random = torch.get_rng_state()

    @property
    def source(self) -> fx.Node | None:
        """The origin of the first bad value that reaches a result: an input or an op."""
        return self._trail.source

    @property
    def reader(self) -> OpCall | None:
        """The call of the source; of an input, the first call that reads it."""
        return self._trail.reader

    @property
    def _trail(self) -> _Trail:
        whole = [one for one in self._trails if one.source is not None and not one.leaks]
        return whole[0] if whole else self._trails[-1]

    def seen(self, node: fx.Node, value: Any) -> Any:
        """Observe a value of the run, and return it unchanged."""
        if node.op == "output":
            for trail in self._trails:
                trail.end(node, self.kinds, list(self._values))
            self._values = {}  # of the next part
            return value
        if node.op == "call_function" and node.name == self._wanted and self.call is None:
            self.call = self._call(node)
        self._values[node] = value
        self._see(node, value)
        if effects.of(node).random:
            self._random = torch.get_rng_state()
        return value

    def _see(self, node: fx.Node, value: Any) -> None:
        self.sizes[node.name] = max([self.sizes.get(node.name, 0.0), *map(largest, floats(value))])
        kinds = kinds_of(value)
        if not kinds or base_name(node.target).startswith(UNSET):
            for trail in self._trails:
                trail.fine(node)
            return
        self.kinds[node.name] = self.kinds.get(node.name, frozenset()) | kinds
        for trail in self._trails:
            trail.bad(node, kinds, self._values, self._call)

    def _call(self, node: fx.Node) -> OpCall:
        return OpCall(node, *arguments(node, self._values), self._random)


def watched(
    program: Program,
    values: Sequence[Any],
    wanted: str = "",
    good: Mapping[str, frozenset[str]] | None = None,
) -> Watch:
    """Run a program, in its micro-batches, and observe where values become bad.

    Args:
        wanted: the name of a node whose call is to be kept.
        good: the `Watch.kinds` of a good step of this program.
    """
    inputs = program.signature.inputs
    given = frozenset(spec.name for spec in inputs if spec.role in (Role.BUFFER, Role.FREE))
    expected = [Expected(good, given, narrow=narrow) for narrow in (False, True)]
    watch, whole = Watch(wanted, expected), expanded(program)
    walk_parts(whole, parts_of(whole), values, lambda run, node, value: watch.seen(node, value))
    return watch


def first_growth(good: Watch, bad: Watch, program: Program, times: float) -> str:
    """The first node that is so many times larger in ``bad`` than its inputs explain.

    Empty for none. An input may be the one.
    """
    grown: dict[str, float] = {}
    candidates: list[tuple[float, str]] = []
    for part in parts_of(expanded(program)):
        for node in part.nodes:
            before, now = good.sizes.get(node.name, 0.0), bad.sizes.get(node.name, 0.0)
            if node.op == "output" or not now:
                continue
            grown[node.name] = now / before if before else float("inf")
            inputs = [grown.get(one.name, 1.0) for one in node.all_input_nodes]
            own = grown[node.name] / max([1.0, *inputs])
            if grown[node.name] >= times and own > 2:
                return node.name
            candidates.append((grown[node.name], node.name))
    large = [name for growth, name in candidates if growth >= times]
    return large[0] if large else ""
