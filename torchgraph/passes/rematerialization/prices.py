"""The price of keeping a forward value for the backward, and of computing it again there.

Both are in bytes: a byte that is kept costs as much as some bytes that are written.
"""

from __future__ import annotations

import torch
from torch import fx

from ..._torch import OpOverload
from ...costs.flops import flops_of
from ...costs.timeline import is_function
from ...ir import effects
from ...ir.aliasing import alias_sources, escaping
from ...ir.program import Program, Role
from ...ir.values import leaves
from ..checkpointing.coins import is_coin
from ..checkpointing.recompute import bytes_by_storage, is_forward

aten = torch.ops.aten

_CHEAP = frozenset(
    {
        *(aten._to_copy, aten.clone, aten.cat, aten.stack, aten.repeat, aten.constant_pad_nd),
        *(aten.full, aten.zeros, aten.ones, aten.arange, aten.full_like, aten.scalar_tensor),
        *(aten.native_layer_norm, aten._fused_rms_norm),
    }
)
"""Cheap beside the elementwise ops: copies, constants, and norms over rows that fit into a cache.
Products, convolutions, attention, sums and draws are none."""
_NORMS = frozenset({aten.native_layer_norm, aten._fused_rms_norm})

_ELEMENTWISE, _FUNCTION, _NORM = 16, 4, 2
"""Bytes written by an op that are worth one that is kept. A reader in compiled code takes an
elementwise op along: it costs its arithmetic, not its traffic."""
_SMALL = 1024
"""Bytes that nobody gains by not keeping them."""


class Prices:
    """The prices of the values of one program."""

    def __init__(self, program: Program) -> None:
        roles = {node: spec.role for spec, node in program.inputs()}
        states = program.states()
        self._there = escaping(program)
        """What is kept anyway: what leaves the program, and what it does."""
        self._moving = {n for n in states if roles[n] is not Role.PARAMETER}
        """States that cannot be written before their last reader."""
        self._of_weights = _of_weights(program)
        self._order = {node: place for place, node in enumerate(program.nodes)}
        self._first_product = self._first_products()

    def keeping(self, node: fx.Node) -> int | None:
        """Of a value in memory of its own; None for a view, which keeps other memory."""
        if alias_sources(node):
            return None
        if node in self._there or not _is_known(node):
            return 0
        if self.packs(node):
            return int(node.meta["val"].numel())
        size = sum(bytes_by_storage(node).values())
        return size if size >= _SMALL else 0

    def packs(self, node: fx.Node) -> bool:
        """True for a draw of 0 and 1 that is to be kept as bools."""
        return is_coin(node) and node not in self._there and node.meta["val"].numel() >= _SMALL

    def computing(self, node: fx.Node) -> int | None:
        """None for what is not cheap, or would not be the same again."""
        if alias_sources(node):
            return 0
        if not self._is_cheap(node):
            return None
        return -(-sum(bytes_by_storage(node).values()) // _worth(node))

    def _is_cheap(self, node: fx.Node) -> bool:
        target = node.target
        return (
            isinstance(target, OpOverload)
            and target.namespace == "aten"
            and (torch.Tag.pointwise in target.tags or target.overloadpacket in _CHEAP)
            and effects.of(node).pure
            and _is_known(node)
            and node not in self._there
            and node not in self._of_weights
            and all(self._may_be_read(source, node) for source in node.all_input_nodes)
        )

    def _may_be_read(self, source: fx.Node, reader: fx.Node) -> bool:
        """True when the backward may run ``reader`` again as far as this argument goes.

        Not where a product reads the argument before: a residual stream, repeated back to where it
        begins, would be whole in memory when the backward begins.
        """
        if not is_forward(source):
            return source.op != "call_function" and source not in self._moving
        return self._first_product[source] > self._order[reader]

    def _first_products(self) -> dict[fx.Node, int]:
        """The place of the first product that each forward value goes into, through cheap ops."""
        first: dict[fx.Node, int] = {}
        """Of each node the first product at it or behind it."""
        found: dict[fx.Node, int] = {}
        for node, place in reversed(self._order.items()):
            if is_forward(node):
                readers = (first[user] for user in node.users if is_forward(user))
                found[node] = min(readers, default=len(self._order))
                first[node] = place if flops_of(node) else found[node]
        return found


def _worth(node: fx.Node) -> int:
    if getattr(node.target, "overloadpacket", None) in _NORMS:
        return _NORM
    return _FUNCTION if is_function(node) else _ELEMENTWISE


def _is_known(node: fx.Node) -> bool:
    """True for tensors whose shapes do not depend on values, and for nothing else."""
    values = [value for value in leaves(node.meta.get("val")) if value is not None]
    return bool(values) and all(
        isinstance(value, torch.Tensor)
        and value.layout is torch.strided
        and all(type(size) is int for size in value.shape)
        for value in values
    )


def _of_weights(program: Program) -> set[fx.Node]:
    """Forward ops of parameters alone, such as their casts: to do them again takes a pass over all
    of them, and saves none over activations."""
    roles = {node: spec.role for spec, node in program.inputs()}
    found = {node for node, role in roles.items() if role in (Role.PARAMETER, Role.DERIVED)}
    for node in program.nodes:
        sources = node.all_input_nodes
        if is_forward(node) and sources and found.issuperset(sources):
            found.add(node)
    return found
