"""Reasons why a program cannot be replayed as a CUDA Graph, each with the user's line.

A replay repeats what the GPU did, with the same addresses and without Python. So nothing may wait
for a value of the GPU, compute on the CPU or depend on a shape that only the run knows.
"""

from __future__ import annotations

import operator
from collections import Counter
from collections.abc import Iterator

import torch
from torch import fx

from ... import library
from ..._torch import OpOverload, schema_of
from ..._torch.distributed.process_groups import is_nccl
from ...ir import effects
from ...ir.nodes import op_of
from ...ir.program import Program, Refusal, provenance
from ...ir.values import tensors_of
from ..agreements import communicates
from ..numbers import list_forms, numbers, tensor_forms
from ..numbers.sides import UPDATES, host_side, is_small
from ..pauses import may_pause

_WAITING = frozenset(
    {
        *("aten::bincount", "aten::equal", "aten::histc", "aten::is_nonzero", "aten::item"),
        *("aten::multinomial", "aten::tensor_split", "aten::to_sparse", "aten::_ctc_loss"),
        *("aten::linalg_eig", "aten::linalg_eigvals", "aten::linalg_lstsq", "aten::_linalg_eigh"),
    }
)
"""Ops whose CUDA kernels wait for a value, or compute on the CPU, though their schema is silent."""
_FUNCTIONAL = frozenset({"_c10d_functional", "_c10d_functional_autograd"})
_BY_MASK = frozenset({"aten::index", "aten::index_put", "aten::_unsafe_index_put"})


def scan(program: Program, device: torch.device) -> tuple[Refusal, ...]:
    """The reasons why ``device`` cannot replay the program; empty when none was found."""
    host = host_side(program, device)
    found: Counter[Refusal] = Counter()
    meets = communicates(program)
    for node in program.nodes:
        if effects.of(node).expects:
            if may_pause(node, device) and not meets:
                continue
            reason = "the host waits for a value that Python has read"
            if meets:
                reason = "the ranks decide together on a value that Python has read"
            found[Refusal(reason, provenance(node).line)] += 1
        elif node.op == "call_function":
            reasons = _on_host(node) if node in host else _on_device(node, host, device)
            found.update(Refusal(reason, provenance(node).line) for reason in reasons)
    return tuple(Refusal(one.reason, one.line, count) for one, count in found.items())


def _on_host(node: fx.Node) -> Iterator[str]:
    if node.target is library.keep:
        return  # its flag is read when the step is over
    read = [source for source in node.all_input_nodes if not is_small(source)]
    name = _name(node)
    if read and (numbers.is_number(node) or any(map(_is_on_gpu, read))):
        yield f"{name}: the host waits for a value of the GPU"
    elif read or not is_small(node):
        yield f"{name}: computes on the CPU"
    if effects.of(node).random:
        yield f"{name}: draws on the CPU"


def _on_device(node: fx.Node, host: set[fx.Node], device: torch.device) -> Iterator[str]:
    name, target = _name(node), node.target
    if target is operator.getitem:
        return
    if not isinstance(target, OpOverload):
        yield f"{name}: calls Python"
        return
    found = effects.of(node)
    if found.opaque or (found.communicates and not _is_on_stream(node, device)):
        what = "a collective" if found.communicates else "an op of unknown effects"
        yield f"{name}: {what}"
    if _has_unknown_shape(node):
        yield f"{name}: the shape of its result depends on data"
    elif torch.Tag.data_dependent_output in target.tags or _waits(node):
        yield f"{name}: the host waits for a value of the GPU"
    updates = target in UPDATES or list_forms.fused(node) is not None
    if numbers.moving(node) and not updates and not tensor_forms.has_form(node):
        yield f"{name}: takes a number that may change, and has no form that takes it as a tensor"
    yield from _elsewhere(node, host, device)


def _is_on_stream(node: fx.Node, device: torch.device) -> bool:
    """True for a collective that NCCL runs on the GPU's stream, which a capture holds as a kernel.

    It names its group: an op that holds one keeps the group alive, and ends with it.
    """
    target = op_of(node)
    groups = [one for one in (*node.args, *node.kwargs.values()) if isinstance(one, str)]
    devices = {value.device.type for value in tensors_of(node.all_input_nodes)}
    return (
        target.namespace in _FUNCTIONAL and devices == {device.type} and any(map(is_nccl, groups))
    )


def _elsewhere(node: fx.Node, host: set[fx.Node], device: torch.device) -> Iterator[str]:
    for source in node.all_input_nodes:
        if source in host and not is_small(source) and source.op != "get_attr":
            yield f"{_name(node)}: copies a tensor from the CPU; move it before the call"
    devices = {value.device for value in tensors_of(node) if value.device.type == device.type}
    for other in sorted(map(str, devices - {device})):
        yield f"{_name(node)}: works on {other}, the step on {device}"


def _waits(node: fx.Node) -> bool:
    name = schema_of(op_of(node)).name
    if name in _BY_MASK:
        return not tensor_forms.fills_by_mask(node) and any(
            value.dtype in (torch.bool, torch.uint8)
            for source in node.all_input_nodes[1:]
            for value in tensors_of(source)
            if _is_index(node, source)
        )
    return name in _WAITING


def _is_index(node: fx.Node, source: fx.Node) -> bool:
    indices = node.args[1]
    return isinstance(indices, (list, tuple)) and source in indices


def _has_unknown_shape(node: fx.Node) -> bool:
    unknown = any(type(size) is not int for value in tensors_of(node) for size in value.shape)
    return unknown or torch.Tag.dynamic_output_shape in getattr(node.target, "tags", ())


def _is_on_gpu(node: fx.Node) -> bool:
    return any(value.device.type != "cpu" for value in tensors_of(node))


def _name(node: fx.Node) -> str:
    return str(getattr(node.target, "__name__", node.target)).removesuffix(".default")
