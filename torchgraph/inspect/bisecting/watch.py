"""Where a value goes bad in a step: one run of its program, op by op."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import fx

from ...ir import effects
from ...ir.each import expanded
from ...ir.program import Program
from ...ir.values import tensors_of
from ...replay.audit.reference import Observed, Reference, parts_of
from ..ops import base_name

_UNSET = ("empty", "new_empty")
"""Ops whose results hold whatever was there."""


@dataclass
class OpCall:
    """One call of an op, with what it was given."""

    node: fx.Node
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    random: torch.Tensor
    """The state of torch's generator before it."""


@dataclass
class Watch:
    """Sees the values of a run go by; see `watched`."""

    wanted: str = ""
    """The name of a node whose call is kept."""
    call: OpCall | None = None
    """That call; of several, the first."""
    source: fx.Node | None = None
    """Where the first NaN or infinity that reaches a result comes from; an input or an op."""
    reader: OpCall | None = None
    """Where that is an input: the first op that carries it on."""
    sizes: dict[str, float] = field(default_factory=dict)
    """The largest magnitude of each node, of its finite elements."""
    _values: dict[fx.Node, Any] = field(default_factory=dict)
    _tainted: dict[fx.Node, dict[fx.Node, None]] = field(default_factory=dict)
    """What is not finite -> the nodes where that began."""
    _calls: dict[fx.Node, OpCall] = field(default_factory=dict)
    _random: torch.Tensor = field(default_factory=torch.get_rng_state)

    def moved(self, node: fx.Node, value: Any) -> Any:
        """Told of each value as it comes; it stays as it is."""
        if node.op == "output":
            self._end(node)
            return value
        if node.op == "call_function" and node.name == self.wanted and self.call is None:
            self.call = self._call(node)
        self._values[node] = value
        self._tainted.pop(node, None)
        size, finite = _measured(value)
        self.sizes[node.name] = max(self.sizes.get(node.name, 0.0), size)
        if not finite and not base_name(node.target).startswith(_UNSET):
            self._taint(node)
        if effects.of(node).random:
            self._random = torch.get_rng_state()
        return value

    def _taint(self, node: fx.Node) -> None:
        inputs = [one for one in node.all_input_nodes if one in self._tainted]
        if not inputs:
            self._tainted[node] = {node: None}
            if node.op == "call_function":
                self._calls[node] = self._call(node)
            return
        self._tainted[node] = {source: None for one in inputs for source in self._tainted[one]}
        for source in self._tainted[node]:
            if source not in self._calls and source.op != "call_function":
                self._calls[source] = self._call(node)

    def _end(self, node: fx.Node) -> None:
        found = {source for one in node.all_input_nodes for source in self._tainted.get(one, ())}
        if self.source is None and found:
            order = list(self._values)
            self.source = min(found, key=order.index)
            self.reader = self._calls.get(self.source)
        self._values, self._tainted, self._calls = {}, {}, {}  # of the next part

    def _call(self, node: fx.Node) -> OpCall:
        args = fx.map_arg(node.args, self._values.__getitem__)
        kwargs = fx.map_arg(dict(node.kwargs), self._values.__getitem__)
        return OpCall(node, args, kwargs, self._random)


def _measured(value: Any) -> tuple[float, bool]:
    """The largest finite magnitude of a value, and whether all of it is finite."""
    size, finite = 0.0, True
    for tensor in _floats(value):
        there = tensor.isfinite()
        whole = bool(there.all())
        finite = finite and whole
        magnitude = tensor.abs() if whole else tensor.abs().masked_fill(~there, 0)
        size = max(size, float(magnitude.max()))
    return size, finite


def _floats(value: Any) -> Iterable[torch.Tensor]:
    for tensor in tensors_of(value):
        if tensor.numel() and (tensor.is_floating_point() or tensor.is_complex()):
            yield tensor


def all_finite(value: Any) -> bool:
    """True when no float in a value is NaN or infinite."""
    return all(bool(tensor.isfinite().all()) for tensor in _floats(value))


def watched(program: Program, values: Sequence[Any], wanted: str = "") -> Watch:
    """Run a program, in its micro-batches, and see where it goes bad.

    Args:
        wanted: the name of a node whose call is to be kept.
    """
    whole = expanded(program)
    parts = parts_of(whole)
    watch = Watch(wanted)
    list(Reference(whole, parts, Observed(parts, ())).run(values, _look, watch))
    return watch


def _look(*_: object) -> None:
    """Nothing was observed that could be compared."""


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
