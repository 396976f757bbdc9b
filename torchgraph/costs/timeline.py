"""Simulated run of a program on a machine of given rates, with a compute and a communication lane.

Nodes run in the order of the program. An op takes the longest of what its FLOPs, its bytes and its
elements take, and the start of a kernel. A collective is given to the other lane, begins when that
is free, and whoever waits for it goes on when it has ended. Nothing is measured here.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

import torch
from torch import fx

from ..ir import effects
from ..ir.program import Phase, Program, provenance
from ..ir.values import tensors_of
from .collectives import Collective, collective_of, is_wait, rounds, wire_bytes
from .op_calls import OpCall, op_calls
from .traffic import elements

aten = torch.ops.aten

COMPUTE = "compute"
COMMUNICATE = "communicate"
PRODUCT = "product"
CONVOLUTION = "convolution"
ATTENTION = "attention"

_CONVOLUTIONS = frozenset({aten.convolution, aten.convolution_backward})
_FUNCTIONS = frozenset(
    {
        *("gelu", "gelu_backward", "silu", "silu_backward", "tanh", "sigmoid", "erf", "exp", "log"),
        *("pow", "_softmax", "_softmax_backward_data", "_log_softmax", "sin", "cos", "softplus"),
        *("_log_softmax_backward_data", "native_layer_norm", "native_layer_norm_backward"),
        *("native_batch_norm", "native_batch_norm_backward", "_native_batch_norm_legit"),
        *("_native_batch_norm_legit_functional", "max_pool2d_with_indices"),
    }
)
"""Ops that take more time for an element than for its bytes, where one thread computes."""
_FUNCTIONS_OF_OURS = ("cross_entropy", "layer_norm", "rms_norm")


@dataclass(frozen=True)
class Rates:
    """The throughput and the launch latencies of a machine."""

    product: Mapping[torch.dtype, float]
    """FLOPs of products, a multiply-add as two, by the dtype that multiplies."""
    bytes: float
    """Read or written in memory."""
    launch: float
    """Seconds of a call of an op that computes."""
    view: float
    """Seconds of a call that only makes a view."""
    convolution: float | None = None
    """FLOPs of convolutions; None: as products."""
    attention: float | None = None
    """FLOPs of fused attention, those that a causal mask leaves out counted; None: as products."""
    starts: Mapping[str, float] = field(default_factory=dict)
    """Seconds of a call besides, by the kind of its FLOPs: what it multiplies is laid out anew."""
    function: float | None = None
    """Elements of functions such as ``exp``, and of norms; None: as quick as their bytes."""
    cached: float | None = None
    """Read or written by an op all of whose tensors fit into ``cache``; None: as ``bytes``."""
    cache: int = 0
    draw: float = 0.0
    """Seconds of a random number."""


@dataclass(frozen=True)
class Wire:
    """The network between the ranks of a process group."""

    ranks: int
    bytes: float
    """Bytes that a rank sends in a second, while all of them do."""
    message: float
    """Seconds from one rank to the next, however short the message."""
    backend: str = "nccl"
    start: float = 0.0
    """Seconds of a collective besides."""

    def seconds(self, one: Collective) -> float:
        """Seconds of a collective once all ranks are there."""
        if self.ranks <= 1:
            return self.start
        messages = self.message * rounds(one.kind, self.ranks, self.backend)
        return self.start + messages + self.bytes_of(one) / self.bytes

    def bytes_of(self, one: Collective) -> float:
        """Bytes sent by the rank that sends the most."""
        return wire_bytes(one.kind, one.payload, self.ranks, self.backend)


@dataclass(frozen=True)
class Item:
    """An entry of a program's work: equal calls of an op, a collective, or a wait for some."""

    node: str
    phase: Phase
    module: str = ""
    times: int = 1
    """The number of calls in one step."""
    is_view: bool = False
    flops: int = 0
    """In one call, as the rest is."""
    dtype: torch.dtype | None = None
    """In which a product multiplies."""
    kind: str = PRODUCT
    """The kind of op with FLOPs: ``product``, ``convolution`` or ``attention``."""
    bytes: int = 0
    elements: int = 0
    """Through a function such as ``exp``, or a norm."""
    drawn: int = 0
    collective: Collective | None = None
    is_wait: bool = False
    after: tuple[int, ...] = ()
    """Positions of the collectives that a wait waits for."""


@dataclass(frozen=True)
class Span:
    """An item, and when it runs on its lane; seconds from the start of the step."""

    item: Item
    lane: str
    begins: float
    ends: float

    @property
    def seconds(self) -> float:
        """The duration in seconds."""
        return self.ends - self.begins


@dataclass
class Timeline:
    """A simulated run of a program. A wait is a span of the compute lane without work."""

    spans: list[Span] = field(default_factory=list)

    @property
    def seconds(self) -> float:
        """The end of the last span."""
        return max((span.ends for span in self.spans), default=0.0)

    @property
    def computing(self) -> float:
        """Seconds of work in the compute lane."""
        return sum(s.seconds for s in self.spans if s.lane == COMPUTE and not s.item.is_wait)

    @property
    def communicating(self) -> float:
        """Seconds that the other lane is busy."""
        return sum(span.seconds for span in self.spans if span.lane == COMMUNICATE)

    @property
    def exposed(self) -> float:
        """Seconds in which the lane that computes waits for the other."""
        return self.seconds - self.computing


def items(program: Program) -> list[Item]:
    """The work of a program in the order in which it runs."""
    calls: dict[fx.Node, list[OpCall]] = {}
    for call in op_calls(program):
        calls.setdefault(call.within, []).append(call)
    found: list[Item] = []
    begun: dict[fx.Node, int] = {}
    for node in program.nodes:
        if node.op != "call_function":
            continue
        origin = provenance(node)
        one = collective_of(node)
        if one is not None:
            begun[node] = len(found)
            found.append(Item(node.name, origin.phase, origin.module, collective=one))
        elif is_wait(node):
            after = tuple(begun[source] for source in node.all_input_nodes if source in begun)
            item = Item(node.name, origin.phase, origin.module, is_wait=True, after=after)
            found.append(item)
        else:
            found += [_item(call, program.signature.micro_batches) for call in calls.get(node, ())]
    return found


def _item(call: OpCall, micro_batches: int) -> Item:
    origin, node = provenance(call.within), call.node
    times = call.rows * (1 if origin.phase is Phase.UPDATE else micro_batches)
    flops = 0 if call.is_view else call.flops
    return Item(
        call.within.name,
        origin.phase,
        origin.module,
        times,
        call.is_view,
        flops,
        next(tensors_of(list(node.args))).dtype if flops else None,
        _kind(node),
        0 if call.is_view else call.bytes,
        max(map(elements, _tensors(node)), default=0) if is_function(node) else 0,
        elements(node) if effects.of(node).random else 0,
    )


def seconds(item: Item, rates: Rates) -> float:
    """Seconds of all calls of an item."""
    if item.is_view:
        return item.times * rates.view
    fits = rates.cached is not None and item.bytes <= rates.cache
    parts = [item.bytes / (rates.cached if fits and rates.cached else rates.bytes)]
    if item.flops:
        parts.append(item.flops / _flops_rate(item, rates))
    if item.elements and rates.function is not None:
        parts.append(item.elements / rates.function)
    start = rates.launch + (rates.starts.get(item.kind, 0.0) if item.flops else 0.0)
    return item.times * (start + max(parts) + item.drawn * rates.draw)


def _flops_rate(item: Item, rates: Rates) -> float:
    own = {CONVOLUTION: rates.convolution, ATTENTION: rates.attention}.get(item.kind)
    product = rates.product.get(item.dtype) if item.dtype is not None else None
    return own or product or max(rates.product.values())


def _kind(node: fx.Node) -> str:
    packet = getattr(node.target, "overloadpacket", None)
    if packet in _CONVOLUTIONS:
        return CONVOLUTION
    return ATTENTION if "attention" in getattr(packet, "__name__", "") else PRODUCT


def timeline(work: Iterable[Item], rates: Rates, wires: Mapping[str, Wire]) -> Timeline:
    """Simulate one run of the items of a program.

    Args:
        wires: of each process group, by its name.

    Raises:
        KeyError: a group has no wire.
    """
    found = Timeline()
    ready: dict[int, float] = {}
    now = free = 0.0
    for position, item in enumerate(work):
        if item.collective is not None:
            begins = max(now, free)
            free = begins + wires[item.collective.group].seconds(item.collective)
            ready[position] = free
            found.spans.append(Span(item, COMMUNICATE, begins, free))
            continue
        waits = max([now, *(ready[one] for one in item.after)])
        ends = waits if item.is_wait else now + seconds(item, rates)
        found.spans.append(Span(item, COMPUTE, now, ends))
        now = ends
    return found


def is_function(node: fx.Node) -> bool:
    """True for an op that takes more for an element than for its bytes."""
    packet = getattr(node.target, "overloadpacket", None)
    name = getattr(packet, "__name__", "")
    if getattr(node.target, "namespace", "") == "torchgraph":
        return any(part in name for part in _FUNCTIONS_OF_OURS)
    return name in _FUNCTIONS


def _tensors(node: fx.Node) -> Iterator[torch.Tensor]:
    yield from tensors_of(node)
    yield from tensors_of(list(node.args))
