"""Cost: what a step and its compilation take, estimated from the program alone.

The call at which `auto` switches follows from it, so it has to be the same in every process that
runs the same script: ops, shapes and dtypes count, and constants that are part of this file. What
the machine is, how many threads there are, and which version torch has do not.
"""

from __future__ import annotations

import math
from collections.abc import Hashable
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import fx

from ..costs.op_calls import OpCall, op_calls
from ..costs.traffic import elements, shape_of
from ..ir import effects
from ..ir.program import Phase, Program, provenance
from ..ir.values import tensors_of
from ..passes.fusions.model_update.optimizers import RULES
from .blocks import PER_NODE, PER_REGION, kind, starts

aten = torch.ops.aten


@dataclass(frozen=True)
class Machine:
    """Constants of the machine that is assumed."""

    flops: float
    """FLOPs of products in a second."""
    convolved: float
    """FLOPs of convolutions in a second."""
    bytes: float
    """Read or written in a second."""
    launch: float
    """Seconds of a call of an op that computes."""
    view: float
    """Seconds of a call that only makes a view."""
    draw: float
    """Seconds of a random number."""


CPU = Machine(100e9, 55e9, bytes=11e9, launch=4e-6, view=1.5e-6, draw=6e-9)
"""Two cores that others use too; `benchmarks.switch` prints how near it is."""
CUDA = Machine(20e12, 10e12, bytes=600e9, launch=6e-6, view=1e-6, draw=1e-11)
"""A guess, not measured: a GPU of the middle class, without a CUDA Graph."""

COMPILER_START = 10.0
"""Seconds of a compilation of nothing: another process, its imports, the C++ compiler. To them come
`PER_NODE` for each op that computes and `PER_REGION`, but for blocks that are compiled once."""
PER_KIND = 0.09
"""More of them for each that is not as another before: the kernels of equal ones are one."""
PER_CONVOLUTION = 0.3
"""More of them for each convolution and its backward."""

MARGIN = 4.0
"""A switch is at so many times the seconds that the compiler is thought to need.

It takes idle time alone. Where training leaves none, the call of the switch waits for nearly all
of it: about a quarter of the time so far. At 1.5, 1,000 steps of a GPT on two cores took 1.4 times
eager's time (`benchmarks.start`)."""
LEAD = 0.75
"""The share of these calls beside which it compiles. A run that ends before compiles nothing."""
LEAST = 16
"""No switch is before so many calls."""

_CONVOLUTIONS = frozenset({aten.convolution, aten.convolution_backward})


@dataclass(frozen=True)
class Cost:
    """The estimated cost of a program's step, and the thresholds derived from it."""

    flops: int
    """FLOPs of products and convolutions in one step."""
    bytes: int
    """Bytes that its ops read and write."""
    launches: int
    """Calls of ops that compute."""
    step_seconds: float
    compile_seconds: float

    @property
    def step_text(self) -> str:
        """The step's time in milliseconds: ``2.7 ms``."""
        return (
            f"{1e3 * self.step_seconds:.2g} ms"
            if self.step_seconds < 0.1
            else (f"{1e3 * self.step_seconds:.0f} ms")
        )

    @property
    def switch_at(self) -> int:
        """The number of calls run on `aten` before compiled code takes over, to two digits."""
        return max(LEAST, _rounded(MARGIN * self.compile_seconds / self.step_seconds))

    def start_at(self, switch_at: int) -> int:
        """The calls run before the compiler starts, for a switch after ``switch_at`` calls.

        It then has ``LEAD * MARGIN`` times its seconds; for an earlier switch, all there are.
        """
        return max(1, switch_at - math.ceil(LEAD * self.switch_at))


def cost(program: Program) -> Cost:
    """The cost of a program after the default passes."""
    signature, machine = program.signature, _assumed(program)
    ours = all(group.kind in RULES for group in signature.groups)
    runs, compiled_in = signature.micro_batches, 1 + (signature.micro_batches > 1)
    flops = moved = launches = kernels = convolutions = 0
    step = 0.0
    kinds: set[Hashable] = set()
    repeated, regions = _repeated(program)
    for call in op_calls(program):
        node, rows = call.node, call.rows
        is_update = provenance(node).phase is Phase.UPDATE
        times = rows if is_update else runs
        step += times * _seconds(call, machine)
        if call.is_view:
            continue
        flops += times * call.flops
        moved += times * call.bytes
        launches += times
        if not (is_update and ours) and call.within not in repeated:
            kernels += rows if is_update else compiled_in
            convolutions += compiled_in * _convolves(node)
            kinds.add(_kind(node))
    to_compile = COMPILER_START + PER_NODE * kernels + PER_KIND * len(kinds)
    to_compile += PER_CONVOLUTION * convolutions + PER_REGION * (regions - 1)
    return Cost(flops, moved, launches, max(step, machine.launch), to_compile)


def _repeated(program: Program) -> tuple[set[fx.Node], int]:
    """The ops of blocks that are equal to earlier ones, and how many regions are not."""
    ops = [node for node in program.nodes if node.op in ("call_function", "get_attr")]
    borders = [0, *starts(ops, seconds_by_node(program)), len(ops)]
    seen: set[Hashable] = set()
    found: set[fx.Node] = set()
    for begin, end in pairwise(borders):
        block = tuple(map(kind, ops[begin:end]))
        if block in seen:
            found.update(ops[begin:end])
        seen.add(block)
    return found, len(seen)


def seconds_by_node(program: Program) -> dict[str, float]:
    """Estimated seconds per step of each node's calls, by node name; estimated as in `cost`."""
    machine = _assumed(program)
    found: dict[str, float] = {}
    for call in op_calls(program):
        is_update = provenance(call.within).phase is Phase.UPDATE
        times = call.rows * (1 if is_update else program.signature.micro_batches)
        name = call.within.name
        found[name] = found.get(name, 0.0) + times * _seconds(call, machine)
    return found


def _assumed(program: Program) -> Machine:
    inputs = program.signature.inputs
    devices = {spec.meta.device.type for spec in inputs if spec.meta is not None}
    return CUDA if "cuda" in devices else CPU


def _seconds(call: OpCall, machine: Machine) -> float:
    """Estimated seconds of one call."""
    if call.is_view:
        return machine.view
    node = call.node
    drawn = elements(node) if effects.of(node).random else 0
    rate = machine.convolved if _convolves(node) else machine.flops
    busy = max(call.flops / rate, call.bytes / machine.bytes)
    return machine.launch + busy + drawn * machine.draw


def _convolves(node: fx.Node) -> bool:
    return getattr(node.target, "overloadpacket", None) in _CONVOLUTIONS


def _rounded(calls: float) -> int:
    """To two digits, upwards: a node more or less moves no switch in most programs."""
    unit: int = 10 ** max(0, math.floor(math.log10(max(calls, 1.0))) - 1)
    return math.ceil(calls / unit) * unit


def _kind(node: fx.Node) -> Hashable:
    """Equal for nodes that become equal kernels."""
    values = (node, *node.args)
    return (
        str(node.target),
        *((shape_of(t), t.dtype) for value in values for t in tensors_of(value)),
    )
