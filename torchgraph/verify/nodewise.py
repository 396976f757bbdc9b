"""Node-by-node comparison of a program with the captured one, on the program's own values.

Each captured node is computed from what the other program has in the place of its inputs, and
compared with what that has in its own place. So an error shows where it is made: whatever came in
with the inputs, the right op would have carried on, too. A captured node that the other program
has no value for is computed in between, for the next that it has.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import fx

from ..ir.ops import UNSET, base_name, wait_for_collective
from ..ir.program import OutputKind, OutputSpec, Program
from .compare import ExpectedValue, errors, is_right
from .float64 import Float64Runner, RngStates, each, like, to_float64
from .run import arguments, value_of, walk
from .trace import Seen


@dataclass
class Fault:
    """A wrong value: one that its inputs do not explain."""

    captured: fx.Node
    seen: Seen
    """What the other program has there."""
    expected: Any
    """What the captured node gives for the same inputs, in the program's dtype."""
    error: float
    """How far it is from that in float64."""
    allowed: float
    """How far rounding would bring it at most."""
    given: tuple[Any, ...] = ()
    """The arguments of the captured node."""
    ends: tuple[OutputSpec, ...] = ()
    """Outputs that hold it though no node does."""


@dataclass
class Reference:
    """The values of the captured program, in its own dtypes as in eager, and in float64."""

    program: Program
    low: dict[fx.Node, Any] = field(default_factory=dict)
    """Each value as eager has it."""
    exact: dict[fx.Node, Any] = field(default_factory=dict)
    """Each value along a chain in float64."""
    draws: RngStates = field(default_factory=RngStates)
    fallbacks: dict[str, str] = field(default_factory=dict)
    """Op -> why it ran in its own dtype all the same."""

    @classmethod
    def of(cls, program: Program, values: Sequence[Any], *, float64: bool) -> Reference:
        """Run ``program`` over values, and in float64 as well where ``float64``."""
        found = cls(program)
        runner = Float64Runner(found.draws)
        found.fallbacks = runner.fallbacks

        def keep(node: fx.Node, value: Any) -> Any:
            if node.op != "output":
                found.low[node] = value
            return value

        walk(program, values, keep, before=lambda node, _: found.draws.note(node))
        if float64:
            _run_in_float64(found, runner)
        return found

    def ends(self, values: Mapping[fx.Node, Any]) -> dict[OutputSpec, Any]:
        """The outputs of the program, taken from ``values``."""
        return {out: value_of(node, values) for out, node in self.program.returns()}


def _run_in_float64(found: Reference, runner: Float64Runner) -> None:
    for node in found.program.nodes:
        if node.op in ("placeholder", "get_attr"):
            found.exact[node] = to_float64(found.low[node])
        elif node.op == "call_function":
            found.exact[node] = _float64(node, found.exact, found.low, runner)


def _float64(
    node: fx.Node, values: Mapping[fx.Node, Any], low: Mapping[fx.Node, Any], runner: Float64Runner
) -> Any:
    """The value of ``node`` in float64; one without floats is as it was in the step."""
    if low[node] is None:
        return None
    args, kwargs = arguments(node, values)
    value = runner.run(node, args, kwargs, *arguments(node, low))
    return _decided(value, low[node])


def _decided(value: Any, low: Any) -> Any:
    """``value`` with its masks and indices replaced by those of the program, ``low``."""
    if isinstance(value, (list, tuple)) and isinstance(low, (list, tuple)):
        return each(value, map(_decided, value, low))
    if isinstance(low, torch.Tensor) and not (low.is_floating_point() or low.is_complex()):
        return low
    return value


class NodewiseComparison:
    """Comparison of the values of one other program with the captured program.

    Args:
        exact: the values must be equal to the last bit; nothing runs in float64.
    """

    def __init__(
        self,
        reference: Reference,
        seen: Mapping[str, Seen],
        ends: Mapping[OutputSpec, Any],
        *,
        exact: bool,
    ) -> None:
        self._reference = reference
        self._seen = seen
        self._exact = exact
        self._float64 = Float64Runner(reference.draws)
        self._noise = torch.Generator().manual_seed(0)
        self._native: dict[fx.Node, Any] = {}
        self._chains: dict[str, dict[fx.Node, Any]] = (
            {} if exact else {"float64": {}, "perturbed": {}, "eager": {}}
        )
        self._ends: dict[fx.Node, list[OutputSpec]] = {}
        self._end_values = ends
        for out, node in reference.program.returns():
            if isinstance(node, fx.Node) and out in ends and out.kind is not OutputKind.SKIP:
                self._ends.setdefault(node, []).append(out)

    def faults(self) -> Iterator[Fault]:
        """The wrong values, in the order of the captured program."""
        for node in self._reference.program.nodes:
            if node.op in ("placeholder", "get_attr"):
                self._enter(node, self._reference.low[node])
                yield from self._at_ends(node, self._reference.low[node])
            elif node.op == "call_function":
                yield from self._step(node)

    def _step(self, node: fx.Node) -> Iterator[Fault]:
        low = self._reference.low[node]
        if low is None:
            self._enter(node, None)
            return
        found = self._stretch(node)
        native = found.native if isinstance(found, ExpectedValue) else found
        seen = self._seen.get(node.name)
        judged = seen is not None and isinstance(seen.value, (torch.Tensor, bool, int, float))
        unset = base_name(node.target).startswith(UNSET)
        if seen is None or not judged:
            self._take(node, found)
        else:
            if not unset and not is_right(seen.value, found, exact=self._exact):
                yield self._fault(node, seen, found)
            self._enter(node, like(seen.value, native))
        if not unset:
            yield from self._at_ends(node, found)

    def _stretch(self, node: fx.Node) -> Any:
        args, kwargs = arguments(node, self._native)
        with self._reference.draws.again(node):
            native = wait_for_collective(node, node.target(*args, **kwargs))  # type: ignore[operator]  # an op
        if self._exact:
            return native
        found = {
            name: self._float64.run(node, *arguments(node, chain), args, kwargs)
            for name, chain in self._chains.items()
        }
        decided = {name: _decided(value, native) for name, value in found.items()}
        return ExpectedValue(
            native,
            decided["float64"],
            decided["perturbed"],
            self._reference.low[node],
            found["eager"],
        )

    def _take(self, node: fx.Node, found: Any) -> None:
        """Continue with the value computed here, which the other program has no node for."""
        if not isinstance(found, ExpectedValue):
            self._native[node] = found
            return
        self._native[node] = found.native
        self._chains["float64"][node] = found.float64
        self._chains["perturbed"][node] = self._perturbed(found.perturbed, found.native)
        self._chains["eager"][node] = _decided(found.eager_float64, self._reference.low[node])

    def _enter(self, node: fx.Node, value: Any) -> None:
        """Continue with the other program's value, and with eager's at the same node."""
        self._native[node] = value
        if self._exact:
            return
        self._chains["float64"][node] = to_float64(value)
        self._chains["perturbed"][node] = self._perturbed(to_float64(value), value)
        self._chains["eager"][node] = to_float64(self._reference.low[node])

    def _perturbed(self, value: Any, native: Any) -> Any:
        if isinstance(value, (list, tuple)):
            if not isinstance(native, (list, tuple)):
                return value
            return each(value, map(self._perturbed, value, native))
        if not isinstance(value, torch.Tensor) or not isinstance(native, torch.Tensor):
            return value
        if value.dtype is not torch.float64 or not native.is_floating_point():
            return value
        noise = torch.rand(value.shape, dtype=torch.float64, generator=self._noise)
        factor = noise.mul_(2).sub_(1).mul_(torch.finfo(native.dtype).eps).add_(1)
        return value * factor.to(value.device)

    def _at_ends(self, node: fx.Node, found: Any) -> Iterator[Fault]:
        wrong = [
            out
            for out in self._ends.get(node, ())
            if not is_right(self._end_values[out], found, exact=self._exact)
            and not self._holds(node, self._end_values[out])
        ]
        if wrong:
            seen = Seen(self._end_values[wrong[0]], None)
            fault = self._fault(node, seen, found)
            fault.ends = tuple(wrong)
            yield fault

    def _holds(self, node: fx.Node, value: Any) -> bool:
        """True when the other program has this value at the node, where it was judged."""
        seen = self._seen.get(node.name)
        return seen is not None and is_right(value, seen.value, exact=True)

    def _fault(self, node: fx.Node, seen: Seen, found: Any) -> Fault:
        given = value_of(node.args, self._native) if node.op == "call_function" else ()
        if isinstance(found, ExpectedValue):
            own, allowed = errors(seen.value, found)
            return Fault(node, seen, found.native, own, allowed, given)
        float64 = to_float64(found)
        own, _ = errors(seen.value, ExpectedValue(found, float64, float64, found, float64))
        return Fault(node, seen, found, own, 0.0, given)
