"""The check of the numbers that Python branched on while a step was traced."""

from __future__ import annotations

import operator
from collections import Counter
from collections.abc import Callable, Sequence
from itertools import chain
from typing import Any

import torch
from torch import fx

from .._torch.graphs import function_of


class _Any:
    """An expected value that any number satisfies, as long as computing it raises nothing."""

    def __repr__(self) -> str:
        return "any number"


ANY = _Any()
"""In the place of the value of a condition."""
_NAMED = 2


class ValueGuard:
    """Branches that Python took on the optimizer's numbers: a program of their conditions.

    An optimizer asks the same of each parameter, and the answers are mostly about equal numbers:
    the conditions of one are computed once for all parameters with the same values, and not again
    until those change.
    """

    def __init__(self, gm: fx.GraphModule, fqns: Sequence[str], expected: Sequence[object]) -> None:
        self.gm = gm
        """Returns all conditions."""
        self.fqns = tuple(fqns)
        """Its inputs."""
        self.expected = tuple(expected)
        """The value of each condition at capture."""
        self._kinds: list[_Conditions] = []
        self._rows = self._by_kind()
        self._known: set[tuple[object, ...]] = set()
        self._held: list[object] | None = None
        """Values, none of which can change itself, with which all conditions held."""

    @property
    def why_not(self) -> str:
        """The reason given when the values do not hold."""
        more = f" and {len(self.fqns) - _NAMED} more" if len(self.fqns) > _NAMED else ""
        names = ", ".join(self.fqns[:_NAMED])
        return f"a branch that Python takes on {names}{more} goes the other way now"

    def holds(self, values: Sequence[object]) -> bool:
        """True when each condition has the value that it had at capture."""
        if self._held is not None and all(map(operator.is_, values, self._held)):
            return True
        keys = list(map(_key, values))
        known, self._known = self._known, set()
        for kind, inputs in self._rows:
            key = (kind, *[keys[i] for i in inputs])
            if key in self._known:
                continue
            if key not in known and not self._kinds[kind].hold([values[i] for i in inputs]):
                return False
            self._known.add(key)
        self._held = None if any(isinstance(v, torch.Tensor) for v in values) else [*values]
        return True

    def _by_kind(self) -> list[tuple[int, tuple[int, ...]]]:
        """(kind, its inputs) of each parameter's conditions, duplicates removed.

        Conditions belong to one parameter if they share the input with the fewest readers, a slot.
        """
        positions = {n: i for i, n in enumerate(self.gm.graph.find_nodes(op="placeholder"))}
        *_, output = self.gm.graph.nodes
        needed = [_needed(condition) for condition in output.args[0]]
        read = [[positions[n] for n in nodes if n.op == "placeholder"] for nodes in needed]
        count = Counter(chain.from_iterable(read))
        together: dict[int, list[int]] = {}
        for number, inputs in enumerate(read):
            rarest = min(inputs, key=lambda one: (count[one], one), default=-1)
            together.setdefault(rarest, []).append(number)
        kinds: dict[object, int] = {}
        found = []
        for numbers in together.values():
            nodes = list(dict.fromkeys(chain.from_iterable(needed[n] for n in numbers)))
            results = [(needed[n][-1], self.expected[n]) for n in numbers]
            expected = tuple(ANY if value is ANY else _key(value) for _, value in results)
            form = (_form(nodes), tuple(nodes.index(node) for node, _ in results), expected)
            kind = kinds.setdefault(form, len(kinds))
            if kind == len(self._kinds):
                function = _function(self.gm, nodes, [node for node, _ in results])
                self._kinds.append(_Conditions(function, expected))
            found.append((kind, tuple(positions[n] for n in nodes if n.op == "placeholder")))
        return list(dict.fromkeys(found))


class _Conditions:
    """Conditions on the numbers of one parameter."""

    def __init__(
        self, function: Callable[..., Sequence[object]], expected: tuple[Any, ...]
    ) -> None:
        """``function`` computes them all; ``expected``: the `_key` of each, or ANY."""
        self._function, self._expected = function, expected

    def hold(self, values: list[object]) -> bool:
        """True when they are as expected; False where the user's line will raise, too."""
        try:
            with torch.no_grad():
                results = self._function(*values)
        except (ArithmeticError, ValueError):
            return False
        # Python saw whether a comparison holds, for which NumPy has a class of its own.
        return all(
            wanted is ANY or _key(bool(found) if wanted[0] is bool else found) == wanted
            for found, wanted in zip(results, self._expected, strict=True)
        )


def _needed(condition: fx.Node) -> list[fx.Node]:
    """The nodes that a condition depends on and the condition itself, in an order of their own."""
    found: dict[fx.Node, None] = {}
    pending = [condition]
    while pending:
        node = pending[-1]
        missing = [used for used in node.all_input_nodes if used not in found]
        if missing:
            pending.append(missing[0])
        else:
            found[pending.pop()] = None
    return list(found)


def _form(nodes: Sequence[fx.Node]) -> tuple[object, ...]:
    """A key that is equal for nodes with the same computation on other inputs."""
    index = {node: f"%{i}" for i, node in enumerate(nodes)}
    return tuple(
        (
            node.op,
            None if node.op == "placeholder" else node.target,
            repr(fx.map_arg((node.args, node.kwargs), index.__getitem__)),
        )
        for node in nodes
    )


def _function(
    gm: fx.GraphModule, nodes: Sequence[fx.Node], results: Sequence[fx.Node]
) -> Callable[..., Sequence[object]]:
    graph = fx.Graph()
    copies: dict[fx.Node, fx.Node] = {}
    for node in sorted(nodes, key=lambda node: node.op != "placeholder"):
        copies[node] = graph.node_copy(node, copies.__getitem__)
    graph.output([copies[node] for node in results])
    function: Callable[..., Any] = function_of(gm, graph)
    return function


def _key(value: object) -> object:
    """Equal for numbers that are the same, to the last bit and of the same type."""
    if isinstance(value, torch.Tensor):
        if value.ndim or value.device.type != "cpu":
            return object()
        return (value.dtype, _key(value.item()))
    plain = value and value == value and type(value) is not complex
    return (type(value), value if plain else repr(value))  # 0.0 equals -0.0, and NaN nothing
