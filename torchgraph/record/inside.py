"""What is in containers: the items that names may lead to."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import Any

import torch

from .._functorch import is_wrapped
from .._torch import storage_id
from ..guards.looks import DEEPEST, Same, count, elements, is_container, look
from ..guards.names import By, Path
from ..structure import Unfit, mutable_parts
from .watch import is_plain


def lies_in(tensor: torch.Tensor, storages: set[int]) -> bool:
    """True for a tensor in one of these."""
    if tensor.layout is not torch.strided or is_wrapped(tensor):
        return False
    return storage_id(tensor) in storages


def keyed(container: Any) -> list[tuple[Any, Any]]:
    """(key, item) of what a path leads to in a container."""
    if isinstance(container, dict):
        return [(in_path(key), item) for key, item in dict.items(container)]
    listed = isinstance(container, (list, tuple, deque))
    return list(enumerate(elements(container))) if listed else []


def in_path(key: Any) -> Any:
    """The key of an item as a step of a path: compared by identity where it is no plain value."""
    return key if is_plain(key) else Same(key)


def containers_within(value: Any, limit: int = 256) -> dict[tuple[Any, ...], int]:
    """The identities of an object's containers that may change, by where they are in it."""
    found: dict[tuple[Any, ...], int] = {}
    pending: list[tuple[tuple[Any, ...], Any]] = [((), value)]
    while pending and len(found) < limit:
        path, held = pending.pop()
        if not is_container(held) or id(held) in found.values():
            continue
        if not isinstance(held, (tuple, frozenset)):
            found[path] = id(held)
        if count(held) <= limit:
            pending += [((*path, key), item) for key, item in keyed(held)]
    return found


def unmoved_tensors(
    value: Any, before: Any, words: str, level: int = 0
) -> Iterator[tuple[str, Path, torch.Tensor]]:
    """The tensors in a container, and in those in it, that lay there before, with their places.

    Args:
        before: the look at it then.
        words: what it is called.
    """
    held = _held_in(before)
    for number, (key, item) in enumerate(keyed(value) if level < DEEPEST else ()):
        was = held.get(_look_at_key(key) if isinstance(value, dict) else key)
        path: Path = ((By.ITEM, key),)
        text = f"{words}[{f'#{number}' if isinstance(key, Same) else repr(key)}]"
        if isinstance(item, torch.Tensor) and was == look(item):
            yield text, path, item
        elif is_container(item):
            inner = unmoved_tensors(item, was, text, level + 1)
            yield from ((text, (*path, *rest), tensor) for text, rest, tensor in inner)


def _held_in(found: Any) -> dict[Any, Any]:
    """What the look at a container says of each item in it, by position or by the look at a key."""
    if not isinstance(found, tuple) or not isinstance(found[1], tuple):
        return {}
    *keys, items = found[1:]
    return dict(zip(keys[0] if keys else range(len(items)), items, strict=True))


def _look_at_key(key: Any) -> Any:
    """The look at the key of a dict, from what stands for it in a path."""
    return key if isinstance(key, Same) else look(key)


def lay_at(path: Path, before: Any, tensor: torch.Tensor) -> bool:
    """True for a tensor that lay there in a container, as that was before."""
    for by, key in path:
        if by is not By.ITEM or not isinstance(before, tuple) or not isinstance(before[1], tuple):
            return False
        *keys, items = before[1:]
        found = _look_at_key(key) if keys else key
        places = keys[0] if keys else range(len(items))
        if type(key) is bool or found not in places:
            return False
        before = items[places.index(found)]
    return bool(before == look(tensor))


def has_more_than_tensors(container: Any) -> bool:
    """False for a container of tensors alone."""
    items = dict.values(container) if isinstance(container, dict) else container
    return not all(isinstance(item, torch.Tensor) for item in items)


def objects_in(value: Any) -> set[int]:
    """The identities of what is among the arguments of a call and may change."""
    try:
        return {id(held) for _, held, _ in mutable_parts(value)}
    except Unfit:
        return set()


def containers_in(value: Any) -> Iterator[Any]:
    """The containers among the arguments of a call, which may hold one another."""
    seen: set[int] = set()
    pending = [value]
    while pending:
        found = pending.pop()
        if isinstance(found, (list, tuple, dict)) and id(found) not in seen:
            seen.add(id(found))
            yield found
            pending.extend(found.values() if isinstance(found, dict) else found)
