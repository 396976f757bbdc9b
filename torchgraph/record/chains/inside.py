"""Traversal of containers: the items to which names may lead."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable, Iterator
from types import FunctionType, MethodType
from typing import Any, NamedTuple

import torch

from ..._torch import storage_id
from ..._torch.functorch import is_wrapped
from ..._torch.modules import children_of
from ...guards.aspects import (
    DEEPEST,
    Same,
    count,
    elements,
    is_buffer,
    is_container,
    items_in,
    look,
    values_in,
)
from ...guards.names import CONTENT, By, Path, follow
from ...objects import in_words, is_a
from ...structure import Unfit, mutable_parts, parts_of_partial, tensors_in
from ..tape.watch import is_plain

_MARKED = 4096
"""Limit of the items of a container that are traversed."""


def lies_in(tensor: torch.Tensor, storages: Collection[int]) -> bool:
    """True for a tensor in one of these."""
    if tensor.layout is not torch.strided or is_wrapped(tensor):
        return False
    return storage_id(tensor) in storages


def keyed(container: object) -> list[tuple[object, object]]:
    """(key, item) of the items in a container to which paths lead."""
    if is_a(container, dict):
        return [(in_path(key), item) for key, item in dict.items(container)]
    listed = is_a(container, (list, tuple, deque))
    return list(enumerate(elements(container))) if listed else []


def within(value: object, depth: int = 3) -> Iterator[object]:
    """A value and its items, on each of which a chain may continue."""
    if is_plain(value):
        return
    yield value
    if is_a(value, torch.nn.Module):  # as a list of modules is
        yield from children_of(value).values()
    if depth and is_container(value) and count(value) <= _MARKED:
        for item in values_in(value):
            yield from within(item, depth - 1)


def in_path(key: object) -> object:
    """The key of an item as a step of a path: compared by identity where it is no plain value."""
    return key if is_plain(key) else Same(key)


def is_told_apart(value: object) -> bool:
    """True for a tensor or an array, which may equal another one."""
    return is_a(value, torch.Tensor) or is_buffer(value)


class Lying(NamedTuple):
    """A container, an array or a tensor inside an object."""

    path: tuple[object, ...]
    """The keys that lead to it; none to the object itself."""
    holder: object
    """The container around it, or around a tuple around it; None outside of the object."""
    keys: tuple[object, ...]
    """The keys that lead to it from the holder."""
    value: object


def lying_in(value: object, limit: int = 256) -> Iterator[Lying]:
    """All mutable parts of an object that keys lead to."""
    seen: set[int] = set()
    pending = [Lying((), None, (), value)]
    for _ in range(limit * limit):
        if not pending or len(seen) >= limit:
            return
        path, holder, keys, held = one = pending.pop()
        listed = is_container(held)
        changes = listed and not is_a(held, (tuple, frozenset))
        if changes or is_told_apart(held):
            yield one
        if listed and id(held) not in seen and count(held) <= limit:
            if changes:
                seen.add(id(held))
                holder, keys = held, ()
            pending += [Lying((*path, key), holder, (*keys, key), v) for key, v in keyed(held)]


def containers_within(value: object) -> dict[tuple[object, ...], int]:
    """The identities of containers and arrays that may change, by where they are in an object."""
    found = lying_in(value)
    return {one.path: id(one.value) for one in found if not is_a(one.value, torch.Tensor)}


def tensors_under(
    value: object, before: object, words: str, level: int = 0
) -> Iterator[tuple[str, Path, torch.Tensor, object]]:
    """(words, path, tensor, the earlier look) of the tensors to which keys lead.

    Args:
        before: the earlier look at the container.
        words: the display name of the container.
    """
    for number, (key, item, was) in enumerate(_beside(value, before, level)):
        path: Path = ((By.ITEM, key),)
        text = f"{words}[{f'#{number}' if isinstance(key, Same) else in_words(key)}]"
        if isinstance(item, torch.Tensor):
            yield text, path, item, was
        elif is_container(item):
            inner = tensors_under(item, was, text, level + 1)
            yield from ((text, (*path, *rest), tensor, old) for text, rest, tensor, old in inner)


def moved_in(value: object, before: object, level: int = 0) -> Iterator[object]:
    """The objects in a container, at any depth, that were not in it before.

    Args:
        before: the earlier look at it.
    """
    for _, item, was in _beside(value, before, level):
        if was != look(item):
            yield item
            yield from moved_in(item, was, level + 1)


def _beside(value: object, before: object, level: int) -> Iterator[tuple[object, object, object]]:
    """(key, item, the earlier look) of the items in a container."""
    held = _held_in(before)
    for key, item in keyed(value) if level < DEEPEST else ():
        yield key, item, held.get(_look_at_key(key) if is_a(value, dict) else key)


def _held_in(found: object) -> dict[object, object]:
    """The look at each item that the look at a container holds, by position or key.

    Empty for the look at another kind of object, such as a symbolic number.
    """
    if not isinstance(found, tuple) or not items_in(found):
        return {}
    *keys, items = found[1:]
    return dict(zip(keys[0] if keys else range(len(items)), items, strict=True))


def _look_at_key(key: object) -> Any:
    """The look at a dict key, from its form in a path."""
    return key if isinstance(key, Same) else look(key)


def lay_at(path: Path, before: object, tensor: torch.Tensor) -> bool:
    """True where a tensor was at a path in a container, by the earlier look."""
    for by, key in path:
        held = _held_in(before) if by is By.ITEM and type(key) is not bool else {}
        found = key if key in held else _look_at_key(key)
        if found not in held:
            return False
        before = held[found]
    return bool(before == look(tensor))


def objects_in(value: object) -> dict[int, object]:
    """By identity, the mutable parts of an object, or of the arguments of a call."""
    try:
        return {id(held): held for _, held, _ in mutable_parts(value)}
    except Unfit:
        return {}


def tensors_within(value: object) -> dict[int, torch.Tensor]:
    """The tensors in an object, by identity."""
    try:
        return {id(tensor): tensor for _, tensor in tensors_in(value)}
    except Unfit:
        return {}


def held_by(value: object) -> Iterable[object]:
    """The items of a container; the receiver, arguments and closure that a callable holds."""
    if parts := parts_of_partial(value):
        function, args, keywords = parts
        return [function, *args, *keywords.values()]
    if is_a(value, MethodType):
        return [value.__self__, value.__func__]
    if is_a(value, FunctionType):
        cells = [follow(cell, CONTENT) for cell in value.__closure__ or ()]
        return [*cells, *(value.__defaults__ or ()), *(value.__kwdefaults__ or {}).values()]
    if not is_container(value) or count(value) > _MARKED:
        return []
    return values_in(value)


def containers_in(value: object) -> Iterator[object]:
    """The containers among the arguments of a call, which may hold one another."""
    seen: set[int] = set()
    pending = [value]
    while pending:
        found = pending.pop()
        if isinstance(found, (list, tuple, dict)) and id(found) not in seen:
            seen.add(id(found))
            yield found
            pending.extend(found.values() if isinstance(found, dict) else found)
