"""What can be asked again before each call, as a guard; the line of the user's that asks.

A step that goes by such an answer holds for this answer alone. A question stands in the guards as a
`Name` does that leads to a place: it begins at the question, and leads to its answer.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Hashable
from weakref import WeakValueDictionary

from ...errors import SourceLine, user_frames
from ...guards.names import By, Path
from ..chains.resolve import is_library_file

ANSWER: Path = ((By.SLOT, "answer"),)
"""The path from a question to its answer."""
_DEPTH = 12


class Question:
    """One thing that can be asked at any time; asking changes nothing.

    Args:
        ask: gives the answer: plain values, or containers of them.
    """

    __slots__ = ("__weakref__", "_ask")

    def __init__(self, ask: Callable[[], object]) -> None:
        self._ask = ask

    @property
    def answer(self) -> object:
        """What it is at this moment."""
        return self._ask()


_asked: WeakValueDictionary[Hashable, Question] = WeakValueDictionary()


def question(key: Hashable, ask: Callable[[], object]) -> Question:
    """The question of this key: one and the same as long as somebody holds it."""
    found = _asked.get(key)
    if found is None:
        found = _asked[key] = Question(ask)
    return found


def line() -> SourceLine | None:
    """The innermost line that runs now and is of no library, Python's own included."""
    found = user_frames(_DEPTH, sys._getframe(1))
    return next((one for one in found if not is_library_file(one.filename)), None)
