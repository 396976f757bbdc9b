"""The least work of a step, of which the floor of its time is made.

Bytes: each state and argument that is read, once; each state that changes and all that is returned,
written once. What lies between, activations and gradients, might stay in a cache. Of a table of
which rows are looked up, or written, the rows count. FLOPs: those of products, by their dtype; of
causal attention the half that a kernel may not leave out.
"""

from __future__ import annotations

import torch
from torch import fx

from ..._torch import OpOverload, schema_of
from ...costs.op_calls import op_calls
from ...costs.traffic import SHAPES, elements
from ...ir.aliasing import alias_sources
from ...ir.program import OutputKind, Phase, Program, Role, provenance
from ...ir.values import tensors_of

aten = torch.ops.aten

_LOOKUPS = frozenset(
    {aten.embedding, aten.index, aten.index_select, aten.gather, aten._unsafe_index, aten.take}
)
"""They read as many elements of their first argument as they give."""
_SCATTERS = frozenset(
    {
        *(aten.index_put, aten.index_add, aten.index_copy, aten.scatter, aten.scatter_add),
        *(aten.select_scatter, aten.slice_scatter, aten.scatter_reduce, aten.index_fill),
        *(aten.copy, aten.as_strided_scatter, aten.index_put_, aten.diagonal_scatter),
    }
)
"""What they give is their first argument, in which they write some elements."""


def least_bytes(program: Program) -> int:
    """Bytes that a step has to read and write at least."""
    runs = program.signature.micro_batches
    moved = 0
    for spec, node in program.inputs():
        if spec.meta is not None and spec.alias_of is None and spec.role is not Role.ACCUMULATOR:
            moved += _read(node) * (runs if spec.split else 1)
    for state, value in program.states().items():
        moved += _written(value, state)
    for out, value in program.returns():
        if out.kind is OutputKind.USER and isinstance(value, fx.Node):
            moved += runs * _nbytes(value)
    return moved


def least_flops(program: Program) -> dict[torch.dtype, int]:
    """FLOPs of the products of a step, by the dtype in which they multiply."""
    found: dict[torch.dtype, int] = {}
    for call in op_calls(program):
        flops = call.flops
        if not flops:
            continue
        is_update = provenance(call.within).phase is Phase.UPDATE
        times = call.rows * (1 if is_update else program.signature.micro_batches)
        dtype = product_dtype(call.node)
        found[dtype] = found.get(dtype, 0) + times * (
            flops // 2 if _is_causal(call.node) else flops
        )
    return found


def product_dtype(node: fx.Node) -> torch.dtype:
    """The dtype in which a product multiplies: of its first tensor."""
    return next(tensors_of(list(node.args))).dtype


def _is_causal(node: fx.Node) -> bool:
    """True for causal attention."""
    if not isinstance(node.target, OpOverload):
        return False
    for position, argument in enumerate(schema_of(node.target).arguments):
        if argument.name == "is_causal":
            given = node.args[position] if position < len(node.args) else argument.default_value
            return bool(node.kwargs.get("is_causal", given))
    return False


def _read(node: fx.Node) -> int:
    """Bytes of ``node`` that its readers read at least."""
    read = 0
    for user in node.users:
        packet = getattr(user.target, "overloadpacket", None)
        first = bool(user.args) and user.args[0] is node
        if user.op == "output" or (first and packet in SHAPES):
            continue
        if first and packet in _LOOKUPS:
            read += _nbytes(user)
        elif first and packet in _SCATTERS:
            read += _read(user)
        elif node in alias_sources(user):
            read += min(_nbytes(user), _read(user))
        else:
            return _nbytes(node)
    return min(read, _nbytes(node))


def _written(value: object, state: fx.Node) -> int:
    """Bytes of ``state`` that its new value writes at least."""
    if not isinstance(value, fx.Node) or value is state:
        return 0
    packet = getattr(value.target, "overloadpacket", None)
    if packet not in _SCATTERS:
        return _nbytes(state)
    dtype = state.meta["val"].dtype
    given = [node for node in value.all_input_nodes if node is not value.args[0]]
    written = sum(_nbytes(node) for node in given if node.meta["val"].dtype is dtype)
    return min(_nbytes(state), _written(value.args[0], state) + written)


def _nbytes(node: fx.Node) -> int:
    return sum(elements(tensor) * tensor.dtype.itemsize for tensor in tensors_of(node))
