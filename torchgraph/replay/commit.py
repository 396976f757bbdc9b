"""Commit: writes the results of a run that are no outputs (numbers, norms, flags)."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping, Sequence, Set as AbstractSet
from typing import Any

import torch

from .._torch.distributed.held import as_dtensor
from ..ir.names import StateName, optimizer_of
from ..ir.program import OutputKind, OutputSpec
from ..live.places import Path, assign, value_at
from ..live.step import Leaf


class Commit:
    """Splits what an executable returns into outputs for the user and state to write.

    Args:
        outputs: what the executable returns.
        wanted: what the program returns.
        live: the leaves by fqn.
        renewed: the names of containers of optimizers that each step replaces by new ones.
        norms: is filled with the norm of each param group's gradients, if that option is set.
        values: what the program returns for each of ``wanted``, as nodes.
    """

    def __init__(
        self,
        outputs: Sequence[OutputSpec],
        wanted: Sequence[OutputSpec],
        live: Mapping[str, Leaf],
        norms: dict[str, torch.Tensor],
        renewed: AbstractSet[str] = frozenset(),
        values: Sequence[object] = (),
    ) -> None:
        self.skipped: frozenset[str] = frozenset()
        """``optimizer.0``, ...: those that a GradScaler kept from stepping in the last run."""
        self.returned = _returned(wanted)
        """The paths of what is for the user, in the program's order."""
        self._outputs = outputs
        self._live = live
        self._renewed = _places(live.values(), renewed) if renewed else {}
        self._norms = norms
        self._as_they_come = all(map(_is_plain, outputs))
        given = _returned(outputs)
        # The update of a plan gives the gradients that build returns, after all else.
        same = given == self.returned
        self._order = None if same else list(map(given.index, self.returned))
        self._shared = _shared(zip(wanted, values, strict=False))
        numbered = enumerate(outputs)
        self._flags = [(i, out) for i, out in numbered if out.kind is OutputKind.SKIP]

    def take(self, results: Sequence[Any]) -> Sequence[torch.Tensor]:
        """The user's outputs, in the program's order; other results are written to their places."""
        if self._flags:
            hit = (out.target for i, out in self._flags if results[i].item())
            self.skipped = frozenset(hit)
        for name, (root, path) in self._renewed.items():
            if optimizer_of(name) not in self.skipped:
                assign(root, path, copy.copy(value_at(root, path)))
        returned = results if self._as_they_come else self._store(results)
        if self._order is not None:
            returned = [returned[i] for i in self._order]
        return self._apart(returned) if self._shared else returned

    def _apart(self, returned: Sequence[Any]) -> list[Any]:
        """Results with one value, each a tensor of its own over the same memory, as in eager."""
        found = list(returned)
        for position, first in self._shared.items():
            same = found[position] is found[first]  # of a user's class it is another already
            if same and isinstance(found[first], torch.Tensor):
                found[position] = found[first].detach()
        return found

    def _store(self, results: Sequence[Any]) -> list[torch.Tensor]:
        returned: list[torch.Tensor] = []
        for out, value in zip(self._outputs, results, strict=True):
            if out.kind is OutputKind.USER:
                returned.append(_given(value, out))
            elif out.kind is OutputKind.NORM:
                self._norms[out.target] = value
            elif out.kind is OutputKind.SKIP or optimizer_of(out.target) in self.skipped:
                continue
            else:
                assign(self._live[out.target].root, self._live[out.target].path, value)
        return returned


def _given(value: torch.Tensor, out: OutputSpec) -> torch.Tensor:
    """A result as the user gets it: a DTensor, or of a class of the user's."""
    if out.cls is not None:
        return value.as_subclass(out.cls)
    return value if out.layout is None else as_dtensor(value, out.layout)


def _is_plain(out: OutputSpec) -> bool:
    """True for a value of the program's that the user gets as it is."""
    return out.kind is OutputKind.USER and not out.layout and out.cls is None


def _places(leaves: Iterable[Leaf], wanted: AbstractSet[str]) -> dict[str, tuple[Any, Path]]:
    """(root, path) of the containers around leaves that have these names, outer ones first."""
    found = {}
    for leaf in leaves:
        name = leaf.fqn
        for levels in range(len(leaf.path) - 1, 0, -1):
            if isinstance(name, StateName) and name.around(levels) in wanted:
                found[name.around(levels)] = (leaf.root, leaf.path[:-levels])
    return dict(sorted(found.items(), key=lambda item: len(item[1][1])))


def _shared(outputs: Iterable[tuple[OutputSpec, object]]) -> dict[int, int]:
    """Of the user's outputs, by position, those whose value an earlier one has, and that one's."""
    values = [value for out, value in outputs if out.kind is OutputKind.USER]
    first: dict[int, int] = {}
    earlier = [first.setdefault(id(value), position) for position, value in enumerate(values)]
    return {position: found for position, found in enumerate(earlier) if found != position}


def _returned(outputs: Sequence[OutputSpec]) -> list[str]:
    return [out.target for out in outputs if out.kind is OutputKind.USER]
