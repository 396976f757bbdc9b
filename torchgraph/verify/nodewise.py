"""Node-by-node comparison of a program with the captured one, on the program's own values.

Each captured node is computed from what the other program has in the place of its inputs, and
compared with what that has in its own place. So an error shows where it is made: whatever came in
with the inputs, the right op would have carried on, too. A captured node that the other program
has no value for is computed in between, for the next that it has.
"""

from __future__ import annotations

import operator
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import fx

from ..ir import bits, effects
from ..ir.ops import UNSET, base_name
from ..ir.program import OutputKind, OutputSpec, Program, identity
from ..lower import Region
from .compare import ExpectedValue, errors, is_right
from .float64 import Float64Runner, each, like, to_float64
from .run import arguments, value_of, walk


@dataclass
class Seen:
    """A value, and the node that computed it."""

    value: Any
    node: fx.Node | None
    """None for what leaves a compiled region."""
    region: str = ""


@dataclass
class Trace:
    """The values of one run of a program."""

    seen: dict[str, Seen] = field(default_factory=dict)
    """By the name of the captured node; see `identity`."""
    others: dict[fx.Node, Any] = field(default_factory=dict)
    """Values that stand for no captured node's; none of a program that writes in place."""
    results: tuple[Any, ...] = ()


def region_of(node: fx.Node) -> Region | None:
    """The compiled region that computes ``node``, a call or one of its results."""
    if node.target is operator.getitem and isinstance(node.args[0], fx.Node):
        node = node.args[0]
    return node.target if isinstance(node.target, Region) else None


def traced(
    program: Program,
    outputs: Sequence[OutputSpec],
    values: Sequence[Any],
    *,
    in_place: bool = False,
) -> Trace:
    """Run a program, op by op, over ``values``, which an in-place one writes.

    Args:
        outputs: what it returns.
    """
    trace = Trace()

    def after(node: fx.Node, value: Any) -> Any:
        if node.op != "call_function" or effects.of(node).expects:
            return value
        if isinstance(node.target, Region):
            for crossing, one in zip(node.target.crossings, value, strict=False):
                if crossing.identity:
                    seen = Seen(one.clone(), None, node.target.__name__)
                    trace.seen.setdefault(crossing.identity, seen)
        elif identity(node) and region_of(node) is None:
            kept = value
            if in_place and isinstance(value, torch.Tensor):
                kept = value.detach().clone()  # what is written later shall not change it
            trace.seen.setdefault(identity(node), Seen(kept, node))
        elif not in_place:
            trace.others[node] = value
        return value

    trace.results = walk(program, values, after, outputs=outputs)
    return trace


@dataclass
class Fault:
    """A wrong value: one that its inputs do not explain."""

    captured: fx.Node
    seen: Seen
    """The other program's value there."""
    expected: Any
    """The value of the captured node for the same inputs, in the program's dtype."""
    error: float
    """How far it is from that in float64."""
    allowed: float
    """How far rounding would bring it at most."""
    given: tuple[Any, ...] = ()
    """The arguments of the captured node."""
    ends: tuple[OutputSpec, ...] = ()
    """Outputs that hold it though no node does."""


@dataclass
class CapturedValues:
    """The values of the captured program, in its own dtypes as in eager, and in float64."""

    program: Program
    low: dict[fx.Node, Any] = field(default_factory=dict)
    """Each value as eager has it."""
    exact: dict[fx.Node, Any] = field(default_factory=dict)
    """Each value along a chain in float64."""
    runner: Float64Runner = field(default_factory=Float64Runner)

    @classmethod
    def of(cls, program: Program, values: Sequence[Any], *, float64: bool) -> CapturedValues:
        """Run ``program`` over values, and in float64 as well where ``float64``."""
        found = cls(program)

        def keep(node: fx.Node, value: Any) -> Any:
            if node.op != "output":
                found.low[node] = value
            return value

        walk(program, values, keep, before=lambda node, _: found.runner.note(node))
        for node, low in found.low.items() if float64 else ():
            if node.op == "call_function" and low is not None:
                value = found.runner.run(node, found.exact, found.low)
                found.exact[node] = _decided(value, low)
            else:
                found.exact[node] = to_float64(low)
        return found

    def ends(self, values: Mapping[fx.Node, Any]) -> dict[OutputSpec, Any]:
        """The outputs of the program, taken from ``values``."""
        return {out: value_of(node, values) for out, node in self.program.returns()}


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
        reference: CapturedValues,
        seen: Mapping[str, Seen],
        ends: Mapping[OutputSpec, Any],
        *,
        exact: bool,
    ) -> None:
        self._reference = reference
        self._seen = seen
        self._exact = exact
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
                yield from self._at_ends(node, ExpectedValue(self._reference.low[node]))
            elif node.op == "call_function":
                yield from self._step(node)

    def _step(self, node: fx.Node) -> Iterator[Fault]:
        if self._reference.low[node] is None:
            self._enter(node, None)
            return
        found = self._stretch(node)
        seen = self._seen.get(node.name)
        unset = base_name(node.target).startswith(UNSET)
        if seen is None or not isinstance(seen.value, (torch.Tensor, bool, int, float)):
            self._go_on(node, found)  # the other program has no node for it
        else:
            if not unset and not is_right(seen.value, found, exact=self._exact):
                yield self._fault(node, seen, found)
            self._enter(node, like(seen.value, found.native))
        if not unset:
            yield from self._at_ends(node, found)

    def _stretch(self, node: fx.Node) -> ExpectedValue:
        """The value of ``node`` for what the other program has in the place of its inputs."""
        runner = self._reference.runner
        native = runner.again(node, *arguments(node, self._native))
        if self._exact:
            return ExpectedValue(native)
        found = {name: runner.run(node, one, self._native) for name, one in self._chains.items()}
        float64, perturbed = (_decided(found[one], native) for one in ("float64", "perturbed"))
        low = self._reference.low[node]
        return ExpectedValue(native, float64, perturbed, low, found["eager"])

    def _enter(self, node: fx.Node, value: Any) -> None:
        """Continue with the other program's value, and with eager's at the same node."""
        low, found = self._reference.low[node], ExpectedValue(value)
        if not self._exact:
            float64 = to_float64(value)
            found = ExpectedValue(value, float64, float64, low, to_float64(low))
        self._go_on(node, found)

    def _go_on(self, node: fx.Node, found: ExpectedValue) -> None:
        """Continue with these values, those of comparisons as the program has decided them."""
        self._native[node] = found.native
        if not self._exact:
            chains, low = self._chains, self._reference.low[node]
            chains["float64"][node] = found.float64
            chains["perturbed"][node] = self._perturbed(found.perturbed, found.native)
            chains["eager"][node] = _decided(found.eager_float64, low)

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

    def _at_ends(self, node: fx.Node, found: ExpectedValue) -> Iterator[Fault]:
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
        return seen is not None and bits.same(value, seen.value)

    def _fault(self, node: fx.Node, seen: Seen, found: ExpectedValue) -> Fault:
        given = value_of(node.args, self._native) if node.op == "call_function" else ()
        if found.float64 is not None:
            return Fault(node, seen, found.native, *errors(seen.value, found), given)
        float64 = to_float64(found.native)
        found = ExpectedValue(found.native, float64, float64, found.native, float64)
        return Fault(node, seen, found.native, errors(seen.value, found)[0], 0.0, given)


Values = Sequence[Any]
