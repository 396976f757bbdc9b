"""Liveness of ranks: each registers its process, and a thread notices when one of them ends.

A process of this host is seen to end at once, and told to the others by the store of the process
group. Of each other host one rank says every second that it is there.
"""

from __future__ import annotations

import atexit
import faulthandler
import json
import os
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from typing import Any

import torch.distributed as dist

from ... import environment
from ..._torch.distributed import process_groups
from ..._torch.distributed.process_groups import Store
from ..errors import EXIT_CODE, RankLost
from .members import Deaths, Member

_TICK = 0.5
"""Seconds between two looks at the store."""
_SOON, _BEGINS = 0.05, 10.0
"""The same before all ranks are known, and for how long."""
_BEAT_LIMIT = 10.0
"""Seconds without a sign of a host before its ranks count as lost."""
_GRACE = 15.0
"""Seconds that a call may go on after a rank was lost, before the process ends."""
_FINDING = 3.0
"""Seconds that an error waits for the news that explains it."""


class Presence:
    """Liveness of all ranks as seen by this one, until the end of the process group.

    Args:
        store: of the process group.
        member: where this rank runs.
    """

    def __init__(self, store: Store, rank: int, world: int, member: Member) -> None:
        self.rank, self.world, self.member = rank, world, member
        self.members: dict[int, Member] = {rank: member}
        self.lost: dict[int, str] = {}
        """rank -> what became of it; those that are gone and have not left."""
        self.left: dict[int, str] = {}
        """Those that have left the process group."""
        self.busy = ""
        """What this rank does that takes long and waits for nobody."""
        self._store = store
        self._inside = 0
        self._since = 0.0
        """When it was inside for the first time after a loss."""
        self._ended = False
        self._stop = threading.Event()
        self._begun = time.monotonic()
        self._deaths = Deaths()
        self._beats: dict[str, tuple[bytes, float]] = {}
        self._read = 0
        """Entries of the common list of losses that were read."""
        self._told_busy = ""
        self._news = threading.Condition()
        self._store_is_gone = False
        self._store.set_timeout(timedelta(seconds=5))
        self._store.set(f"member/{rank}", member.text())
        self._thread = threading.Thread(target=self._watch, name="torchgraph ranks", daemon=True)
        self._thread.start()
        atexit.register(self._exits)

    # --- what the step asks -----------------------------------------------------------------------

    @contextmanager
    def inside(self) -> Iterator[None]:
        """Mark the block as waiting for other ranks: if one is lost, the process ends in time."""
        self._inside += 1
        try:
            yield
        finally:
            self._inside -= 1
            self._since = 0.0

    @contextmanager
    def takes_long(self, what: str) -> Iterator[None]:
        """Let other ranks wait longer for this one while the block runs."""
        before, self.busy = self.busy, what
        try:
            yield
        finally:
            self.busy = before

    def busy_at(self, store: Store, rank: int) -> str:
        """The long task of another rank, empty for none; ``store``: a connection of the caller."""
        key = f"busy/{rank}"
        return store.get(key).decode() if store.check([key]) else ""

    def raise_if_lost(self, error: BaseException | None = None) -> None:
        """Raise RankLost where a rank is lost."""
        if self.lost:
            raise RankLost(_words(self.lost)) from error

    def explain(self, error: Exception) -> None:
        """Raise RankLost where a lost rank explains ``error``; waits until a loss is known."""
        if isinstance(error, RankLost):
            return
        self.raise_if_lost(error)
        if not _is_of_communication(error):
            return
        deadline = time.monotonic() + self._patience
        self._deaths.wake()
        with self._news:
            while not (self.lost or self.left) and time.monotonic() < deadline:
                self._news.wait(0.1)
        self.raise_if_lost(error)
        unseen = sorted(set(range(self.world)) - set(self.members))
        gone = dict.fromkeys(unseen, "it has ended before its first calls of a Graph")
        gone = gone or dict(self.left)
        if not gone and self._store_is_gone:
            gone = {0: "the store of the process group, which it holds, is gone"}
        if gone:
            raise RankLost(_words(gone)) from error

    @property
    def _patience(self) -> float:
        """Seconds until a loss is known: longer for other hosts, which are seen by heartbeats."""
        far = any(member.host != self.member.host for member in self.members.values())
        return _FINDING + (_BEAT_LIMIT if far else 0.0)

    # --- the end ----------------------------------------------------------------------------------

    def leave(self, how: str) -> None:
        """Announce that this rank leaves, so that no other takes it for lost."""
        if self._ended or os.getpid() != self.member.pid:  # a forked child is no rank
            return
        self._ended = True
        self.member.close()
        with suppress(Exception):  # the store may be gone: then nobody asks
            if not self._store_is_gone:
                self._store.set(f"left/{self.rank}", how)

    def stop(self) -> None:
        """End the thread: Python must not exit while a daemon thread runs C++ code."""
        atexit.unregister(self._exits)
        self._ended = True
        self._stop.set()
        self._deaths.wake()
        self._thread.join(5)

    def _exits(self) -> None:
        if os.getpid() != self.member.pid:
            return
        self.leave("its process has ended")
        self.stop()
        if self.lost:
            # What waits for a lost rank in C++ is waited for, as the process group is taken down.
            faulthandler.dump_traceback_later(_GRACE, exit=True)

    # --- the thread -------------------------------------------------------------------------------

    def _watch(self) -> None:
        while not self._stop.is_set() and (not self._ended or self.lost):
            begins = len(self.members) < self.world and time.monotonic() - self._begun < _BEGINS
            ended = self._deaths.wait(_SOON if begins else _TICK)
            if self._stop.is_set():
                return
            self._meet_the_dead(ended)
            if not self._store_is_gone:
                try:
                    self._look_at_the_store()
                except dist.DistNetworkError:
                    self._store_is_gone = True
                except Exception:  # too slow, or cleared away: what happens on this host is seen
                    pass
            self._insist()

    def _meet_the_dead(self, ended: list[int]) -> None:
        for rank, member in list(self._deaths.watched.items()):
            if rank not in self.left and member.has_left:
                self._take_note(self.left, rank, "it has left the process group")
        for rank in ended:
            if rank in self.left:
                continue
            self.members[rank].close()
            self._take_note(self.lost, rank, f"{self.members[rank]} has ended")
            with suppress(Exception):  # it held the store
                self._tell_loss(rank)
        holder = 0 in self.left or 0 in self.lost
        self._store_is_gone |= holder and not environment.torchrun_holds_the_store()

    def _look_at_the_store(self) -> None:
        if len(self.members) < self.world:
            self._meet_members()
        self._read_losses()
        if self.busy != self._told_busy:
            self._told_busy = self.busy
            self._store.set(f"busy/{self.rank}", self._told_busy)
        self._beat()

    def _meet_members(self) -> None:
        unknown = [rank for rank in range(self.world) if rank not in self.members]
        for rank in unknown:
            if self._store.check([f"member/{rank}"]):
                member = Member.parse(self._store.get(f"member/{rank}"))
                self.members[rank] = member
                if member.host == self.member.host:
                    self._deaths.watch(rank, member)

    def _tell_loss(self, rank: int) -> None:
        if self._store_is_gone:
            return
        number = self._store.add("losses", 1)
        self._store.set(f"loss/{number}", json.dumps([rank, self.lost[rank]]))

    def _read_losses(self) -> None:
        for number in range(self._read + 1, self._store.add("losses", 0) + 1):
            rank, what = json.loads(self._store.get(f"loss/{number}"))
            self._read = number
            if rank != self.rank and rank not in self.lost:
                self._take_note(self.lost, rank, what)

    def _take_note(self, where: dict[int, str], rank: int, what: str) -> None:
        with self._news:
            where[rank] = what
            self._news.notify_all()
        if where is self.lost and not self._ended:
            _say(_words({rank: what}))

    def _beat(self) -> None:
        """Send the heartbeat of this host, if this is its lowest rank, and check all others."""
        own = self.member.host
        here = [r for r, m in self.members.items() if m.host == own and r not in self.lost]
        if self.rank != min(here) or len(self.members) < self.world:
            return
        hosts = {member.host for member in self.members.values()} - {own}
        if not hosts:
            return
        now = time.monotonic()
        self._store.set(f"beat/{own}", repr(now))
        for host in sorted(hosts):
            beat = self._store.get(f"beat/{host}") if self._store.check([f"beat/{host}"]) else b""
            known, since = self._beats.setdefault(host, (beat, now))
            if known != beat:
                self._beats[host] = (beat, now)
            elif now - since > _BEAT_LIMIT:
                self._lose_host(host)

    def _lose_host(self, host: str) -> None:
        for rank, member in self.members.items():
            if member.host == host and rank not in self.lost and rank not in self.left:
                if self._store.check([f"left/{rank}"]):
                    self._take_note(self.left, rank, self._store.get(f"left/{rank}").decode())
                    continue
                what = f"{member} gives no sign for {_BEAT_LIMIT:.0f} s"
                self._take_note(self.lost, rank, what)
                self._tell_loss(rank)

    def _insist(self) -> None:
        """End the process when a call waits too long for a lost rank."""
        if not (self.lost and self._inside):
            self._since = 0.0
            return
        now = time.monotonic()
        self._since = self._since or now
        if now - self._since < _GRACE:
            return
        process_groups.abort()
        _say(f"{_words(self.lost)} This rank waits for it in vain and ends (exit {EXIT_CODE}).")
        os._exit(EXIT_CODE)


def _words(lost: dict[int, str]) -> str:
    ranks = ", ".join(map(str, sorted(lost)))
    which = f"Rank {ranks} is" if len(lost) == 1 else f"Ranks {ranks} are"
    told = "; ".join(f"{what}" for _, what in sorted(lost.items()))
    return f"{which} lost: {told}."


def _say(what: str) -> None:
    sys.stderr.write(f"torchgraph: RankLost: {what}\n")
    sys.stderr.flush()


_PHRASES = (
    *("connection closed", "connection reset", "connection refused", "broken pipe", "gloo"),
    *("nccl", "timed out", "timeout", "socket", "process group", "remote"),
)


def _is_of_communication(error: BaseException) -> bool:
    """True for an error that a collective or the store raises when the other side is gone."""
    seen: set[int] = set()
    found: BaseException | None = error
    while found is not None and id(found) not in seen:
        seen.add(id(found))
        if isinstance(found, (dist.DistError, ConnectionError)):
            return True
        text = str(found).lower()
        if isinstance(found, RuntimeError) and any(phrase in text for phrase in _PHRASES):
            return True
        found = found.__cause__ or found.__context__
    return False


_present: Presence | None = None
_group: Any = None
"""The default process group that it belongs to."""
_number = 0
"""How many there were in this process: ranks that begin anew find nothing of before."""
_lock = threading.Lock()


_AVAILABLE = dist.is_available()


def several_ranks() -> bool:
    """True with a process group of several ranks that is not torch's "fake" one."""
    return (
        _AVAILABLE
        and dist.is_initialized()
        and dist.get_world_size() > 1
        and dist.get_backend() != "fake"
    )


def presence() -> Presence:
    """The `Presence` of this rank, made on first use."""
    global _present, _group, _number
    with _lock:
        if _present is None or _group is not dist.group.WORLD:
            _number += 1
            _group = dist.group.WORLD
            _present = Presence(
                own_store("presence"), dist.get_rank(), dist.get_world_size(), Member.here()
            )
            process_groups.around_the_end(_end)
        return _present


def own_store(name: str) -> Store:
    """A separate connection to the store of the process group, with a key prefix of its own."""
    prefix = f"torchgraph/{_number}/{name}"
    return process_groups.connection(process_groups.default_store(), prefix)


@contextmanager
def _end() -> Iterator[None]:
    global _present
    with _lock:
        found, _present = _present, None
    if found is None:
        yield
        return
    found.leave("it has left the process group")
    try:
        with found.inside():
            yield
    finally:
        found.stop()
