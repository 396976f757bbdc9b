"""Channels-last propagation: convolutions and what lies between them work on NHWC memory."""

from __future__ import annotations

import operator
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
from torch import fx
from torch.fx.node import Argument, Target

from .._torch import OpOverload
from ..ir import batch_norms, effects
from ..ir.nodes import operand, operands
from ..ir.program import Phase, Program, provenance
from ..ir.rewriter import Rewriter
from ..ir.values import is_contiguous, same_layout
from .base import Pass

aten = torch.ops.aten


@dataclass(frozen=True)
class ChannelsLast(Pass):
    """Converts what enters a region of convolutions to channels-last memory, and back what leaves.

    A region is convolutions with the batch norms, pools and elementwise ops between them, forward
    and backward. Its ops read the layout off their inputs, so the region works in NHWC once its
    inputs do. Weights keep their layout, and so do their gradients, the outputs and everything that
    another op reads: they are copied back. Not exact: other kernels add in another order. OneFlow:
    the auto-layout pass (``ONEFLOW_MLIR_PREFER_NHWC``).
    """

    name: ClassVar[str] = "channels_last"

    def exact(self, program: Program) -> bool:
        """Never: the channels-last kernels add in another order."""
        return False

    def apply(self, program: Program, edit: Rewriter) -> None:
        """Convert each region in which convolutions give more elements than are converted."""
        for region in _regions(program):
            reason = region.reason_against()
            if reason:
                edit.refuse(region.convolutions[0], reason)
            else:
                with edit.together():
                    _Converted(region, edit).write()


@dataclass
class _ConvolutionRegion:
    nodes: list[fx.Node] = field(default_factory=list)
    """In program order, parts of tuples included."""

    @property
    def convolutions(self) -> list[fx.Node]:
        return [node for node in self.nodes if node.target in _CONVOLUTIONS]

    def reason_against(self) -> str:
        """The reason why the region stays as it is; empty when converting it pays.

        Weights count: their layout stays, so each kernel converts them, or their gradient.
        """
        given = sum(_elements(_main_result(node)) for node in self.convolutions)
        converted = sum(_elements(value.meta["val"]) for value in self._crossing())
        converted += sum(map(_converted_weight, self.convolutions))
        if converted > given:
            return f"{converted} elements would be converted for {given} that convolutions give"
        return ""

    def _crossing(self) -> dict[fx.Node, None]:
        """Tensors that enter in NCHW, and activations of the region that other ops read."""
        inside = set(self.nodes)
        found = {}
        for node in self.nodes:
            found.update(dict.fromkeys(v for v in _carried(node) if v not in inside))
            if any(user not in inside for user in node.users) and _is_plain(node):
                found[node] = None
        return found


def _regions(program: Program) -> Iterator[_ConvolutionRegion]:
    """Maximal groups of nodes that hand NCHW tensors to each other, with a convolution in them."""
    home: dict[fx.Node, _ConvolutionRegion] = {}
    for node in program.nodes:
        part = node.target is operator.getitem
        sources = node.all_input_nodes if part else _carried(node)
        joined = {id(home[source]): home[source] for source in sources if source in home}
        if not joined and (part or not sources):
            continue
        region = max(joined.values(), key=lambda one: len(one.nodes), default=_ConvolutionRegion())
        for other in joined.values():
            if other is not region:
                region.nodes += other.nodes
                home.update(dict.fromkeys(other.nodes, region))
        region.nodes.append(node)
        home[node] = region
    order = {node: position for position, node in enumerate(home)}
    for region in {id(region): region for region in home.values()}.values():
        region.nodes.sort(key=order.__getitem__)
        if region.convolutions:
            yield region


def _carried(node: fx.Node) -> list[fx.Node]:
    """The arguments whose NCHW memory ``node`` would take in NHWC too; empty when it would not."""
    if node.op != "call_function" or provenance(node).phase is Phase.UPDATE:
        return []
    if not effects.of(node).pure or not _is_contiguous(node.meta.get("val")):
        return []
    arguments: Sequence[Argument]
    if node.target in _CARRIERS:
        arguments = [node.args[place] for place in _CARRIERS[node.target] if place < len(node.args)]
    elif _is_elementwise(node):
        shape = node.meta["val"].shape
        arguments = [arg for arg in node.all_input_nodes if _shape(arg) == shape]
    elif node.target is aten.cat.default:
        arguments = operands(node)
    else:
        return []
    return [arg for arg in arguments if isinstance(arg, fx.Node) and _is_plain(arg)]


def _is_elementwise(node: fx.Node) -> bool:
    if node.kwargs.get("memory_format") not in (None, torch.preserve_format):
        return False
    if not isinstance(node.target, OpOverload) or _shape(node) is None:
        return False
    return torch.Tag.pointwise in node.target.tags or node.target in _ELEMENTWISE


def _is_plain(node: fx.Node) -> bool:
    """A 4-D activation in NCHW memory that NHWC memory would differ from."""
    value = node.meta.get("val")
    later_result = node.target is operator.getitem and node.args[1] != 0
    if later_result and operand(node).target is aten.convolution_backward.default:
        return False  # a gradient keeps the strides of its parameter
    return (
        isinstance(value, torch.Tensor)
        and value.dim() == 4
        and value.dtype in _DTYPES
        and is_contiguous(value)
        and not value.is_contiguous(memory_format=torch.channels_last)
    )


class _Converted:
    """The nodes of a region written anew on channels-last inputs."""

    def __init__(self, region: _ConvolutionRegion, edit: Rewriter) -> None:
        self._region = region
        self._edit = edit
        self._new: dict[fx.Node, fx.Node] = {}
        self._entered: dict[fx.Node, fx.Node] = {}
        self._restored: dict[fx.Node, fx.Node] = {}

    def write(self) -> None:
        """The new nodes, each before the one it replaces; then the old ones go."""
        for node in self._region.nodes:
            args, kwargs = self._arguments(node)
            self._new[node] = self._edit.call(node.target, args, kwargs, before=node, like=node)
        inside = set(self._region.nodes)
        read_outside = [n for n in self._region.nodes if any(u not in inside for u in n.users)]
        for node in read_outside:
            self._edit.replace(node, self._old_layout(node))
        for node in reversed(self._region.nodes):
            if node not in read_outside:
                self._edit.erase(node)

    def _arguments(self, reader: fx.Node) -> tuple[tuple[Argument, ...], dict[str, Argument]]:
        carried = _carried(reader)

        def argument(node: fx.Node) -> fx.Node:
            whole = isinstance(node.meta.get("val"), (tuple, list))
            if whole or (node in carried and node in self._new):
                return self._new[node]
            return self._enter(node, reader) if node in carried else self._old_layout(node)

        return fx.map_arg((reader.args, reader.kwargs), argument)

    def _enter(self, node: fx.Node, reader: fx.Node) -> fx.Node:
        if node not in self._entered:
            self._entered[node] = self._copy(node, torch.channels_last, before=reader)
        return self._entered[node]

    def _old_layout(self, node: fx.Node) -> fx.Node:
        new = self._new.get(node, node)
        if same_layout(node.meta["val"], new.meta["val"]):
            return new
        if node not in self._restored:
            self._restored[node] = self._copy(new, torch.contiguous_format, before=node)
        return self._restored[node]

    def _copy(self, node: fx.Node, layout: torch.memory_format, *, before: fx.Node) -> fx.Node:
        options = {"memory_format": layout}
        return self._edit.call(aten.clone.default, (node,), options, before=before, like=before)


def _shape(node: fx.Node) -> torch.Size | None:
    value = node.meta.get("val")
    return value.shape if isinstance(value, torch.Tensor) and value.dim() == 4 else None


def _is_contiguous(value: object) -> bool:
    if isinstance(value, (tuple, list)):
        return all(item is None or _is_contiguous(item) for item in value)
    return is_contiguous(value)


def _main_result(node: fx.Node) -> Any:
    value = node.meta["val"]
    return value[0] if isinstance(value, (tuple, list)) else value


def _converted_weight(convolution: fx.Node) -> int:
    """The elements of its weight; 0 for one whose memory is the same in both layouts."""
    place = 1 if convolution.target is aten.convolution.default else 2
    weight = _main_result(operand(convolution, place))
    return 0 if weight.is_contiguous(memory_format=torch.channels_last) else _elements(weight)


def _elements(value: object) -> int:
    return value.numel() if isinstance(value, torch.Tensor) else 0


_DTYPES = frozenset({torch.float32, torch.bfloat16, torch.float16, torch.bool, torch.int64})
"""The dtypes of activations, masks and a pool's indices; convolutions of doubles gain nothing."""
_CONVOLUTIONS = frozenset({aten.convolution.default, aten.convolution_backward.default})
_CARRIERS: dict[Target, tuple[int, ...]] = {
    aten.convolution.default: (0,),
    aten.convolution_backward.default: (0, 1),
    **dict.fromkeys(batch_norms.FORWARD, (0,)),
    **dict.fromkeys(batch_norms.BACKWARD, (0, 1)),
    aten.max_pool2d_with_indices.default: (0,),
    aten.max_pool2d_with_indices_backward.default: (0, 1, 7),
    aten.avg_pool2d.default: (0,),
    aten.avg_pool2d_backward.default: (0, 1),
    aten._adaptive_avg_pool2d.default: (0,),
    aten._adaptive_avg_pool2d_backward.default: (0, 1),
    aten.upsample_nearest2d.default: (0,),
    aten.upsample_nearest2d_backward.default: (0,),
    aten.upsample_bilinear2d.default: (0,),
    aten.upsample_bilinear2d_backward.default: (0,),
    aten.mean.dim: (0,),
    aten.sum.dim_IntList: (0,),
    # They read the dtype and the device alone.
    aten.new_empty.default: (0,),
    aten.new_zeros.default: (0,),
    aten.new_ones.default: (0,),
    aten.new_full.default: (0,),
}
"""Op -> the places of the activations that it takes in any layout, its result following them."""
_ELEMENTWISE = frozenset(
    {
        aten._to_copy.default,
        aten.elu_backward.default,
        aten.hardsigmoid_backward.default,
        aten.hardswish.default,
        aten.hardswish_backward.default,
        aten.hardtanh_backward.default,
        aten.leaky_relu.default,
        aten.leaky_relu_backward.default,
        aten.mish_backward.default,
        aten.softplus_backward.default,
    }
)
"""Elementwise ops that torch does not tag as such in every version."""
