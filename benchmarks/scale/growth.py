"""One step of a large GPT on many GPUs: how long it takes, and what a rank holds.

The costs of a layer, and of what is before and behind all layers, come from a program; how they are
laid out over ranks is a `Plan`. Each rank has a lane that computes and one that communicates. What
is assumed besides stands in `ASSUMED`, which is printed with the results.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from torchgraph.costs.activations import kept_by_node
from torchgraph.costs.collectives import ALL_GATHER, ALL_REDUCE, REDUCE_SCATTER, SEND, Collective
from torchgraph.costs.timeline import Item, Rates, Wire, items, timeline
from torchgraph.ir.program import Phase, Program, Role, provenance
from torchgraph.ir.values import tensors_of
from torchgraph.lower.lifetimes import Lifetimes, live_bytes

from .gpt import PRIMES, Sizes, recorded, resized
from .machines import Gpu, Reached, rates, wire
from .pipelines import one_forward_one_backward as one_forward_one_backward

ASSUMED = (
    "weights, AdamW's moments and gradients in float32, the forward part in bfloat16 (autocast)",
    "ops run one by one, as the program has them; AdamW is one kernel of 28 bytes a parameter",
    "ZeRO 1 to 3 gather float32 weights before a layer, 3 again before its backward, one ahead",
    "gradients travel in float32, a layer at a time, while the backward goes on",
    "tensor parallel lies within a node; its sums in the program are waited for",
    "pipelines run 1F1B; with them ZeRO gathers once a step, and stage 3 is left out",
    "rings, trees for all-reduce of more than 8 ranks; no other traffic, no stragglers, no input",
)
_FLOAT = 4
_UPDATE = 28
"""Bytes that AdamW reads and writes for each parameter in one kernel."""
_LAYERS = 2
"""Of the program that is recorded."""


@dataclass(frozen=True)
class Model:
    """A GPT; all sizes of the whole."""

    name: str
    layers: int
    width: int
    kv_heads: int
    queries: int
    head: int
    inner: int
    words: int
    length: int

    def sizes(self, ranks: int, batch: int) -> Sizes:
        """What one of ``ranks`` ranks computes that split each layer."""
        return Sizes(
            batch,
            self.length,
            self.width,
            self.kv_heads // ranks,
            self.queries,
            self.head // 2,
            self.inner // ranks,
            self.words // ranks,
        )


MODELS = {
    one.name: one
    for one in (
        Model("7B", 32, 4096, 32, 1, 128, 11008, 32000, 4096),
        Model("70B", 80, 8192, 8, 8, 128, 28672, 32000, 4096),
        Model("8B", 32, 4096, 8, 4, 128, 14336, 128256, 8192),
    )
}
"""Llama 2 7B and 70B; Llama 3.1 8B, of which there are published figures."""


@dataclass(frozen=True)
class Plan:
    """How a model lies on GPUs."""

    gpus: int
    zero: int = 0
    tensor: int = 1
    stages: int = 1
    micro_batches: int = 1
    batch: int = 1
    """Sequences in a micro-batch."""
    checkpointing: bool = False
    """Of each layer its input is kept, and its forward part runs again."""
    gathered: int = _FLOAT
    """Bytes of a weight that travels to be read."""

    @property
    def replicas(self) -> int:
        """How many groups of ranks hold the whole model."""
        return self.gpus // (self.tensor * self.stages)


@dataclass(frozen=True)
class Share:
    """What a layer takes on a rank, or all that is no layer."""

    forward: float
    """Seconds, with the sums of tensor parallel ranks."""
    backward: float
    parameters: int
    kept: int
    """Bytes that the forward part of a micro-batch leaves for the backward part."""
    casts: int
    """The same of casts of weights, of all micro-batches."""
    flops: int


@dataclass(frozen=True)
class Shares:
    """What the parts of a model take on a rank."""

    layer: Share
    ends: Share
    """Embedding, head and loss."""
    works: int
    """Bytes that a micro-batch allocates at its most besides what is kept."""
    inputs: int
    """Bytes that a layer takes."""


@dataclass(frozen=True)
class Predicted:
    """One step."""

    seconds: float
    computing: float
    exposed: float
    """Seconds in which a rank waits for communication, pipeline bubbles left out."""
    bubble: float
    bytes: float
    """That a rank holds at its most."""
    wired: float
    """Bytes that a rank sends for ZeRO and data parallel."""
    tokens: int
    flops: float
    """Of the whole model, nothing computed twice."""


def shares(program: Program, layers: int, sizes: Sizes, at: Rates, joined: Wire) -> Shares:
    """What a program of ``layers`` equal layers takes.

    Args:
        joined: the wire of its one process group.
    """
    work = items(program)
    groups = {item.collective.group for item in work if item.collective is not None}
    wires = dict.fromkeys(groups, joined)
    kept = {node: size for node, size in kept_by_node(program).items() if size}
    weights = {node for spec, node in program.inputs() if spec.role is Role.PARAMETER}
    casts = {n: size for n, size in kept.items() if set(n.all_input_nodes) & weights}
    owned = {str(spec.fqn): spec for spec, _ in program.inputs() if spec.role is Role.PARAMETER}
    values = {str(spec.fqn): node.meta["val"] for spec, node in program.inputs()}

    def share(inside: bool) -> Share:
        times = layers if inside else 1
        mine = [item for item in work if _in_layer(item.module) is inside]
        held = {n: s for n, s in kept.items() if _in_layer(provenance(n).module) is inside}
        cast = sum(size for node, size in held.items() if node in casts)
        return Share(
            _seconds(work, mine, Phase.FORWARD, at, wires) / times,
            _seconds(work, mine, Phase.BACKWARD, at, wires) / times,
            sum(values[fqn].numel() for fqn in owned if _in_layer(fqn) is inside) // times,
            (sum(held.values()) - cast) // times,
            cast // times,
            sum(item.flops * item.times for item in mine) // times,
        )

    layer, ends = share(True), share(False)
    works = (
        activations_at_most(program) - layers * (layer.kept + layer.casts) - ends.kept - ends.casts
    )
    return Shares(layer, ends, max(0, works), 2 * sizes.tokens * sizes.width)


def activations_at_most(program: Program) -> int:
    """The most bytes that forward and backward part have allocated; gradients are not counted."""
    found = Lifetimes(program)
    phases = [provenance(node).phase for node in found.nodes]
    ends = phases.index(Phase.UPDATE)
    values = [value for value in found.values if value.dies < ends]
    return max(live_bytes(values, len(found.nodes)))


def _in_layer(module: str) -> bool:
    return ".layers." in f".{module}."


def _seconds(
    work: list[Item], mine: list[Item], phase: Phase, at: Rates, wires: dict[str, Wire]
) -> float:
    """Of some of the items of a phase, one after the other."""
    chosen = {id(item) for item in mine if item.phase is phase}
    place: dict[int, int] = {}
    found: list[Item] = []
    for number, item in enumerate(work):
        if id(item) in chosen:
            place[number] = len(found)
            found.append(replace(item, after=tuple(place[n] for n in item.after if n in place)))
    return timeline(found, at, wires).seconds


def predicted(model: Model, plan: Plan, gpu: Gpu, reached: Reached) -> Predicted:
    """One step of ``model``.

    Raises:
        ValueError: the plan is none: its ranks do not divide what they share.
    """
    _check(model, plan)
    sizes = model.sizes(plan.tensor, plan.batch)
    at = rates(gpu, reached)
    program = _of_sizes(min(2, plan.tensor), sizes)
    taken = shares(program, _LAYERS, sizes, at, wire(gpu, reached, plan.tensor))
    data = wire(gpu, reached, plan.replicas, plan.tensor)
    rank = _Rank(model, plan, taken, data, at)
    near = plan.tensor * plan.stages <= 8
    hop = wire(gpu, reached, 2, plan.tensor if near else 8)
    passed = 0.0 if plan.stages == 1 else hop.seconds(Collective(SEND, taken.inputs, ""))
    steps, bubble = rank.pipelined(passed)
    seconds = steps + rank.waits + rank.update
    computing = seconds - rank.waits - bubble
    tokens = plan.replicas * plan.micro_batches * plan.batch * model.length
    flops = plan.replicas * plan.micro_batches * plan.tensor * rank.flops
    held = rank.bytes()
    return Predicted(seconds, computing, rank.waits, bubble, held, rank.wired, tokens, flops)


@functools.lru_cache(maxsize=16)
def _of_sizes(ranks: int, sizes: Sizes) -> Program:
    return resized(recorded(_LAYERS, ranks), PRIMES, sizes)


def _check(model: Model, plan: Plan) -> None:
    whole = plan.tensor * plan.stages
    if plan.gpus % whole or model.layers % plan.stages or model.kv_heads % plan.tensor:
        raise ValueError(f"{plan} does not divide {model}.")
    if plan.stages > 1 and plan.zero == 3:
        raise ValueError("ZeRO 3 would gather for each micro-batch of a pipeline: not predicted.")


class _Rank:
    """A rank of the stage that takes longest: of the last one, as if all ends were there."""

    def __init__(self, model: Model, plan: Plan, taken: Shares, data: Wire, at: Rates) -> None:
        self._plan, self._taken, self._data = plan, taken, data
        self._layers = model.layers // plan.stages
        again = taken.layer.forward if plan.checkpointing else 0.0
        layer = replace(taken.layer, backward=taken.layer.backward + again)
        self._parts = [*[layer] * self._layers, taken.ends]
        self.parameters = sum(part.parameters for part in self._parts)
        own = self.parameters / (plan.replicas if plan.zero else 1)
        self.update = at.launch + _UPDATE * own / at.bytes
        self.flops = model.layers * taken.layer.flops + taken.ends.flops
        self.wired = 0.0
        self.waits = self._waits()

    # --- time -----------------------------------------------------------------------------------

    def pipelined(self, passed: float) -> tuple[float, float]:
        """Seconds of all micro-batches, and how many of them a stage is idle: 1F1B.

        Args:
            passed: seconds from one stage to the next.
        """
        plan, layer, ends = self._plan, self._parts[0], self._taken.ends
        forward = [self._layers * layer.forward] * plan.stages
        backward = [self._layers * layer.backward] * plan.stages
        forward[-1] += ends.forward
        backward[-1] += ends.backward
        seconds = one_forward_one_backward(forward, backward, plan.micro_batches, passed)
        busy = plan.micro_batches * (forward[-1] + backward[-1])
        return seconds, seconds - busy

    def _waits(self) -> float:
        """Seconds that a rank waits for ZeRO and data parallel: what computing does not cover."""
        plan = self._plan
        if plan.replicas == 1:
            return 0.0
        micro = range(plan.micro_batches) if plan.stages == 1 else range(1)
        now = free = computed = 0.0
        for number in micro:
            gathers = plan.zero == 3 or (plan.zero > 0 and number == 0)
            now, free = self._pass(self._parts, now, free, "forward", gathers, False)
            last = number == micro[-1]
            backwards = list(reversed(self._parts))
            now, free = self._pass(backwards, now, free, "backward", plan.zero == 3, last)
            computed += sum(part.forward + part.backward for part in self._parts)
        return max(now, free) - computed

    def _pass(
        self, parts: list[Share], now: float, free: float, which: str, gathers: bool, reduces: bool
    ) -> tuple[float, float]:
        """All parts in turn; what comes next is gathered while one computes."""
        there: list[float] = []
        for number, part in enumerate(parts):
            wanted = min(len(parts), number + 2) if gathers else 0
            while len(there) < wanted:
                free = max(free, now) + self._sent(ALL_GATHER, parts[len(there)])
                there.append(free)
            now = max(now, there[number] if gathers else 0.0) + float(getattr(part, which))
            if reduces:
                kind = ALL_REDUCE if self._plan.zero < 2 else REDUCE_SCATTER
                free = max(free, now) + self._sent(kind, part)
        return now, free

    def _sent(self, kind: str, part: Share) -> float:
        size = self._plan.gathered if kind == ALL_GATHER else _FLOAT
        one = Collective(kind, size * part.parameters, "")
        self.wired += self._data.bytes_of(one)
        return self._data.seconds(one)

    # --- memory ---------------------------------------------------------------------------------

    def bytes(self) -> float:
        """What the rank holds at its most: of the first stage or the last, whichever has more."""
        plan, taken = self._plan, self._taken
        kept = taken.inputs if plan.checkpointing else taken.layer.kept
        under_way = min(plan.stages, plan.micro_batches)
        first = under_way * self._layers * kept
        last = self._layers * kept + taken.ends.kept
        one = taken.layer.kept if plan.checkpointing else 0
        return self._states() + max(first, last) + one + taken.works

    def _states(self) -> float:
        plan, many = self._plan, self._plan.replicas
        layers, ends = self._layers * self._taken.layer.parameters, self._taken.ends.parameters
        whole = layers + ends
        window = 2 * self._taken.layer.parameters + ends
        casts = self._layers * self._taken.layer.casts + self._taken.ends.casts
        if plan.zero == 0:
            return 16.0 * whole + casts
        own = 12.0 * whole / many
        gradients = _FLOAT * (whole if plan.zero == 1 else whole / many + window)
        if plan.zero < 3:
            return own + gradients + plan.gathered * whole + casts
        casts = 2 * self._taken.layer.casts + self._taken.ends.casts
        return own + gradients + plan.gathered * window + casts


def parameters(model: Model) -> int:
    """How many a model has."""
    program = resized(recorded(_LAYERS), PRIMES, model.sizes(1, 1))
    found: dict[bool, int] = {}
    for spec, node in program.inputs():
        if spec.role is Role.PARAMETER:
            inside = _in_layer(str(spec.fqn))
            found[inside] = found.get(inside, 0) + sum(t.numel() for t in tensors_of(node))
    return found[True] // _LAYERS * model.layers + found[False]


def plans(gpus: Iterable[int], model: Model, tokens: int) -> Iterator[Plan]:
    """Those that a table shows: each ZeRO stage, and widths and depths beside it.

    Args:
        tokens: of a step, as long as each replica has a sequence.
    """
    for count in gpus:
        for tensor, stages, zeros in ((1, 1, (0, 1, 2, 3)), (8, 1, (0, 1, 3)), (8, 4, (0, 1))):
            if count % (tensor * stages) or count < tensor * stages:
                continue
            for zero in zeros if count > tensor * stages else (0,):
                plan = Plan(count, zero, tensor, stages, checkpointing=model.layers > 40)
                micro = max(1, tokens // (plan.replicas * model.length))
                yield replace(plan, micro_batches=micro)
