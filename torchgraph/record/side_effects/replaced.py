"""Containers whose tensors are replaced between calls: ``self.batch = (x, y)``.

Read as a whole, by ``f(*self.batch)`` or ``x, y = self.batch``: each tensor is an argument of the
program, read from its place. The guard on the container is its structure and the tensors' layouts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

import torch

from ...effects.entry_state import is_plain_tensor
from ...guards.aspects import Aspect, Same, is_container, laid_out, look, shown
from ...guards.items import is_plain_throughout
from ...guards.names import Name, Path, follow
from ...structure import Unfit, tensors_in
from ..chains.inside import lies_in, tensors_under
from ..chains.touched import Met, Touched

_MOST = 64
"""Limit of the tensors in one container that become arguments."""


def others_in(name: Name, before: object) -> Iterator[Name]:
    """Names of the places in a container where other plain tensors were before."""
    value = follow(name.owner(), name.path)
    found = list(tensors_under(value, before, name.shown)) if is_container(value) else []
    for words, path, tensor, was in found if len(found) <= _MOST else ():
        known = was() if isinstance(was, Same) else was
        plain = known is None or is_plain_tensor(known)
        if was != look(tensor) and is_plain_tensor(tensor) and plain:
            yield _place(name, words, path, tensor)


def by_place(one: Touched, takes: Callable[[Name], bool], met: Met) -> list[Name]:
    """The guards of a container whose tensors come from their places; none where one does not.

    Args:
        takes: true for a name whose tensor is an argument of the program.
    """
    name, value = one.name, follow(one.name.owner(), one.name.path)
    if not is_container(value) or one.alike is None or one.compared:
        return []
    if is_plain_throughout(value):
        return []
    found = list(tensors_under(value, name.found, name.shown))
    places = [(_place(name, words, path, tensor), tensor) for words, path, tensor, _ in found]
    taken = [tensor for place, tensor in places if takes(place)]
    rest = [(place, tensor) for place, tensor in places if not takes(place)]
    asked = any(id(tensor) in met.compared for _, tensor in places)
    if not taken or asked or len(places) != _count(value):
        return []
    if any(lies_in(tensor, met.storages) for _, tensor in rest):
        return []  # it is an input under another name, which has to be this tensor again
    whole = replace(name, found=one.alike, aspect=Aspect.LIKENESS)
    idle = [replace(p, found=laid_out(t), aspect=Aspect.LAYOUT) for p, t in rest]
    return [whole, *idle]


def _place(name: Name, words: str, path: Path, tensor: torch.Tensor) -> Name:
    where = (*name.path, *path)
    found = replace(name, shown=words, path=where, found=Same(tensor), value=shown(tensor))
    return replace(found, deep=True, aspect=Aspect.CONTENT, moved=False, guarded=True)


def _count(value: object) -> int:
    try:
        return len(tensors_in(value))
    except Unfit:
        return -1
