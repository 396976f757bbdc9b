"""The schedule of spot checks: at which calls, and of which program of a Graph."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from weakref import WeakKeyDictionary, ref

from ...replay.replay import Replay

MOST = 1_000
"""Calls from one that is due to be checked to the next, at most."""
FEW_FROM = 0.01
"""Seconds of a step from which on few of the first calls are checked, as where compiled code serves
them. A check takes as long as four long calls of the `aten` program; of compiled code, beside which
it runs op by op, as 12 (a GPT of 20 ms) or 100 (an MLP of 0.2 ms). The seconds are those that
`lower.cost` predicts. What a clock says must not count: a checked call of compiled code has eager's
rounding, and two runs of a script have to give the same numbers."""
RARE_BELOW = 0.05
"""Seconds of a step, likewise, below which few of the later calls by compiled code are checked."""
_FEW = frozenset({32, 128, 512})
"""The calls before `MOST` that are checked where few of the first are."""
_RARE = 8
"""Where few of the later calls are: of those that are due the 1st, 2nd, 4th and every 8th."""
_NEVER = sys.maxsize


def following(served: int, schedule: str | int) -> int:
    """The number of the next call to check, after ``served`` calls.

    ``"doubling"``: the 2nd, 4th, 8th, ... 512th, 1,000th, 2,000th, ...; an int n: every n-th.
    Of some programs they are fewer: see `SpotChecks.leaves_out`.
    """
    if schedule == "off":
        return _NEVER
    if isinstance(schedule, int):
        return (served // schedule + 1) * schedule
    doubled = max(2, 1 << served.bit_length())
    return doubled if doubled < MOST else (served // MOST + 1) * MOST


class SpotChecks:
    """The spot checks of the programs of one Graph."""

    def __init__(self, schedule: str | int) -> None:
        self.count = 0
        """Calls that were checked."""
        self.confirmed = 0
        """Checks in which the program and eager agreed."""
        self.note = ""
        """Why the last check was inconclusive; empty where it was not."""
        self._schedule = schedule
        self.from_hits = 0
        """Number of served calls after which the next check is due."""
        self._chosen: ref[Replay] | None = None
        """The program to check next."""
        self._until = 0
        """Number of served calls at which another program is chosen: the chosen one may be idle."""
        self._checks: WeakKeyDictionary[Replay, int] = WeakKeyDictionary()
        """Checks of each program."""
        self._seen: WeakKeyDictionary[Replay, int] = WeakKeyDictionary()
        """Runs of each program up to its own last check."""
        self._ran: WeakKeyDictionary[Replay, int] = WeakKeyDictionary()
        """Runs of each program up to the last check of any."""
        self.follow(schedule, 0)

    def follow(self, schedule: str | int, hits: int) -> None:
        """Set the schedule from now on. ``hits``: calls that programs have served."""
        self._schedule = schedule
        self._chosen = None
        self.from_hits = following(hits, schedule) - 1

    def wants(
        self,
        replay: Replay,
        programs: Iterable[Replay],
        hits: int,
        leaves_out: Callable[[Replay], bool],
    ) -> bool:
        """True where the call that begins, which ``replay`` would serve, is to be checked.

        Where all programs are left out, the check is put off.

        Args:
            leaves_out: true for programs that are not checked at this number of calls.
        """
        chosen = None if self._chosen is None else self._chosen()
        if chosen is None or hits >= self._until:
            chosen = self._least(replay, programs, leaves_out)
            if chosen is None:
                self.put_off(hits)
                return False
            self._chosen, self._until = ref(chosen), following(hits + 1, self._schedule) - 1
        return chosen is replay

    def _least(
        self, replay: Replay, programs: Iterable[Replay], leaves_out: Callable[[Replay], bool]
    ) -> Replay | None:
        """The program with the fewest checks, of those that ran since the last check."""
        alive = [one for one in programs if one is replay or one.runs > self._ran.get(one, 0)]
        due = [one for one in alive if not leaves_out(one)]
        return min(due, key=lambda one: (self._checks.get(one, 0), one is not replay), default=None)

    def made(self, replay: Replay, programs: Iterable[Replay], hits: int) -> None:
        """Note that a call of ``replay`` was checked."""
        self.count += 1
        self._checks[replay] = self._checks.get(replay, 0) + 1
        self._seen[replay] = replay.runs
        self._ran = WeakKeyDictionary({one: one.runs for one in programs})
        self.follow(self._schedule, hits)

    def leaves_out(self, *, few: bool, rare: bool) -> bool:
        """True for a program whose check is not made now: few of the first, or later ones, are."""
        number = self.from_hits + 1  # it may be due for some calls, until its program is called
        if self._schedule != "doubling":
            return False
        if number < MOST:
            return few and number not in _FEW
        due = number // MOST
        return rare and due % _RARE != 0 and (due > _RARE or due.bit_count() != 1)

    def put_off(self, hits: int) -> None:
        """Do not check the call that begins; count the interval from it."""
        self.follow(self._schedule, hits + 1)

    def since(self, replay: Replay) -> int:
        """Calls that a program has served since its last check, or its confirmation."""
        return replay.runs - self._seen.get(replay, 0)
