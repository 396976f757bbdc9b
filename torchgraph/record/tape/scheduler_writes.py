"""Attributes that schedulers set in a step: the program runs before them, and cannot read them."""

from __future__ import annotations

from collections.abc import Callable, Collection

_WHOLE = object()


class SchedulerWrites:
    """The attributes and items that schedulers have set in one recorded step."""

    def __init__(self) -> None:
        self.give_up: Callable[[str], None] = lambda text: None
        """Called with the name of a value that is read."""
        self._places: dict[tuple[int, object], object] = {}

    @property
    def count(self) -> int:
        """The number of places."""
        return len(self._places)

    def note(self, holder: object, keys: Collection[object]) -> None:
        """Note attributes or items of ``holder`` as set."""
        self._places.update(((id(holder), key), holder) for key in (*keys, _WHOLE))

    def read(self, holder: object, text: str, *key: object) -> None:
        """Give the recording up where the place, or any of ``holder`` without a ``key``, was set.

        Even under a constant schedule: the value is unknown before the call.
        """
        if (id(holder), *(key or (_WHOLE,))) in self._places:
            self.give_up(text)
