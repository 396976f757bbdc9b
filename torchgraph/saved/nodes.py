"""Checks of nodes read from a file: none reaches Python as more than a name.

Programs become source that is run. So names are names, keywords are those of an op's schema, and an
op writes into nothing and knows no files.
"""

from __future__ import annotations

import keyword
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from torch import fx

from .._torch import OpOverload, schema_of
from ..errors import CheckpointDamaged
from ..ir.each import Each

_NUMBERS = (bool, int, float, complex)


def check_node(
    op: str, name: str, target: object, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> None:
    """Raise CheckpointDamaged for a node that `written` does not write."""
    if not is_name(name):
        raise CheckpointDamaged(f"{name!r:.80} is no name of a node.")
    if not isinstance(args, (list, tuple)) or not isinstance(kwargs, Mapping):
        raise CheckpointDamaged(f"{name} has no arguments.")
    if op == "call_function":
        _check_call(name, target, args, kwargs)
        return
    plain = {"placeholder": target == name, "get_attr": _is_path(target)}
    plain["output"] = target == "output" and len(args) == 1
    if not plain.get(op) or kwargs or (args and op != "output"):
        raise CheckpointDamaged(f"{name} is no node of a program.")


def is_name(text: object) -> bool:
    """True for what Python takes for a variable's name."""
    return (
        type(text) is str and text.isascii() and text.isidentifier() and not keyword.iskeyword(text)
    )


def _is_path(target: object) -> bool:
    return type(target) is str and all(map(is_name, target.split(".")))


def _check_call(name: str, target: object, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
    if isinstance(target, OpOverload):
        _check_op(name, target, args, kwargs)
    elif kwargs:
        raise CheckpointDamaged(f"{name} gives keywords to what takes none.")
    elif isinstance(target, Each):
        if len(args) != 2 or not is_name(target.__name__):
            raise CheckpointDamaged(f"{name} computes no rows.")
    else:
        given = list(_leaves(args))
        nodes = any(isinstance(one, fx.Node) for one in given)
        if not nodes or not all(isinstance(one, (fx.Node, *_NUMBERS)) for one in given):
            raise CheckpointDamaged(f"{name} computes with what is no number.")


def _check_op(name: str, op: OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
    schema = schema_of(op)
    if schema.is_mutable:
        raise CheckpointDamaged(f"{name} calls {op}, which writes into what it is given.")
    free = [argument.name for argument in schema.arguments][len(args) :]
    if len(args) > len(schema.arguments) or not set(kwargs) <= set(free):
        raise CheckpointDamaged(f"{name} gives {op} arguments that it does not take.")


def _leaves(value: Any) -> Iterator[Any]:
    if isinstance(value, (list, tuple)):
        for item in value:
            yield from _leaves(item)
    else:
        yield value
