"""Arguments to try a file on: those of the user, others like them, and those of another batch."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind, TensorArgument

from ..._torch import pytree

Tensors = list[torch.Tensor]
_MORE_ROWS = 3


def calls(
    program: ExportedProgram, given: Sequence[torch.Tensor] | None
) -> Iterator[tuple[Tensors, bool]]:
    """The tensors of calls, in order, and whether they are made up; always the same ones.

    Args:
        given: what the user gave for the tensors of a call; None where only the shapes are known.
    """
    values = _values(program)
    likes: list[torch.Tensor | None] = [None] * len(values)
    if given is not None and len(given) == len(values):
        likes = list(given)
        yield [_copied(one) for one in given], False
    source = torch.Generator().manual_seed(0)
    sizes = _sizes(program, values)
    for number in range(2 if sizes else 1):
        known = {symbol: pair[number] for symbol, pair in sizes.items()}
        pairs = zip(values, likes, strict=True)
        try:
            made = [_made_up(value, like, known, source) for value, like in pairs]
        except ValueError:  # a size follows from one that no argument has as it is
            continue
        yield made, True


def call(program: ExportedProgram, tensors: Tensors) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """``args, kwargs`` of a call with these tensors."""
    following = iter(tensors)
    leaves = pytree.tree_leaves(program.example_inputs)
    filled = [next(following) if isinstance(one, torch.Tensor) else one for one in leaves]
    args, kwargs = pytree.tree_unflatten(filled, program.call_spec.in_spec)
    return tuple(args), dict(kwargs)


def _values(program: ExportedProgram) -> list[Any]:
    """The traced metadata of each tensor of a call."""
    nodes = {node.name: node for node in program.graph.find_nodes(op="placeholder")}
    specs = program.graph_signature.input_specs
    return [
        nodes[one.arg.name].meta["val"]
        for one in specs
        if one.kind is InputKind.USER_INPUT and isinstance(one.arg, TensorArgument)
    ]


def _sizes(program: ExportedProgram, values: Sequence[Any]) -> dict[Any, tuple[int, int]]:
    """By symbol, its size at the export, and another valid one."""
    tensors = [
        one for one in pytree.tree_leaves(program.example_inputs) if isinstance(one, torch.Tensor)
    ]
    found: dict[Any, tuple[int, int]] = {}
    for value, tensor in zip(values, tensors, strict=True):
        for size, now in zip(value.shape, tensor.shape, strict=True):
            symbol = None if type(size) is int else size.node.expr
            if symbol is not None and symbol.is_Symbol:
                limits = program.range_constraints.get(symbol)
                most = limits.upper if limits is not None else now + _MORE_ROWS
                other = now + _MORE_ROWS
                if not other <= most:
                    other = max(now - 1, int(limits.lower), 1)
                found[symbol] = now, other
    return found


def _number(size: Any, known: Mapping[Any, int]) -> int:
    if type(size) is int:
        return size
    found = size.node.expr.subs(known)
    if not found.is_number:
        raise ValueError(size)
    return int(found)


def _copied(tensor: torch.Tensor) -> torch.Tensor:
    """A copy that lies as it does; itself where its elements share memory: nobody writes that."""
    if any(s == 0 and n > 1 for s, n in zip(tensor.stride(), tensor.shape, strict=True)):
        return tensor.detach()
    made = torch.empty_strided(
        tensor.shape, tensor.stride(), dtype=tensor.dtype, device=tensor.device
    )
    return made.copy_(tensor.detach())


def _made_up(
    value: Any, like: torch.Tensor | None, known: Mapping[Any, int], source: torch.Generator
) -> torch.Tensor:
    """Random values between the least and the largest that the user gave."""
    shape, stride = (
        [_number(one, known) for one in each] for each in (value.shape, value.stride())
    )
    low, high = _limits(value.dtype, like)
    if value.dtype == torch.bool or not (value.is_floating_point() or value.is_complex()):
        made = torch.randint(int(low), int(high) + 1, shape, generator=source)
    elif low < high:
        made = torch.rand(shape, generator=source, dtype=torch.float64) * (high - low) + low
    else:
        kind = torch.complex128 if value.is_complex() else torch.float64
        made = torch.randn(shape, generator=source, dtype=kind)
    if any(s == 0 and n > 1 for s, n in zip(stride, shape, strict=True)):
        first = tuple(slice(0, 1) if s == 0 else slice(None) for s in stride)
        return made[first].to(value.dtype).to(value.device).expand(shape)
    placed = torch.empty_strided(shape, stride, dtype=value.dtype, device=value.device)
    return placed.copy_(made)


def _limits(dtype: torch.dtype, like: torch.Tensor | None) -> tuple[float, float]:
    if dtype == torch.bool or (like is None and not dtype.is_floating_point):
        return 0, 1
    if like is None or dtype.is_complex or not like.numel():
        return 0, 0
    if not dtype.is_floating_point:
        return int(like.min()), int(like.max())
    finite = like.detach().double()
    finite = finite[finite.isfinite()]
    return (float(finite.min()), float(finite.max())) if finite.numel() else (0, 0)
