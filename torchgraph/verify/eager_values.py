"""Comparison of a program with the op results of an eager run, for faults of capture."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import fx

from ..ir import bits
from ..ir.copies import copied
from ..ir.ops import UNSET, base_name
from ..ir.program import Program
from .divergence import Divergence, divergence
from .eager import Eager, Journal, ResultPlace, results
from .rank_agreement import SingleRank
from .run import walk


class _Found(NamedTuple):
    """A node that differs: its value, its place in the eager run, its unmatched inputs."""

    node: fx.Node
    got: torch.Tensor
    place: ResultPlace
    read: dict[fx.Node, torch.Tensor]


class Follower:
    """Comparison of a program's values, up to the first node for which eager has no equal one.

    A node is right when eager met its value anywhere: passes may merge, move and rename nodes. It
    is wrong when eager never did although it ran this op with this shape and dtype. A node that
    eager has no counterpart for is a suspect: it is judged by what eager gives to its reader.
    """

    def __init__(self, program: Program, journal: Journal) -> None:
        self._program = program
        self._journal = journal
        self._met: set[bytes] = set()
        self._clock = -1
        self._suspects: set[fx.Node] = set()
        self._read: dict[fx.Node, torch.Tensor] = {}
        """The values of suspects that the current node reads, which it may write."""
        self._found: _Found | None = None

    def execute(self, values: Sequence[object]) -> tuple[object, ...]:
        """Run the program and return its results."""
        return walk(self._program, values, self._after, before=self._before)

    def _before(self, node: fx.Node, values: Mapping[fx.Node, Any]) -> None:
        if node.op == "call_function" and self._found is None:
            suspects = self._suspects.intersection(node.all_input_nodes)
            self._read = {one: copied(values[one]) for one in suspects}

    def _after(self, node: fx.Node, value: Any) -> Any:
        if node.op == "call_function" and self._found is None:
            for index, tensor in results(value):
                self._compare(node, index, tensor)
        return value

    def divergence(self, eager: Eager, ranks: SingleRank) -> Divergence | None:
        """The divergence that was found, with ``reaches`` empty. All ranks have to call."""
        if not ranks.any(self._found is not None):
            return None
        if self._found is None:
            eager.run()
            return None
        node, got, place, read = self._found
        journal = eager.journal_at(place)
        for argument, expected in zip(node.args, journal.arguments, strict=False):
            if not isinstance(argument, fx.Node) or argument not in read:
                continue
            if not bits.same(expected, read[argument]):
                return divergence(argument, expected, read[argument])
        return divergence(node, journal.value, got)

    def _compare(self, node: fx.Node, index: int, tensor: torch.Tensor) -> None:
        name = base_name(node.target)
        if self._found is not None or name.startswith(UNSET):
            return
        mark = bits.fingerprint(tensor)
        position = self._journal.by_value.get((tensor.shape, tensor.dtype, mark))
        candidates = self._journal.by_key.get((name, index, tensor.shape, tensor.dtype))
        if position is not None:
            self._met.add(mark)
            self._clock = max(self._clock, position)
        elif candidates is not None:
            place = self._counterpart(candidates)
            self._found = _Found(node, copied(tensor), place, self._read)
        else:
            self._suspects.add(node)

    def _counterpart(self, candidates: Sequence[tuple[ResultPlace, bytes]]) -> ResultPlace:
        """The result that eager has instead: the next one that no node has had."""
        left = [place for place, mark in candidates if mark not in self._met]
        ahead = [place for place in left if place.position > self._clock]
        return (ahead or left or [candidates[-1][0]])[0]
