"""The check of the numbers that Python branched on while a step was traced."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import fx

from .._torch.graphs import function_of


class _Any:
    """Whatever it is, as long as computing it raises nothing."""

    def __repr__(self) -> str:
        return "any number"


ANY = _Any()
"""In the place of the value of a condition."""
_UNKNOWN = object()
_RAISES = object()
_NAMED = 2


class ValueGuard:
    """Branches that Python took on the optimizer's numbers: a program of their conditions.

    An optimizer asks the same of each parameter, and the answers are mostly about equal numbers: a
    condition is computed once for all parameters with the same values, and not again until those
    change.
    """

    def __init__(self, gm: fx.GraphModule, fqns: Sequence[str], expected: Sequence[object]) -> None:
        self.gm = gm
        """Returns all conditions."""
        self.fqns = tuple(fqns)
        """Its inputs."""
        self.expected = tuple(expected)
        """The value of each condition at capture."""
        self._functions: list[Callable[..., object]] = []
        self._conditions = self._by_form()
        self._known: dict[tuple[object, ...], object] = {}
        self._held: list[object] | None = None
        """Values, none of which can change itself, with which all conditions held."""

    @property
    def why_not(self) -> str:
        """What there is to say when they do not hold."""
        more = f" and {len(self.fqns) - _NAMED} more" if len(self.fqns) > _NAMED else ""
        names = ", ".join(self.fqns[:_NAMED])
        return f"a branch that Python takes on {names}{more} goes the other way now"

    def holds(self, values: Sequence[object]) -> bool:
        """True when each condition has the value that it had at capture."""
        if self._held is not None and all(map(operator.is_, values, self._held)):
            return True
        keys = list(map(_key, values))
        known, self._known = self._known, {}
        for form, inputs, expected in self._conditions:
            key = (form, *[keys[i] for i in inputs])
            found = self._known.get(key, _UNKNOWN)
            if found is _UNKNOWN:
                found = known.get(key, _UNKNOWN)
                if found is _UNKNOWN:
                    found = self._computed(form, [values[i] for i in inputs], expected)
                self._known[key] = found
            if found is _RAISES or (expected is not ANY and found != expected):
                return False
        self._held = None if any(isinstance(v, torch.Tensor) for v in values) else [*values]
        return True

    def _computed(self, form: int, values: list[object], expected: Any) -> object:
        """What a condition comes to, as a `_key`; `_RAISES` where the user's line will raise."""
        try:
            with torch.no_grad():
                found = self._functions[form](*values)
        except (ArithmeticError, ValueError):
            return _RAISES
        # Python saw whether a comparison holds, for which NumPy has a class of its own.
        return _key(bool(found) if expected is not ANY and expected[0] is bool else found)

    def _by_form(self) -> list[tuple[int, tuple[int, ...], Any]]:
        """(function, the inputs that it takes, the `_key` wanted) of each condition, once."""
        positions = {n: i for i, n in enumerate(self.gm.graph.find_nodes(op="placeholder"))}
        forms: dict[object, int] = {}
        found = []
        *_, output = self.gm.graph.nodes
        for condition, expected in zip(output.args[0], self.expected, strict=True):
            nodes = _needed(condition)
            form = forms.setdefault(_form(nodes), len(forms))
            if form == len(self._functions):
                self._functions.append(_function(self.gm, nodes))
            inputs = tuple(positions[node] for node in nodes if node.op == "placeholder")
            found.append((form, inputs, ANY if expected is ANY else _key(expected)))
        return list(dict.fromkeys(found))


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
    """Equal for conditions that compute the same of other inputs."""
    index = {node: f"%{i}" for i, node in enumerate(nodes)}
    return tuple(
        (
            node.op,
            None if node.op == "placeholder" else node.target,
            repr(fx.map_arg((node.args, node.kwargs), index.__getitem__)),
        )
        for node in nodes
    )


def _function(gm: fx.GraphModule, nodes: Sequence[fx.Node]) -> Callable[..., object]:
    graph = fx.Graph()
    copies: dict[fx.Node, fx.Node] = {}
    for node in sorted(nodes, key=lambda node: node.op != "placeholder"):
        copies[node] = graph.node_copy(node, copies.__getitem__)
    graph.output(copies[nodes[-1]])
    return function_of(gm, graph)


def _key(value: object) -> object:
    """Equal for numbers that are the same, to the last bit and of the same type."""
    if isinstance(value, torch.Tensor):
        if value.ndim or value.device.type != "cpu":
            return object()
        return (value.dtype, _key(value.item()))
    plain = value and value == value and type(value) is not complex
    return (type(value), value if plain else repr(value))  # 0.0 equals -0.0, and NaN nothing
