"""Objects that share one ``__dict__``, as Borg singletons do: a write to one is read from all.

``self.__dict__ = cls._shared_state`` in a constructor makes them.
"""

from __future__ import annotations

from collections.abc import Iterator

from ...guards.aspects import Aspect, Same, own, shown
from ...guards.names import By, Name, Path

_DICT: Path = ((By.SLOT, "__dict__"),)


class SharedDicts:
    """The objects by shared ``__dict__`` in one recording; names begin at the first object."""

    def __init__(self) -> None:
        self._met: dict[int, tuple[object, dict[int, object]]] = {}
        """By the identity of a dict: the dict, and its objects by their identities."""

    def first(self, owner: object) -> object:
        """The first object with the ``__dict__`` of ``owner``."""
        attributes = own(owner)
        if type(attributes) is not dict:
            return owner
        _, objects = self._met.setdefault(id(attributes), (attributes, {}))
        objects.setdefault(id(owner), owner)
        return next(iter(objects.values()))

    def names(self) -> Iterator[Name]:
        """Identity guards on shared dicts."""
        for attributes, objects in self._met.values():
            for owner in objects.values() if len(objects) > 1 else ():
                text = f"the __dict__ of {type(owner).__name__}"
                found = Same(attributes), shown(attributes)
                yield Name(text, Same(owner), _DICT, False, *found, None, aspect=Aspect.IDENTITY)

    def clear(self) -> None:
        """Drop all references to user objects."""
        self._met.clear()
