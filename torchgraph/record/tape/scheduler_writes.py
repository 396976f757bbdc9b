"""Attributes that schedulers set in a step: the program runs before them, and cannot read them."""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection
from types import FrameType

_WHOLE = object()


class SchedulerWrites:
    """The attributes and items that schedulers have set in one recorded step."""

    def __init__(self) -> None:
        self.give_up: Callable[[str], None] = lambda text: None
        """Called with the name of a value that is read."""
        self._places: dict[tuple[int, object], object] = {}
        self._lines: dict[tuple[int, object], tuple[tuple[int, int], str]] = {}
        """By place, the line that has read it last, as a frame's id and a number, and its name."""

    @property
    def count(self) -> int:
        """The number of places."""
        return len(self._places)

    def note(self, holder: object, keys: Collection[object]) -> None:
        """Note attributes or items of ``holder`` as set.

        A line is looked at before it runs: one that runs yet may read them after this.
        """
        places = [(id(holder), key) for key in (*keys, _WHOLE)]
        self._places.update((place, holder) for place in places)
        read = [self._lines[place] for place in places if place in self._lines]
        running = _running_lines() if read else ()
        for line, text in read:
            if line in running:
                self.give_up(text)

    def read(self, holder: object, text: str, frame: FrameType | None, *key: object) -> None:
        """Give the recording up where the place, or any of ``holder`` without a ``key``, was set.

        Even under a constant schedule: the value is unknown before the call.
        """
        place = (id(holder), key[0] if key else _WHOLE)
        if place in self._places:
            self.give_up(text)
        if frame is not None:
            self._lines[place] = (id(frame), frame.f_lineno), text


def _running_lines() -> Collection[tuple[int, int]]:
    """The lines that run, as a frame's id and a number."""
    frame: FrameType | None = sys._getframe(1)
    found = set()
    while frame is not None:
        found.add((id(frame), frame.f_lineno))
        frame = frame.f_back
    return found
