"""The process of a rank, and the detection of its end: at once for one on the same host."""

from __future__ import annotations

import json
import os
import select
import socket
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from typing import NamedTuple


class Member(NamedTuple):
    """Identity of the process of a rank: its host, process id and start time."""

    host: str
    """Equal where process ids mean the same."""
    pid: int
    started: str
    """When: a process id is given again."""
    door: str
    """A file that is there until the process has said that it goes."""

    @classmethod
    def here(cls) -> Member:
        """The identity of this process; creates its `door`."""
        pid = os.getpid()
        handle, door = tempfile.mkstemp(prefix=f"torchgraph-rank-{pid}-")
        os.close(handle)
        return cls(_host(), pid, started(pid), door)

    @classmethod
    def parse(cls, data: bytes) -> Member:
        """The identity that `text` has written."""
        return cls(*json.loads(data))

    def text(self) -> str:
        """The identity as JSON, for the store."""
        return json.dumps(self)

    @property
    def alive(self) -> bool:
        """True while a process on this host runs; a zombie process does not."""
        return bool(self.started) and started(self.pid) == self.started

    @property
    def has_left(self) -> bool:
        """True when a process on this host has announced its end."""
        return not os.path.exists(self.door)

    def close(self) -> None:
        """Remove its `door`: the process ends, or was killed."""
        with suppress(OSError):
            os.unlink(self.door)

    def __str__(self) -> str:
        return f"pid {self.pid} on {self.host.partition(' ')[0]}"


def _host() -> str:
    names = [socket.gethostname()]
    with suppress(OSError):  # no Linux: the name has to do
        names.append(os.readlink("/proc/self/ns/pid"))
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
            names.append(file.read().strip())
    return " ".join(names)


def started(pid: int) -> str:
    """The start time of a process on this host; empty for none, and for a zombie process."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            fields = file.read().rpartition(b")")[2].split()
    except FileNotFoundError:
        if os.path.exists("/proc/self/stat"):
            return ""
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return ""
        return "unknown"
    return "" if fields[0] in (b"Z", b"X") else fields[19].decode()


class Deaths:
    """Watch for the end of processes on this host."""

    def __init__(self) -> None:
        self._woken, self._wakes = os.pipe()
        self._handles: dict[int, int] = {}
        """rank -> a handle of its process, where the system has such."""
        self._members: dict[int, Member] = {}

    def watch(self, rank: int, member: Member) -> None:
        """Watch the process of one more rank."""
        if rank in self._members:
            return
        self._members[rank] = member
        with suppress(AttributeError, OSError):  # an old kernel, or it is gone: `alive` is asked
            self._handles[rank] = os.pidfd_open(member.pid)

    @property
    def watched(self) -> Mapping[int, Member]:
        """The watched processes, by rank."""
        return self._members

    def wait(self, seconds: float) -> list[int]:
        """The ranks whose process has ended, after at most ``seconds``; each is returned once."""
        poll = select.poll()
        poll.register(self._woken, select.POLLIN)
        for handle in self._handles.values():
            poll.register(handle, select.POLLIN)
        if any(handle == self._woken for handle, _ in poll.poll(seconds * 1000)):
            os.read(self._woken, 64)
        gone = [rank for rank, member in self._members.items() if not member.alive]
        for rank in gone:
            del self._members[rank]
            if rank in self._handles:
                os.close(self._handles.pop(rank))
        return gone

    def wake(self) -> None:
        """End the `wait` of another thread."""
        os.write(self._wakes, b"x")
