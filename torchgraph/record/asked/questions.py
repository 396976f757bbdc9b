"""What can be asked again before each call: a setting of the process, the state of a generator.

A step that goes by such an answer holds for this answer alone. A question stands in the guards as a
`Name` does that leads to a place: it begins at the question, and leads to its answer.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any
from weakref import WeakValueDictionary

from ...errors import SourceLine
from ...guards import Name
from ...guards.looks import look
from ...guards.names import By

_ANSWER = ((By.SLOT, "answer"),)


class Question:
    """One thing that can be asked at any time; asking changes nothing.

    Args:
        words: what is asked, as users call it.
        ask: gives the answer: plain values, or containers of them.
    """

    __slots__ = ("__weakref__", "_ask", "words")

    def __init__(self, words: str, ask: Callable[[], object]) -> None:
        self.words, self._ask = words, ask

    @property
    def answer(self) -> object:
        """What it is at this moment."""
        return self._ask()

    def look(self) -> object:
        """The answer, to be compared."""
        return look(self._ask())

    def name(self, found: object, value: str, where: SourceLine | None) -> Name:
        """The guard that asks again.

        Args:
            found: the `look` at the answer that the step went by.
            value: that answer, in words.
            where: the user's line that asked.
        """
        return Name(self.words, lambda: self, _ANSWER, True, found, value, where)


_asked: WeakValueDictionary[Hashable, Question] = WeakValueDictionary()


def question(key: Hashable, words: str, ask: Callable[[], Any]) -> Question:
    """The question of this key: one and the same as long as somebody holds it."""
    found = _asked.get(key)
    if found is None:
        found = _asked[key] = Question(words, ask)
    return found
