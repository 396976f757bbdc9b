"""Attribution of nodes to modules; an update of several parameters is shared among theirs."""

from __future__ import annotations

import operator
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from torch import fx

from ..ir.each import each_of, is_each, rows_of
from ..ir.names import module_of
from ..ir.nodes import item
from ..ir.program import OutputKind, Phase, Program, Role, provenance
from .traffic import elements

_KEPT = frozenset({Role.PARAMETER, Role.BUFFER, Role.SLOT, Role.ACCUMULATOR})


class Part(NamedTuple):
    """A module's part of a node. The parts of one follow each other, from 0 to 1."""

    module: str
    begins: float = 0.0
    ends: float = 1.0
    rows: int = 1
    """The number of parameters that it is for."""

    @property
    def size(self) -> float:
        """The fraction of the node that this part covers."""
        return self.ends - self.begins


def own_module(node: fx.Node) -> str:
    """The module that a node is of; empty for what several share, or none has."""
    origin = provenance(node)
    several = is_each(node) or (origin.phase is Phase.UPDATE and len(_first_list(node)) > 1)
    return "" if several else origin.module


class Owners:
    """The modules that own the nodes of a program.

    An optimizer's op over lists, and a node that does the same for each of several parameters, are
    shared out by the sizes of their rows. The states that a row reads or writes give its module.
    """

    def __init__(self, program: Program) -> None:
        self._known = _of_states(program)
        calls = [node for node in program.nodes if node.op == "call_function"]
        lists = [node for node in calls if not is_each(node) and _first_list(node)]
        for node in (*lists, *reversed(lists)):  # what is read before its owner is known, too
            self._pass_on(node)
        self._parts: dict[str, tuple[Part, ...]] = {}
        for node in (*filter(is_each, calls), *lists):
            owners = [(module, size) for module, size in self._rows(node)]
            self._parts[node.name] = tuple(_parts(owners)) or (Part(own_module(node)),)
            for result in _results(node):
                self._parts[result.name] = (Part(owners[item(result) % len(owners)][0]),)

    def parts(self, node: fx.Node) -> Sequence[Part]:
        """The parts of a node; in a lowered form of the program it is known by its name."""
        return self._parts.get(node.name) or (Part(own_module(node)),)

    def module(self, node: fx.Node) -> str:
        """The one module that owns ``node``; empty when several share it, or none does."""
        first, *others = self.parts(node)
        return "" if others else first.module

    def _pass_on(self, node: fx.Node) -> None:
        """Give all values in a row the module of those known: a row belongs to one parameter."""
        rows = [list(row) for row in _rows_of_lists(node)]
        for result in _results(node):
            rows[item(result) % len(rows)].append(result)
        met = Counter(value for row in rows for value in set(row))
        for row in rows:
            own = [value for value in row if met[value] == 1]
            known = [self._known[value] for value in own if value in self._known]
            for value in own if known else ():
                self._known.setdefault(value, known[0])

    def _rows(self, node: fx.Node) -> Iterator[tuple[str, int]]:
        """(module, elements) of each row."""
        if is_each(node):
            for owner, row in zip(each_of(node).rows, rows_of(node), strict=True):
                yield module_of(owner), sum(map(elements, row))
            return
        for row in _rows_of_lists(node):
            known = [self._known[value] for value in row if value in self._known]
            owners = known or [provenance(value).module for value in row]
            yield next(filter(None, owners), ""), sum(map(elements, row))


def _of_states(program: Program) -> dict[fx.Node, str]:
    """The module of each state, by its value before the step and by that after it."""
    found = {node: module_of(spec.fqn) for spec, node in program.inputs() if spec.role in _KEPT}
    for out, value in program.returns():
        if out.kind is OutputKind.UPDATE and isinstance(value, fx.Node):
            found.setdefault(value, module_of(out.target))
    return found


def _parts(owners: Sequence[tuple[str, int]]) -> Iterator[Part]:
    sizes: Counter[str] = Counter()
    for module, size in owners:
        sizes[module] += size
    rows = Counter(module for module, _ in owners)
    whole, before = sizes.total(), 0
    for module, size in sizes.items() if whole else ():
        yield Part(module, before / whole, (before + size) / whole, rows[module])
        before += size


def _first_list(node: fx.Node) -> Sequence[fx.Node]:
    """The nodes of the list that an op of the update takes first; empty for any other op."""
    first = node.args[0] if node.args else None
    if provenance(node).phase is not Phase.UPDATE or not isinstance(first, (list, tuple)):
        return ()
    return [value for value in first if isinstance(value, fx.Node)]


def _rows_of_lists(node: fx.Node) -> list[tuple[fx.Node, ...]]:
    """The rows of an op over lists: elements at one index in each list as long as its first."""
    length = len(_first_list(node))
    lists = (
        [value for value in given if isinstance(value, fx.Node)]
        for given in (*node.args, *node.kwargs.values())
        if isinstance(given, (list, tuple))
    )
    return list(zip(*(each for each in lists if len(each) == length), strict=True))


def _results(node: fx.Node) -> Iterator[fx.Node]:
    """The nodes that take one of the results of an op that returns a list."""
    return (user for user in node.users if user.target is operator.getitem)
