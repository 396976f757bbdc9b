"""The branches that Python took on an optimizer's numbers, in words."""

from __future__ import annotations

from collections.abc import Collection

from torch import fx

from ...guards import ValueGuard

_SIGNS = {
    **{"eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">="},
    **{"add": "+", "sub": "-", "mul": "*", "truediv": "/", "pow": "**"},
}


def conditions(guard: ValueGuard) -> list[str]:
    """``optimizer.0.param_groups.0.momentum != 0``, ``not (...)``, each once."""
    found = []
    names = _names(guard)
    for node, expected in zip(_results(guard), guard.expected, strict=True):
        text = _text(node, names)
        if expected is False:
            text = f"not ({text})"
        elif expected is not True:
            text = f"{text} == {expected!r}"
        found.append(text)
    return sorted(set(found))


def moved(guard: ValueGuard, written: Collection[str]) -> str:
    """A state among ``written`` that a branch is about; empty for none."""
    return next((str(fqn) for fqn in guard.fqns if str(fqn) in written), "")


def _names(guard: ValueGuard) -> dict[fx.Node, str]:
    inputs = guard.gm.graph.find_nodes(op="placeholder")
    return {node: str(fqn) for node, fqn in zip(inputs, guard.fqns, strict=True)}


def _results(guard: ValueGuard) -> list[fx.Node]:
    return list(guard.gm.graph.output_node().args[0])  # type: ignore[arg-type]  # nodes


def _text(value: object, names: dict[fx.Node, str], *, inner: bool = False) -> str:
    if not isinstance(value, fx.Node):
        return repr(value)
    if value in names:
        return names[value]
    name = getattr(value.target, "__name__", str(value.target))
    if name in _SIGNS and len(value.args) == 2:
        left, right = (_text(one, names, inner=True) for one in value.args)
        text = f"{left} {_SIGNS[name]} {right}"
        return f"({text})" if inner else text
    return f"{name}({', '.join(_text(one, names) for one in value.args)})"
