"""Names of arguments and results in a file, equal for all options of an export."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from torch.export import ExportedProgram
from torch.export.graph_signature import ConstantArgument, InputKind, OutputKind

from ..._torch import pytree
from ...live.inputs import described


def argument_names(
    program: ExportedProgram, build: Callable[..., object], states: Sequence[str] = ()
) -> list[str]:
    """The names of the tensors that a call takes: ``x``, ``batch_0`` for ``batch[0]``.

    They begin with the names of `build`'s parameters.

    Args:
        states: names of the tensors of a first argument that is none of `build`'s.
    """
    specs = program.graph_signature.input_specs
    users = [one.arg for one in specs if one.kind is InputKind.USER_INPUT]
    numbers = pytree.tree_unflatten(list(range(len(users))), program.call_spec.in_spec)
    args, kwargs = numbers
    found = dict(enumerate(states)) | dict(_named(args[1:] if states else args, kwargs, build))
    names = [found.get(number, f"arg_{number}") for number in range(len(users))]
    kept = (
        name
        for name, one in zip(names, users, strict=True)
        if not isinstance(one, ConstantArgument)
    )
    return _unique(kept, ())


def result_names(program: ExportedProgram, taken: Iterable[str]) -> list[str]:
    """``result_out`` for ``{"out": tensor}``: where each tensor is in what the step returns.

    Args:
        taken: names that are no results'.
    """
    signature, spec = program.graph_signature, program.call_spec.out_spec
    specs = [one for one in signature.output_specs if one.kind is OutputKind.USER_OUTPUT]
    kept = [not isinstance(one.arg, ConstantArgument) for one in specs]
    paths = described(pytree.tree_unflatten(kept, spec))
    names = ["_".join(["result", *filter(None, path.split("."))]) for path, _ in paths]
    return _unique((name for name, one in zip(names, kept, strict=True) if one), taken)


def _named(
    args: tuple[Any, ...], kwargs: dict[str, Any], build: Callable[..., object]
) -> Iterator[tuple[int, str]]:
    """Number of a leaf -> its name; ``args`` and ``kwargs`` have the numbers as leaves."""
    signature = inspect.signature(build)
    try:
        bound = dict(signature.bind(*args, **kwargs).arguments)
    except TypeError:  # `build` is wrapped in something that does not say what it takes
        bound = {f"arg_{number}": value for number, value in enumerate(args)} | kwargs
    for parameter, value in bound.items():
        known = signature.parameters.get(parameter)
        merged = known is not None and known.kind is inspect.Parameter.VAR_KEYWORD
        first = () if merged else (parameter,)
        paths = [path for path, _ in described(value)]
        for path, number in zip(paths, pytree.tree_leaves(value), strict=True):
            yield number, "_".join([*first, *filter(None, path.split("."))])


def _unique(names: Iterable[str], taken: Iterable[str]) -> list[str]:
    found: dict[str, None] = {}
    avoided = set(taken)
    for name in names:
        number, candidate = 1, name
        while candidate in found or candidate in avoided:
            candidate, number = f"{name}_{number}", number + 1
        found[candidate] = None
    return list(found)
