"""Synchronization of ranks before they act, in which each shows a number, or a text, to all.

On one host over shared memory, else over the store of the process group, and not by a collective: a
wait ends when a rank is lost, nothing is left pending that an exit would wait for, and no GPU is
waited for. In the store one addition tells the last rank to come how many came and whether they say
the same; it tells the others.
"""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from weakref import WeakKeyDictionary

import torch.distributed as dist

from ..._torch.distributed.process_groups import Store
from ..errors import RankAbsent
from .presence import Presence, own_store
from .shared_memory import SharedSlots, created, opened

_COUNT = 16
"""Bits of a sum that count the ranks; above are their numbers."""
_BITS = 30
_AT_ONCE = timedelta(seconds=2)
"""How long a wait goes on without looking who is there."""
_LOOK = 0.05
"""Seconds between two looks after that."""
_SAME, _DIFFERENT = "1", "0"


class Exchange:
    """Synchronization points of some ranks, one after the other; each rank comes to all of them.

    Args:
        ranks: who meets, ascending; ``presence.rank`` is one of them.
    """

    def __init__(self, presence: Presence, ranks: Sequence[int]) -> None:
        self.presence, self.ranks = presence, tuple(ranks)
        self.meetings = 0
        """How many there were."""
        self.about = "a meeting"
        """What this rank is about to do, for those that wait."""
        name = "all" if len(ranks) == presence.world else "-".join(map(str, ranks))
        self._store = own_store(f"exchange/{name}")
        self._lock = threading.Lock()
        self._slots: SharedSlots | None = None
        self._tried = False

    def same(self, number: int, seconds: float) -> bool:
        """True when all ranks come with this number; waits until all have come.

        Raises:
            RankLost: one is gone.
            RankAbsent: one has not come in ``seconds``, though it does nothing that takes long.
        """
        if not self._tried:
            self._tried = True
            self._share_memory(seconds)
        with self._lock:
            self.meetings += 1
            try:
                return self._meet(number & (1 << _BITS) - 1, seconds)
            except dist.DistError as error:
                self.presence.explain(error)
                raise

    def _share_memory(self, seconds: float) -> None:
        """Use shared memory from now on, if all ranks are on one host and can open the file."""
        texts = self.gather(self.presence.member.host, seconds)
        count, place = len(self.ranks), self.ranks.index(self.presence.rank)
        if len(set(texts)) > 1 or not hasattr(os, "sched_yield"):
            return
        file, path = created(count) if place == 0 else (None, "")
        path = self.gather(path, seconds)[0]
        if place:
            file = opened(path, count)
        found = self.same(0 if file is None else 1, seconds)
        if place == 0:
            os.unlink(path)
        if file is not None:
            if found:
                self._slots = SharedSlots(file, count, place)
            os.close(file)

    def _meet(self, number: int, seconds: float) -> bool:
        if self._slots is not None:
            return self._meet_at(self._slots, number, seconds)
        store, key, met = self._store, "sum", f"met/{self.meetings}"
        count = len(self.ranks)
        total = store.add(key, number << _COUNT | 1)
        if total & (1 << _COUNT) - 1 == count:
            same = bool(total >> _COUNT == number * count)
            store.set(key, "0")
            store.set(met, _SAME if same else _DIFFERENT)
            store.delete_key(f"met/{self.meetings - 1}")  # all are past it
            return same
        self._wait([met], seconds)
        return bool(store.get(met).decode() == _SAME)

    def _meet_at(self, slots: SharedSlots, number: int, seconds: float) -> bool:
        slots.show(self.meetings, number)
        found = slots.same(self.meetings, min(_AT_ONCE.total_seconds(), seconds))
        if found is None:
            self._wait_for(lambda: slots.same(self.meetings, 0.0) is not None, seconds)
            found = slots.same(self.meetings, 0.0)
        return bool(found)

    def gather(self, text: str, seconds: float) -> list[str]:
        """The texts of all ranks, in the order of `ranks`. Raises what `same` does."""
        self.same(0, seconds)  # so that all are past the texts of the gathering before
        with self._lock:
            me = self.presence.rank
            self._store.set(f"text/{me}/{self.meetings}", text)
            self._store.delete_key(f"text/{me}/{self._gathered}")
            self._gathered = self.meetings
            keys = [f"text/{rank}/{self.meetings}" for rank in self.ranks]
            try:
                self._wait(keys, seconds)
                return [self._store.get(key).decode() for key in keys]
            except dist.DistError as error:
                self.presence.explain(error)
                raise

    _gathered = 0
    """The meeting of the last gathering."""

    def _wait(self, keys: list[str], seconds: float) -> None:
        store = self._store
        try:
            store.wait(keys, min(_AT_ONCE, timedelta(seconds=seconds)))
        except RuntimeError as error:
            if isinstance(error, dist.DistNetworkError):
                raise
        else:
            return
        self._wait_for(lambda: store.check(keys), seconds)

    def _wait_for(self, holds: Callable[[], bool], seconds: float) -> None:
        """Wait until ``holds``, at most ``seconds`` since it began, and watch for lost ranks."""
        store, begun = self._store, time.monotonic() - _AT_ONCE.total_seconds()
        told = f"waits/{self.meetings}/{self.presence.rank}"
        store.set(told, self.about)
        limit = begun + seconds
        while not holds():
            self.presence.raise_if_lost()
            time.sleep(_LOOK)
            if time.monotonic() > limit or self.presence.left:
                limit = self._longer(begun, seconds)
        store.delete_key(told)

    def _longer(self, begun: float, seconds: float) -> float:
        """The new deadline of a wait whose deadline has passed.

        Raises:
            RankAbsent: it has no end.
        """
        now, presence = time.monotonic(), self.presence
        waits = f"waits/{self.meetings}"
        absent = [rank for rank in self.ranks if not self._store.check([f"{waits}/{rank}"])]
        left = {rank: presence.left[rank] for rank in absent if rank in presence.left}
        if not left and now < begun + seconds:
            return begun + seconds
        busy = all(presence.busy_at(self._presence_store, rank) for rank in absent)
        if busy and not left:  # nobody is absent, or they do what takes long
            return now + _AT_ONCE.total_seconds()
        raise self._absent(absent, left, now - begun)

    _other: Store | None = None

    @property
    def _presence_store(self) -> Store:
        if self._other is None:
            self._other = own_store("presence")
        return self._other

    def _absent(self, absent: list[int], left: dict[int, str], waited: float) -> RankAbsent:
        names = ", ".join(map(str, absent))
        which = f"Rank {names} has" if len(absent) == 1 else f"Ranks {names} have"
        why = "".join(f" Of rank {rank}: {what}." for rank, what in sorted(left.items()))
        return RankAbsent(
            f"{which} not come to {self.about}, for which the others have waited "
            f"{waited:.0f} s.{why}"
        )


def all_reached(presence: Presence, what: str, groups: set[int], seconds: float) -> tuple[int, ...]:
    """The ranks connected to this one by groups, directly or over groups of other ranks.

    Args:
        what: it is done in the groups, in words that are the same on all of them.
        groups: the ranks of the groups of this rank.

    Raises:
        RankAbsent: one of them says nothing.
    """
    store, world = own_store(f"reached/{what}"), set(range(presence.world))
    own = (groups or world) | {presence.rank}
    store.set(str(presence.rank), json.dumps(sorted(own)))
    found, asked = set(own), {presence.rank}
    while found != world and (ask := sorted(found - asked)):
        try:
            store.wait([str(rank) for rank in ask], timedelta(seconds=seconds))
        except RuntimeError as error:
            presence.explain(error)
            silent = [str(rank) for rank in ask if not store.check([str(rank)])]
            raise RankAbsent(
                f"Rank {', '.join(silent)} has not said in {seconds:.0f} s whom it meets in {what}."
            ) from error
        for rank in ask:
            found.update(json.loads(store.get(str(rank))))
        asked.update(ask)
    return tuple(sorted(found))


_exchanges: WeakKeyDictionary[Presence, dict[tuple[int, ...], Exchange]] = WeakKeyDictionary()


def exchange_of(presence: Presence, ranks: Sequence[int]) -> Exchange:
    """The `Exchange` of some ranks, this one among them; the same object for the same ranks."""
    held = _exchanges.setdefault(presence, {})
    key = tuple(ranks)
    if key not in held:
        held[key] = Exchange(presence, key)
    return held[key]
