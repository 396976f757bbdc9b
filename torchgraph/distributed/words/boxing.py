"""``tg.to_global``, ``tg.to_local``: tensors and modules as DTensors, and back.

OneFlow: the methods ``to_global`` and ``to_local`` of tensors and modules.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any, TypeVar, overload

import torch
from torch import nn

from ..._torch.distributed import layouts
from ..._torch.distributed.held import is_dtensor
from ..errors import PlacementMismatch
from . import sbp as words
from .parts import Parts
from .placement import placement
from .sbp import sbp

Sbp = sbp | Sequence[sbp]
Module = TypeVar("Module", bound=nn.Module)


@overload
def to_global(x: Module, placement: placement | None = ..., sbp: Sbp | None = ...) -> Module: ...
@overload
def to_global(
    x: torch.Tensor, placement: placement | None = ..., sbp: Sbp | None = ...
) -> torch.Tensor: ...
def to_global(
    x: torch.Tensor | nn.Module, placement: placement | None = None, sbp: Sbp | None = None
) -> torch.Tensor | nn.Module:
    """A tensor of all ranks of a placement, a `DTensor`. OneFlow: ``x.to_global``.

    Of a plain tensor each rank gives its part: with ``split(d)`` the parts are one after the other
    along ``d``, with ``partial_sum`` they are added, with ``broadcast`` that of the first rank
    counts. A DTensor is laid out anew; what is not given stays. Of a module each parameter and
    buffer is laid out, in place: each rank holds the whole of it, and that of the first rank
    counts. (OneFlow takes a module's parameters for parts, too.) All ranks call it. Gradients
    flow back.

    Args:
        sbp: one, or one for each dimension of the placement.

    Raises:
        PlacementMismatch: ranks, dimensions and devices that do not go together, parts that are not
            of one tensor.
    """
    if isinstance(x, nn.Module):
        where, how = _given(x, placement, sbp)
        layouts.map_tensors(x, lambda name, tensor: _laid_out(name, tensor, where, how))
        return x
    if not isinstance(x, torch.Tensor):
        raise PlacementMismatch(f"to_global takes a tensor or a module, not a {type(x).__name__}.")
    if is_dtensor(x):
        return _anew(x, placement, sbp)
    where, how = _given(x, placement, sbp)
    return _of_parts(x, where, how)


@overload
def to_local(x: Module) -> Module: ...
@overload
def to_local(x: torch.Tensor) -> torch.Tensor: ...
def to_local(x: torch.Tensor | nn.Module) -> torch.Tensor | nn.Module:
    """The local shard of a DTensor; of a module, in place. OneFlow: ``x.to_local``.

    Raises:
        PlacementMismatch: a tensor that is no DTensor.
    """
    if isinstance(x, nn.Module):
        layouts.map_tensors(x, lambda _, one: _local(one).detach() if is_dtensor(one) else one)
        return x
    if not is_dtensor(x):
        raise PlacementMismatch("to_local takes a DTensor, and this tensor is local already.")
    return _local(x)


def _local(tensor: Any) -> torch.Tensor:
    return layouts.waited(tensor.to_local())


def _given(
    x: object, where: placement | None, how: Sbp | None
) -> tuple[placement, tuple[sbp, ...]]:
    if where is None or how is None:
        raise PlacementMismatch(
            f"to_global of a {type(x).__name__} takes a placement and an sbp.",
            fix='tg.to_global(x, tg.placement("cpu", [0, 1]), tg.sbp.split(0))',
        )
    if not isinstance(where, placement):
        raise PlacementMismatch(f"{where!r} is no placement.", fix='tg.placement("cpu", [0, 1])')
    return where, words.each(how, where.ndim)


def _check_dims(name: str, shape: Sequence[int], how: Sequence[sbp]) -> None:
    for one in how:
        if one.dim is not None and one.dim >= len(shape):
            raise PlacementMismatch(
                f"{name} of shape {list(shape)} has no dimension {one.dim} to split."
            )


def _laid_out(
    name: str, tensor: torch.Tensor, where: placement, how: tuple[sbp, ...]
) -> torch.Tensor:
    """A parameter as a DTensor, made from a tensor that each rank holds whole."""
    if is_dtensor(tensor):
        return _anew(tensor.detach(), where, how)
    if words.partial_sum in how:
        raise PlacementMismatch(f"{name} is no sum: parameters are split or broadcast.")
    _check_dims(name, tensor.shape, how)
    module, placements = layouts.dtensor(), [one.layout for one in how]
    made: torch.Tensor = module.distribute_tensor(tensor.detach(), where.mesh, placements)
    return made


# --- parts of plain tensors -----------------------------------------------------------------------


def _of_parts(x: torch.Tensor, where: placement, how: tuple[sbp, ...]) -> torch.Tensor:
    if x.device.type != where.type:
        raise PlacementMismatch(
            f"A tensor on {x.device} is no part of one on {where.type}.",
            fix=f"x.to({where.type!r})",
        )
    _check_dims("A tensor", x.shape, how)
    mesh, group = where.mesh, where.group
    if layouts.coordinate(mesh) is None:
        raise PlacementMismatch(f"This rank is not in {where!r}, and has no part of its tensor.")
    told = layouts.gathered((tuple(x.shape), str(x.dtype)), group, len(where.members))
    by_rank = dict(zip(sorted(where.members), told, strict=True))
    parts = Parts({at: by_rank[rank] for at, rank in _coordinates(where)}, where.shape, how)
    if not parts.are_even:
        x = _evened(x, parts, where)
    x = x.clone(
        memory_format=torch.contiguous_format
    )  # what the first rank holds is written into it
    for number, one in enumerate(how):
        if one == words.broadcast:
            layouts.broadcast_along(x.detach(), mesh, number)
    made: torch.Tensor = layouts.dtensor().DTensor.from_local(
        x,
        mesh,
        [one.layout for one in how],
        shape=torch.Size(parts.shape),
        stride=parts.stride,
    )
    return made


def _coordinates(where: placement) -> list[tuple[tuple[int, ...], int]]:
    """The coordinates of each rank in the mesh."""
    places = itertools.product(*map(range, where.shape))
    return list(zip(places, where.members, strict=True))


def _evened(x: torch.Tensor, parts: Parts, where: placement) -> torch.Tensor:
    """The local shard of this rank when the tensor is split evenly."""
    if x.requires_grad:
        raise PlacementMismatch(
            f"The parts, of sizes {parts.words}, are no even split of {list(parts.shape)}, and no "
            "gradient flows back through another one.",
            fix=f"let the ranks have {parts.even_words}.",
        )
    told = layouts.gathered(x.detach(), where.group, len(where.members))
    by_rank = dict(zip(sorted(where.members), told, strict=True))
    whole = parts.together({at: by_rank[rank] for at, rank in _coordinates(where)})
    place = layouts.coordinate(where.mesh)
    assert place is not None
    return parts.even(whole, tuple(place))


# --- from one layout to another -------------------------------------------------------------------


def _anew(x: Any, where: placement | None, how: Sbp | None) -> torch.Tensor:
    """A DTensor redistributed to the layout that was asked for."""
    here = placement.of(x)
    where = here if where is None else where
    layout = words.each(words.of(x) if how is None else how, where.ndim)
    _check_dims("A tensor", x.shape, layout)
    if where != here:
        return _aliases(x, here, where, layout)
    module = layouts.dtensor()
    if words.partial_sum not in layout:
        made: torch.Tensor = x.redistribute(x.device_mesh, [one.layout for one in layout])
        return made
    return _as_sum(x, layout, module)


def _as_sum(x: Any, layout: Sequence[sbp], module: Any) -> torch.Tensor:
    """A tensor as partial sums: along those dimensions the first rank has it, others zeros."""
    held = words.of(x)
    is_new = [
        new == words.partial_sum and old != words.partial_sum
        for old, new in zip(held, layout, strict=True)
    ]
    between = [
        module.Replicate() if new else one.layout for one, new in zip(layout, is_new, strict=True)
    ]
    x = x.redistribute(x.device_mesh, between)
    summed = [module.Partial() if new else one for one, new in zip(between, is_new, strict=True)]
    # Of a part that is new, each rank has a part of the gradient; of one that was, all of it.
    grads = [
        module.Partial() if new else module.Replicate() if one.is_partial() else one
        for one, new in zip(between, is_new, strict=True)
    ]
    local = layouts.waited(x.to_local(grad_placements=grads))
    place = layouts.coordinate(x.device_mesh)
    if place is not None and any(at and new for at, new in zip(place, is_new, strict=True)):
        local = local * 0
    made: torch.Tensor = module.DTensor.from_local(
        local, x.device_mesh, summed, shape=x.shape, stride=x.stride()
    )
    return made


def _aliases(x: Any, here: placement, where: placement, layout: Sequence[sbp]) -> torch.Tensor:
    """The tensor on other ranks, or on the same ones as another mesh. Every rank has to call."""
    if x.requires_grad:
        raise PlacementMismatch(
            f"No gradient flows back from {where!r} to {here!r}.",
            fix="let pipeline stages do it: set_stage(id, placement).",
        )
    whole = layouts.waited(x.full_tensor()) if layouts.coordinate(x.device_mesh) else None
    whole = layouts.sent(whole, x, here.members[0], where.type)
    module, mesh = layouts.dtensor(), where.mesh
    placed = [module.Replicate() if one == words.partial_sum else one.layout for one in layout]
    made: torch.Tensor = module.distribute_tensor(whole, mesh, placed, src_data_rank=None)
    return _as_sum(made, layout, module) if words.partial_sum in layout else made
