"""Division of ops over states of several ranks: foreach ops, and gradient buckets.

An op over lists does the same for each row. A bucket is made of gradients one after the other,
which are added up over the copies of a pipeline, and apart again behind it.
"""

from __future__ import annotations

import itertools
import operator
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import fx

from ... import library
from ..._torch import FakeTensorMode, OpOverload, schema_of
from ...ir import effects, nodes
from ...ir.program import Program
from ...ir.values import mode_of, valued

aten = torch.ops.aten

_EACH_ROW = ("aten::_foreach_", "torchgraph::_fused_")
_SCALES = frozenset({aten.mul.Tensor, aten.mul.Scalar, aten.div.Tensor, aten.div.Scalar})

_SCATTER = 5
"""Arguments of a ``slice_scatter`` that names where it begins and ends."""

Homes = frozenset[int]
"""Ranks whose value is the right one."""


def apart(program: Program, homes: Mapping[str, Homes], everybody: Homes) -> Program:
    """A copy of the program in which no such op takes states of several ranks.

    Args:
        homes: of each input, by its name.
    """
    found = program.copy()
    for node in list(found.nodes):
        if node.target is aten.split_with_sizes.default:
            _read_what_was_written(found.gm.graph, node)
    _Apart(found, {node: homes[node.name] for node in found.placeholders}, everybody).run()
    return found


class _Apart:
    def __init__(self, program: Program, known: dict[fx.Node, Homes], everybody: Homes) -> None:
        self._graph, self._known, self._everybody = program.gm.graph, known, everybody
        self._mode: FakeTensorMode = mode_of(program)

    def run(self) -> None:
        for node in list(self._graph.nodes):
            if node.op == "output" or node in self._known:
                continue
            rows = _rows(node)
            groups: defaultdict[Homes, list[int]] = defaultdict(list)
            for number, row in enumerate(rows):
                groups[self._home(row)].append(number)
            chain = _bucket(node) if len(groups) > 1 else []
            if len(groups) > 1 and (chain or not _is_cat(node)):
                self._split(chain or [node], groups, len(rows))
            else:
                self._known[node] = self._home(node.all_input_nodes)

    def _home(self, values: Sequence[fx.Node]) -> Homes:
        return self._everybody.intersection(*map(self._known.__getitem__, values)) or (
            self._everybody
        )

    def _split(
        self, chain: Sequence[fx.Node], groups: Mapping[Homes, Sequence[int]], length: int
    ) -> None:
        """Copy a chain of nodes once for each group of rows."""
        last, found = chain[-1], []
        items = [(user, nodes.item(user)) for user in last.users]
        for home, rows in groups.items():
            part: dict[fx.Node, fx.Node] = {}
            for node in chain:
                part[node] = self._part(node, part, rows, length, last)
                self._known[part[node]] = home
            if last.target is library.unscale:
                found.append(self._found(part[last], len(rows)))
            for item, at in items:
                if at % length in rows and not (found and at == length):
                    item.args = (part[last], at // length * len(rows) + rows.index(at % length))
                    self._known[item] = home
        for item, at in items:
            if found and at == length:
                self._known[item] = self._everybody
                item.replace_all_uses_with(self._most(found, item))
                self._graph.erase_node(item)
        for node in reversed(chain):
            self._known[node] = self._everybody
            self._graph.erase_node(node)

    def _found(self, part: fx.Node, length: int) -> fx.Node:
        """The flag of one part for an element that is not finite."""
        with self._graph.inserting_after(part):
            item = self._graph.call_function(operator.getitem, (part, length))
        item.meta.update(val=part.meta["val"][length], provenance=part.meta["provenance"])
        self._known[item] = self._known[part]
        return item

    def _most(self, found: Sequence[fx.Node], before: fx.Node) -> fx.Node:
        """The flag for GradScaler: 1 where that of any part is 1."""
        total = found[0]
        for one in found[1:]:
            with self._graph.inserting_before(before):
                made = self._graph.call_function(aten.maximum.default, (total, one))
            valued(self._mode, made).meta["provenance"] = before.meta["provenance"]
            self._known[made], total = self._everybody, made
        return total

    def _part(
        self,
        node: fx.Node,
        part: Mapping[fx.Node, fx.Node],
        rows: Sequence[int],
        length: int,
        before: fx.Node,
    ) -> fx.Node:
        def own(argument: Any) -> Any:
            if isinstance(argument, fx.Node):
                return part.get(argument, argument)
            if isinstance(argument, (list, tuple)) and len(argument) == length:
                return [argument[row] for row in rows]
            return argument

        args = tuple(own(one) for one in node.args)
        kwargs = {key: own(one) for key, one in node.kwargs.items()}
        with self._graph.inserting_before(before):
            made = self._graph.call_function(node.target, args, kwargs)  # type: ignore[arg-type]  # an op
        made.meta.update(node.meta)
        return valued(self._mode, made)


def _read_what_was_written(graph: fx.Graph, split: fx.Node) -> None:
    """Let readers of pieces of a bucket read the tensors that were written to those pieces.

    Clipping in place writes gradients that lie in a bucket, so functionally it makes the bucket
    anew for each.
    """
    written: dict[tuple[int, int], fx.Node] = {}
    base = nodes.operand(split)
    chain = []
    while base.target is aten.slice_scatter.default and len(base.args) == _SCATTER:
        _, source, dim, start, end = base.args
        if dim != 0 or not isinstance(source, fx.Node) or len(base.users) > 1:
            return
        written.setdefault((start, end), source)  # type: ignore[arg-type]  # numbers
        chain.append(base)
        base = nodes.operand(base)
    sizes: Any = split.args[1]
    ends = list(itertools.accumulate(sizes))
    numbers = {item: nodes.item(item) for item in split.users}
    pieces = {item: (ends[at] - sizes[at], ends[at]) for item, at in numbers.items()}
    if not chain or len(written) < len(chain) or not written.keys() <= set(pieces.values()):
        return
    for item, piece in pieces.items():
        if piece in written:
            item.replace_all_uses_with(written[piece])
            graph.erase_node(item)
    for node in (split, *chain):
        if not node.users:
            graph.erase_node(node)


def _is_cat(node: fx.Node) -> bool:
    return node.target is aten.cat.default


def _rows(node: fx.Node) -> list[list[fx.Node]]:
    """The nodes of each row of an elementwise op over lists; none for other ops."""
    if not isinstance(node.target, OpOverload):
        return []
    if _is_cat(node):
        return [[one] for one in nodes.operands(node)]
    if node.target is library.unscale:
        return [[one] for one in nodes.operands(node)]
    name = schema_of(node.target).name
    each = name.startswith(_EACH_ROW) or "_update" in name.partition("::")[2]
    if not each or not nodes.is_over_lists(node):
        return []
    length = len(nodes.sequence(node.args[0]))
    lists = [one for one in node.args if isinstance(one, (list, tuple)) and len(one) == length]
    return [[one for one in row if isinstance(one, fx.Node)] for row in zip(*lists, strict=True)]


def _bucket(node: fx.Node) -> list[fx.Node]:
    """The nodes from the ``cat`` of a bucket to its split; empty for no bucket."""
    if not _is_cat(node) or any(one.meta["val"].ndim != 1 for one in nodes.operands(node)):
        return []
    sizes = [one.meta["val"].numel() for one in nodes.operands(node)]
    chain = [node]
    while len(chain[-1].users) == 1:
        (user,) = chain[-1].users
        chain.append(user)
        if user.target is aten.split_with_sizes.default:
            split = all(one.target is operator.getitem for one in user.users)
            return chain if split and list(user.args[1]) == sizes else []  # type: ignore[arg-type]  # sizes
        found, alone = effects.of(user), len(user.all_input_nodes) == 1
        whole = found.communicates or found.waits or user.target in _SCALES
        if not (alone and whole):
            return []
    return []
