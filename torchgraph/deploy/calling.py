"""Calling convention of an exported step: arguments and results as torch's pytrees."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from .._torch import pytree
from ..errors import NotExportable
from ..ir.program import TensorMeta
from ..live.inputs import Call, paths
from ..structure import UNREAD, Returned

_CONSTANTS = (bool, int, float, str, type(None))


@dataclass(frozen=True)
class Result:
    """A tensor that is returned: the program's, by number."""

    number: int


@dataclass(frozen=True)
class Argument:
    """A tensor of the call, by its path: ``args[0]``."""

    path: str


Leaf = Result | Argument | bool | int | float | str | None


@dataclass(frozen=True)
class Calling:
    """The trees of arguments, ``(args, kwargs)``, and of results, with what is at each leaf."""

    in_spec: Any
    arguments: tuple[Leaf, ...]
    out_spec: Any
    results: tuple[Leaf, ...]
    examples: tuple[tuple[object, ...], dict[str, object]]
    """Arguments of the right shapes, all zeros."""


def calling(call: Call, returned: Returned, metas: Mapping[str, TensorMeta]) -> Calling:
    """The calling convention of a step, from the arguments and results of one call.

    Args:
        metas: what is known of each tensor of the call, by path.

    Raises:
        NotExportable: names an argument or result that torch's pytrees do not take apart.
    """
    names = {
        id(tensor): path
        for path, tensor in zip(paths(call.args, call.kwargs), call.tensors, strict=True)
    }
    leaves, in_spec = pytree.tree_flatten((tuple(call.args), dict(call.kwargs)))
    arguments = tuple(_argument(leaf, names) for leaf in leaves)
    missing = set(names.values()) - {one.path for one in arguments if isinstance(one, Argument)}
    if missing:
        raise _opaque(min(missing), "is a tensor in an object")
    marks = [torch.full((), float(i), dtype=torch.float64) for i in range(len(returned.names))]
    own = call.over(list(call.tensors))  # what a step does to its arguments is done to these
    found, out_spec = pytree.tree_flatten(returned.made(marks, own.args, own.kwargs))
    results = tuple(_result(leaf, names) for leaf in found)
    if returned.meets_arguments and not any(isinstance(one, Argument) for one in results):
        raise NotExportable(
            "The step writes into a list, dict or object of the caller's; an exported step only "
            "returns.",
            fix="return what it writes.",
        )
    _check_written(in_spec, out_spec)
    zeros = _zeros(call, metas)
    return Calling(in_spec, arguments, out_spec, results, zeros)


def _check_written(*specs: Any) -> None:
    """Raise NotExportable for a class that torch does not write to files."""
    for spec in specs:
        try:
            pytree.treespec_dumps(spec)
        except NotImplementedError as error:
            raise NotExportable(
                f"torch cannot write how the step is called: {str(error).splitlines()[0]}",
                fix="pass dicts, lists and tuples, or dataclasses that are made known with "
                "torch.export.register_dataclass.",
            ) from error


def _argument(leaf: Any, names: dict[int, str]) -> Leaf:
    if isinstance(leaf, torch.Tensor):
        return Argument(names[id(leaf)])
    return _constant(None if leaf is UNREAD else leaf, "An argument")


def _result(leaf: Any, names: dict[int, str]) -> Leaf:
    if isinstance(leaf, torch.Tensor):
        if id(leaf) in names:
            return Argument(names[id(leaf)])
        return Result(int(leaf.detach().item()))
    if isinstance(leaf, str):  # torch writes it, and does not read it
        raise _opaque("A result", "is a text")
    return _constant(leaf, "A result")


def _constant(leaf: Any, what: str) -> Leaf:
    if type(leaf) not in _CONSTANTS:
        raise _opaque(what, f"is a {type(leaf).__name__}")
    constant: Leaf = leaf
    return constant


def _opaque(what: str, is_a: str) -> NotExportable:
    return NotExportable(
        f"{what} {is_a}, which torch.export cannot take apart.",
        fix="pass and return tensors, numbers, None, and dicts, lists and tuples of them, "
        "or make the class known with torch.export.register_dataclass.",
    )


def _zeros(
    call: Call, metas: Mapping[str, TensorMeta]
) -> tuple[tuple[object, ...], dict[str, object]]:
    """The arguments with zeros for tensors: no batch of the user's is kept, or written."""
    made = []
    for path, tensor in zip(paths(call.args, call.kwargs), call.tensors, strict=True):
        device = metas[path].device if path in metas else torch.device("cpu")
        shape, strides = tensor.shape, tensor.stride()
        zeros = torch.empty_strided(shape, strides, dtype=tensor.dtype, device=device)
        made.append(zeros.zero_())
    own = call.over(made)
    return tuple(own.args), dict(own.kwargs)
