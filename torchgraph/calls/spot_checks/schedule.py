"""Which calls that programs serve are looked at, and which program of a Graph."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from weakref import WeakKeyDictionary, ref

from ...replay.replay import Replay

MOST = 1_000
"""Calls between two looks, at most: so many less one may be wrong before that is found."""
_NEVER = sys.maxsize


def following(served: int, schedule: str | int) -> int:
    """The first call after ``served`` of them that is looked at.

    ``"doubling"``: the 2nd, 4th, 8th, ... 512th, 1,000th, 2,000th, ...; an int n: every n-th.
    """
    if schedule == "off":
        return _NEVER
    if isinstance(schedule, int):
        return (served // schedule + 1) * schedule
    doubled = max(2, 1 << served.bit_length())
    return doubled if doubled < MOST else (served // MOST + 1) * MOST


class SpotChecks:
    """The looks at the programs of one Graph."""

    def __init__(self, schedule: str | int) -> None:
        self.count = 0
        """Calls that were looked at."""
        self.confirmed = 0
        """Those in which the program gave what eager gave."""
        self.note = ""
        """Why the last one told nothing; empty where it did."""
        self._schedule = schedule
        self.from_hits = 0
        """After so many calls that programs served, the next may be looked at."""
        self._chosen: ref[Replay] | None = None
        """The program that is to be looked at."""
        self._until = 0
        """Then another one is chosen: it may not be called any more."""
        self._spot_check: WeakKeyDictionary[Replay, int] = WeakKeyDictionary()
        self._seen: WeakKeyDictionary[Replay, int] = WeakKeyDictionary()
        """How often each had run when it was looked at."""
        self._ran: WeakKeyDictionary[Replay, int] = WeakKeyDictionary()
        """How often each had run at the last look."""
        self.follow(schedule, 0)

    def follow(self, schedule: str | int, hits: int) -> None:
        """Go by another schedule from now on. ``hits``: calls that programs have served."""
        self._schedule = schedule
        self._chosen = None
        self.from_hits = following(hits, schedule) - 1

    def wants(self, replay: Replay, programs: Iterable[Replay], hits: int) -> bool:
        """True where the call that begins, by ``replay``, is one to look at."""
        chosen = None if self._chosen is None else self._chosen()
        if chosen is None or hits >= self._until:
            chosen = self._least(replay, programs)
            self._chosen, self._until = ref(chosen), following(hits + 1, self._schedule) - 1
        return chosen is replay

    def _least(self, replay: Replay, programs: Iterable[Replay]) -> Replay:
        """That which was looked at least, of those which have served since the last look."""
        alive = [one for one in programs if one is replay or one.runs > self._ran.get(one, 0)]
        return min(alive, key=lambda one: (self._spot_check.get(one, 0), one is not replay))

    def made(self, replay: Replay, programs: Iterable[Replay], hits: int) -> None:
        """A call of ``replay`` was looked at."""
        self.count += 1
        self._spot_check[replay] = self._spot_check.get(replay, 0) + 1
        self._seen[replay] = replay.runs
        self._ran = WeakKeyDictionary({one: one.runs for one in programs})
        self.follow(self._schedule, hits)

    def put_off(self, hits: int) -> None:
        """The call that begins is not looked at, but one as much later."""
        self.follow(self._schedule, hits + 1)

    def since(self, replay: Replay) -> int:
        """Calls that a program has served since it was looked at, or confirmed."""
        return replay.runs - self._seen.get(replay, 0)
