"""Blocks: stretches of a program that repeat, as the layers of a transformer do.

Each becomes a region of its own, and equal regions are compiled once. What repeats is found in the
order of the ops (tandem repeats, Main and Lorentz 1984): ops are equal that call the same target
with the same shapes and constants. Which values they read is not compared: two regions share
compiled code when their text is equal, and blocks only decide where a region ends.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Hashable, Iterator, Mapping, Sequence
from itertools import accumulate
from typing import Any, NamedTuple

import torch
from torch import fx

from .._torch import storage_id
from ..costs.traffic import nbytes, shape_of
from ..ir.aliasing import alias_sources, storages_of
from ..ir.values import tensors_of
from ..passes.cse import frozen

PER_NODE = 0.06
"""Seconds of a compilation for each op that computes."""
PER_REGION = 0.5
"""More of them for each region but the first: the headers of its file are precompiled."""
_LEAST_SECONDS = 1e-3
"""What a region has to compute, as estimated: calling one takes some 30 microseconds."""


class Run(NamedTuple):
    """Equal blocks, one after the other."""

    start: int
    """The position of the first op."""
    period: int
    """The ops of each block."""
    blocks: int

    @property
    def end(self) -> int:
        """The position behind the last block."""
        return self.start + self.period * self.blocks


def starts(ops: Sequence[fx.Node], seconds: Mapping[str, float]) -> list[int]:
    """The positions where a region has to begin, ascending; empty where nothing repeats enough.

    Args:
        ops: the ops of a program in their order.
        seconds: the estimated time of each, by its name.
    """
    found: list[int] = []
    for run in _runs(ops, seconds):
        found += range(run.start, run.end + 1, run.period)
    return sorted({start for start in found if 0 < start < len(ops)})


def _runs(ops: Sequence[fx.Node], seconds: Mapping[str, float]) -> Iterator[Run]:
    numbers: dict[Hashable, int] = {}
    kinds = torch.tensor([numbers.setdefault(kind(op), len(numbers)) for op in ops])
    computing = list(accumulate((not alias_sources(op) for op in ops), initial=0))
    until = list(accumulate((seconds.get(op.name, 0.0) for op in ops), initial=0.0))
    pending = [(0, len(ops))]
    while pending:
        begin, end = pending.pop()
        found = _longest(kinds[begin:end])
        if found is None:
            continue
        run = found._replace(start=begin + found.start)
        repeated = computing[run.end] - computing[run.start + run.period]
        if PER_NODE * repeated < 2 * PER_REGION:
            continue  # what is left repeats even less
        pending += [(begin, run.start), (run.end, end)]
        run = _turned(ops, run, kinds[:end])
        each = (until[run.end] - until[run.start]) / run.blocks
        together = math.ceil(_LEAST_SECONDS / max(each, 1e-9))
        if run.blocks // together > 1:
            yield Run(run.start, run.period * together, run.blocks // together)


def _longest(kinds: torch.Tensor) -> Run | None:
    """The run that covers most ops, of blocks as short as possible; None where nothing repeats."""
    best: Run | None = None
    for period in _distances(kinds):
        equal = kinds[:-period] == kinds[period:]
        edges = torch.diff(torch.nn.functional.pad(equal.int(), (1, 1)))
        begins, ends = (torch.nonzero(edges == step).flatten() for step in (1, -1))
        if not len(begins):
            continue
        lengths = ends - begins
        place = int(lengths.argmax())
        count = int(lengths[place]) // period + 1
        if count > 1 and (best is None or count * period > best.blocks * best.period):
            best = Run(int(begins[place]), period, count)
    return best


def _distances(kinds: torch.Tensor) -> list[int]:
    """The distances at which ops come again, ascending, without those that occur once."""
    order = torch.argsort(kinds, stable=True)
    again = kinds[order][1:] == kinds[order][:-1]
    found, counts = torch.unique(torch.diff(order)[again], return_counts=True)
    distances: list[int] = found[counts > 1].tolist()
    return distances


def _turned(ops: Sequence[fx.Node], run: Run, kinds: torch.Tensor) -> Run:
    """As many blocks, begun where they read the fewest bytes of the one before."""
    last = run.end
    while last < len(kinds) and kinds[last] == kinds[last - run.period]:
        last += 1
    turns = range(run.start, run.start + last - run.end + 1)
    return run._replace(start=min(turns, key=lambda turn: _crossing(ops, turn, run.period)))


def _crossing(ops: Sequence[fx.Node], start: int, period: int) -> int:
    """Bytes that the second block reads of the first one."""
    first, second = ops[start : start + period], ops[start + period : start + 2 * period]
    read = {storage for op in second for storage in storages_of(op.all_input_nodes)}
    made = (value for op in first if not alias_sources(op) for value in tensors_of(op))
    return sum(nbytes(value) for value in made if storage_id(value) in read)


def kind(op: fx.Node) -> Hashable:
    """Equal for ops that call the same target with equal shapes and constants."""
    if op.target is operator.getitem:
        return op.args[1], _shapes(op)
    args, kwargs = fx.map_arg((op.args, dict(op.kwargs)), _shapes)
    return op.target, _shapes(op), frozen(args), frozen(kwargs)


def _shapes(node: fx.Node) -> Any:
    if node.target is operator.getitem or isinstance(node.meta.get("val"), torch.Tensor):
        return tuple((shape_of(value), value.dtype) for value in tensors_of(node))
    return str(node.target)
