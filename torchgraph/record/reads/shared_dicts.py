"""Objects that share one ``__dict__``, as singletons do: what one of them writes, all of them read.

``self.__dict__ = cls._shared_state`` in a constructor makes them.
"""

from __future__ import annotations

from collections.abc import Iterator

from ...guards.aspects import Aspect, Same, own, shown
from ...guards.names import By, Name, Path

_DICT: Path = ((By.SLOT, "__dict__"),)


class SharedDicts:
    """The objects of each ``__dict__`` that one recording meets; names begin at the first."""

    def __init__(self) -> None:
        self._met: dict[int, tuple[object, dict[int, object]]] = {}
        """By the identity of a dict: the dict, and the objects by their identities."""

    def first(self, owner: object) -> object:
        """The object whose attributes those of ``owner`` are."""
        attributes = own(owner)
        if type(attributes) is not dict:
            return owner
        _, objects = self._met.setdefault(id(attributes), (attributes, {}))
        objects.setdefault(id(owner), owner)
        return next(iter(objects.values()))

    def names(self) -> Iterator[Name]:
        """That they share it: each of several objects has the dict that it had."""
        for attributes, objects in self._met.values():
            for owner in objects.values() if len(objects) > 1 else ():
                text = f"the __dict__ of {type(owner).__name__}"
                found = Same(attributes), shown(attributes)
                yield Name(text, Same(owner), _DICT, False, *found, None, aspect=Aspect.IDENTITY)

    def clear(self) -> None:
        """Hold no object of the user's."""
        self._met.clear()
