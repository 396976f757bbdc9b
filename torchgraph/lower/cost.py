"""Cost: what a step and its compilation take, estimated from the program alone.

The call at which `auto` switches follows from it, so it has to be the same in every process that
runs the same script: ops, shapes and dtypes count, and constants that are part of this file. What
the machine is, how many threads there are, and which version torch has do not.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from .. import library
from .._torch import HigherOrderOperator, OpOverload
from ..ir import effects
from ..ir.aliasing import alias_sources
from ..ir.each import each_of, is_each, rows_of
from ..ir.program import Phase, Program, provenance
from ..ir.values import tensors_of
from ..passes.fusions.model_update.optimizers import RULES

aten = torch.ops.aten


@dataclass(frozen=True)
class Machine:
    """Constants of the machine that is assumed."""

    flops: float
    """A second, in products."""
    convolved: float
    """The same in convolutions."""
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
"""Seconds of a compilation of nothing: another process, its imports, the C++ compiler."""
PER_NODE = 0.06
"""Seconds for each op that computes."""
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
_MARKS = frozenset({library.gradient, library.accumulated, library.before_update})
"""They are gone when the program is lowered."""


@dataclass(frozen=True)
class Cost:
    """What a program takes, and what follows from it."""

    flops: int
    """FLOPs of products and convolutions in one step."""
    bytes: int
    """That its ops read and write."""
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
        """How many calls run on `aten` before compiled code takes over: two digits of it."""
        return max(LEAST, _rounded(MARGIN * self.compile_seconds / self.step_seconds))

    def start_at(self, switch_at: int) -> int:
        """How many calls run before the compiler starts, for a switch at this one.

        It then has ``LEAD * MARGIN`` times its seconds; for an earlier switch, all there are.
        """
        return max(1, switch_at - math.ceil(LEAD * self.switch_at))


def cost(program: Program) -> Cost:
    """The cost of a program after the default passes."""
    signature = program.signature
    devices = {spec.meta.device.type for spec in signature.inputs if spec.meta is not None}
    machine = CUDA if "cuda" in devices else CPU
    ours = all(group.kind in RULES for group in signature.groups)
    runs, compiled_in = signature.micro_batches, 1 + (signature.micro_batches > 1)
    flops = moved = launches = kernels = convolutions = 0
    step = 0.0
    kinds: set[Hashable] = set()
    for node, rows, share in _calls(program):
        is_update = provenance(node).phase is Phase.UPDATE
        times = rows if is_update else runs
        if alias_sources(node):
            step += times * machine.view
            continue
        work, traffic = flops_of(node), int(_traffic(node) * share / rows)
        drawn = _elements(node) if effects.of(node).random else 0
        convolves = getattr(node.target, "overloadpacket", None) in _CONVOLUTIONS
        rate = machine.convolved if convolves else machine.flops
        busy = max(work / rate, traffic / machine.bytes)
        step += times * (machine.launch + busy + drawn * machine.draw)
        flops += times * work
        moved += times * traffic
        launches += times
        if not (is_update and ours):
            kernels += rows if is_update else compiled_in
            convolutions += compiled_in * convolves
            kinds.add(_kind(node))
    to_compile = COMPILER_START + PER_NODE * kernels + PER_KIND * len(kinds)
    to_compile += PER_CONVOLUTION * convolutions
    return Cost(flops, moved, launches, max(step, machine.launch), to_compile)


def _calls(program: Program) -> Iterator[tuple[fx.Node, int, float]]:
    """The calls of ops; how often each is done, and on how many times its tensors' bytes in all."""
    for node in program.nodes:
        if is_each(node):
            yield from _rows(node)
        elif node.op == "call_function" and _is_op(node.target) and node.target not in _MARKS:
            yield node, 1, 1.0


def _rows(node: fx.Node) -> Iterator[tuple[fx.Node, int, float]]:
    each = each_of(node)
    body = sum(map(_elements, each.body.placeholders[: each.columns]))
    share = sum(_elements(item) for row in rows_of(node) for item in row) / max(1, body)
    for inner in each.body.nodes:
        if inner.op == "call_function" and _is_op(inner.target):
            yield inner, len(each.rows), share


def _rounded(calls: float) -> int:
    """To two digits, upwards: a node more or less moves no switch in most programs."""
    unit: int = 10 ** max(0, math.floor(math.log10(max(calls, 1.0))) - 1)
    return math.ceil(calls / unit) * unit


def _is_op(target: object) -> bool:
    return isinstance(target, (OpOverload, HigherOrderOperator))


# --- tensors --------------------------------------------------------------------------------------


def _shape(value: object) -> tuple[int, ...]:
    """Sizes; 1 for one that depends on data. Empty for what is no tensor."""
    value = value.meta.get("val") if isinstance(value, fx.Node) else value
    if not isinstance(value, torch.Tensor):
        return ()
    return tuple(size if type(size) is int else 1 for size in value.shape)


def _elements(value: object) -> int:
    return sum(math.prod(_shape(tensor)) for tensor in tensors_of(value))


def _traffic(node: fx.Node) -> int:
    """Bytes of all tensors that go in and come out."""
    values = (node, *node.args, *node.kwargs.values())
    found = (tensor for value in values for tensor in tensors_of(value))
    return sum(math.prod(_shape(tensor)) * tensor.dtype.itemsize for tensor in found)


def _kind(node: fx.Node) -> Hashable:
    """Equal for nodes that become equal kernels."""
    values = (node, *node.args)
    return (
        str(node.target),
        *((_shape(t), t.dtype) for value in values for t in tensors_of(value)),
    )


# --- FLOPs ----------------------------------------------------------------------------------------


def flops_of(node: fx.Node) -> int:
    """FLOPs of a product, a convolution, an attention or an LSTM, a multiply-add as two; else 0."""
    rule = _rules().get(node.target)
    return 0 if rule is None else rule(node)


def _product(left: int) -> Callable[[fx.Node], int]:
    """Each element of the result is a row of argument ``left`` times a column."""

    def count(node: fx.Node) -> int:
        return 2 * _elements(node) * _shape(node.args[left])[-1]

    return count


def _vectors(node: fx.Node) -> int:
    return 2 * _elements(node.args[0])


def _convolution(node: fx.Node) -> int:
    inputs, weight, transposed = node.args[0], node.args[1], node.args[6]
    return _convolved(inputs if transposed else node, weight)


def _convolution_backward(node: fx.Node) -> int:
    gradient, inputs, weight, transposed = *node.args[:3], node.args[7]
    mask: Any = node.args[10]
    products: int = sum(mask[:2])
    return products * _convolved(inputs if transposed else gradient, weight)


def _convolved(many: object, weight: object) -> int:
    """Each element of ``many`` meets the weights of one channel."""
    shape = _shape(weight)
    return 2 * _elements(many) * math.prod(shape[1:])


def _attention(first: int, times: float) -> Callable[[fx.Node], int]:
    """Two products of query, key and value, from argument ``first`` on; ``times`` so often."""

    def count(node: fx.Node) -> int:
        query, key, value = (_shape(arg) for arg in node.args[first : first + 3])
        rows = math.prod(query[:-1])
        return int(2 * times * rows * key[-2] * (query[-1] + value[-1]))

    return count


def _recurrent(times: int) -> Callable[[fx.Node], int]:
    """Each row of the sequence meets the input's and the hidden state's weights."""

    def count(node: fx.Node) -> int:
        rows = _elements(node.args[0]) // max(1, _shape(node.args[0])[-1])
        return 2 * times * rows * sum(_elements(weight) for weight in node.args[1:3])

    return count


@functools.cache
def _rules() -> dict[object, Callable[[fx.Node], int]]:
    named: dict[str, Callable[[fx.Node], int]] = {
        "mm": _product(0),
        "bmm": _product(0),
        "linear": _product(0),
        "mv": _vectors,
        "dot": _vectors,
        "addmm": _product(1),
        "baddbmm": _product(1),
        "_addmm_activation": _product(1),
        "convolution": _convolution,
        "convolution_backward": _convolution_backward,
        "mkldnn_rnn_layer": _recurrent(1),
        "rnn_layer_without_grad": _recurrent(1),
        "mkldnn_rnn_layer_backward": _recurrent(2),
        **dict.fromkeys(
            (
                "scaled_dot_product_attention",
                "_scaled_dot_product_flash_attention",
                "_scaled_dot_product_flash_attention_for_cpu",
                "_scaled_dot_product_efficient_attention",
                "_scaled_dot_product_cudnn_attention",
                "_scaled_dot_product_attention_math",
            ),
            _attention(0, 1),
        ),
        **dict.fromkeys(  # five products for the forward's two
            (
                "_scaled_dot_product_flash_attention_backward",
                "_scaled_dot_product_flash_attention_for_cpu_backward",
                "_scaled_dot_product_efficient_attention_backward",
                "_scaled_dot_product_cudnn_attention_backward",
            ),
            _attention(1, 2.5),
        ),
    }
    packets = {getattr(aten, name, None): rule for name, rule in named.items()}
    return {
        getattr(packet, overload): rule
        for packet, rule in packets.items()
        if packet is not None
        for overload in packet.overloads()
    }
