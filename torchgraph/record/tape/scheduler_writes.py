"""What schedulers have set in the step: a program runs before they do, and cannot read it."""

from __future__ import annotations

from collections.abc import Callable, Collection

_WHOLE = object()


class SchedulerWrites:
    """The attributes and items that schedulers have set in one recorded step."""

    def __init__(self) -> None:
        self.give_up: Callable[[str], None] = lambda text: None
        """Called with what is read."""
        self._places: dict[tuple[int, object], object] = {}

    @property
    def count(self) -> int:
        """How many places that is."""
        return len(self._places)

    def note(self, holder: object, keys: Collection[object]) -> None:
        """These attributes or items of ``holder`` have been set."""
        self._places.update(((id(holder), key), holder) for key in (*keys, _WHOLE))

    def read(self, holder: object, text: str, *key: object) -> None:
        """Something is read there; all of it without a ``key``: if it was set, no program follows.

        A constant schedule too: nobody knows before the call what it will set.
        """
        if (id(holder), *(key or (_WHOLE,))) in self._places:
            self.give_up(text)
