"""Places in the nested dicts, lists and tuples of optimizers, and writes to them.

Dicts and lists are written where they are: whoever else holds one sees the same values.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from typing import Any

import torch

from .._torch.listening import not_listening
from ..guards.aspects import elements, item_of, own, values_in
from ..objects import is_a

Path = tuple[Any, ...]
"""Keys from a root container to a value: ``("betas", 0)``."""


def innermost(root: Any, path: Path) -> tuple[Any, Any]:
    """The innermost container around a place that is no tuple, and the key in it.

    Raises:
        KeyError, IndexError, TypeError: the place is gone.
    """
    holder, key, found = root, path[0], root
    for before, inner in itertools.pairwise(path):
        found = item_of(found, before)
        if not is_a(found, tuple):
            holder, key = found, inner
    return holder, key


def value_at(root: Any, path: Path, gone: Any = None) -> Any:
    """The value at ``path``; ``gone`` where the place is."""
    found = root
    try:
        for key in path:
            found = item_of(found, key)
    except (KeyError, IndexError, TypeError, ValueError):
        return gone
    return found


def assign(root: Any, path: Path, value: object) -> None:
    """Set the value at ``path`` below a dict; tuples around it are made anew."""
    around = [root]
    for key in path[:-1]:
        around.append(item_of(around[-1], key))
    for holder, key in zip(reversed(around), reversed(path), strict=True):
        if not is_a(holder, tuple):
            set_item(holder, key, value)
            return
        held = elements(holder)
        value = with_items(holder, [*held[:key], value, *held[key + 1 :]])


def set_item(holder: Any, key: Any, value: object) -> None:
    """Set an item of a container, without the code of a user's subclass."""
    if is_a(holder, dict):
        dict.__setitem__(holder, key, value)
    elif isinstance(holder, list):
        list.__setitem__(holder, key, value)
    else:
        holder[key] = value


def with_items(like: tuple[Any, ...], items: list[Any]) -> tuple[Any, ...]:
    """A tuple of the same class and with the same attributes, but these items."""
    if type(like) is tuple:
        return tuple(items)
    made: tuple[Any, ...] = tuple.__new__(type(like), items)
    own(made).update(own(like))
    return made


def containers(optimizers: Iterable[torch.optim.Optimizer]) -> Iterator[Any]:
    """The states and param groups of optimizers, and all dicts, lists and tuples in them, once."""
    with not_listening():  # of a wrapper they are properties, which run its code
        pending: list[Any] = [held for one in optimizers for held in (one.state, one.param_groups)]
    seen: set[int] = set()
    while pending:
        holder = pending.pop()
        if id(holder) in seen:
            continue
        seen.add(id(holder))
        yield holder
        pending += [item for item in values_in(holder) if is_a(item, (dict, list, tuple))]
