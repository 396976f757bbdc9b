"""Simulated allocator of one device, with a trace of its events."""

from __future__ import annotations

import bisect
from collections.abc import Sequence
from typing import Any, NamedTuple, TypedDict

_ALIGNED = 64
_LASTING, _PASSING, ARENA = (number << 40 for number in (1, 2, 3))
"""Where segments begin: of what outlives the step, of what it allocates, of its arena."""


class Frame(TypedDict):
    """A stack frame in the format of memory snapshots."""

    filename: str
    line: int
    name: str


class Block(NamedTuple):
    """An allocated block of memory."""

    address: int
    size: int
    frames: Sequence[Frame]

    @property
    def end(self) -> int:
        """The first address behind the block."""
        return self.address + -(-self.size // _ALIGNED) * _ALIGNED


class Segment:
    """A range of addresses, as long as what it has held at one time."""

    def __init__(self, start: int) -> None:
        self.blocks: list[Block] = []
        """In the order of their addresses."""
        self._start = self._end = start

    def allocate(self, size: int, frames: Sequence[Frame]) -> Block:
        """Allocate the first free range that is large enough."""
        at = self._start
        for block in self.blocks:
            if block.address - at >= size and block.address > at:
                break
            at = max(at, block.end)
        made = Block(at, size, frames)
        bisect.insort(self.blocks, made, key=lambda one: one.address)
        self._end = max(self._end, made.end)
        return made

    def described(self, device: int) -> dict[str, Any]:
        """The segment in the format of memory snapshots; gaps are inactive blocks."""
        parts: list[dict[str, Any]] = []
        at = self._start
        for block in (*self.blocks, Block(self._end, 0, ())):
            if block.address > at:
                parts.append(_part("inactive", Block(at, 0, ()), block.address))
            if block.size:
                parts.append(_part("active_allocated", block, block.end))
            at = block.end
        taken = sum(block.size for block in self.blocks)
        return {
            "device": device,
            "address": self._start,
            "total_size": self._end - self._start,
            "allocated_size": taken,
            "active_size": taken,
            "requested_size": taken,
            "stream": 0,
            "segment_type": "large",
            "blocks": parts,
            "frames": [],
        }


class Device:
    """Allocator of one device that records its allocations and frees."""

    def __init__(self, number: int) -> None:
        self.trace: list[dict[str, Any]] = []
        self._number = number
        self.lasting, self.passing = Segment(_LASTING), Segment(_PASSING)
        """Of what outlives the step, and of what the step allocates."""

    def begin(self, block: Block, category: str) -> Block:
        """Record that a block is allocated."""
        if block.size:
            self.note("alloc", block, category=category)
        return block

    def free(self, block: Block) -> None:
        """Free a block. Viewers merge two events that follow each other directly."""
        if block.address < ARENA:
            self.passing.blocks.remove(block)
        self.note("free_requested", block)
        self.note("free_completed", block)

    def know_category(self, name: str) -> None:
        """Add the category ``unknown``, without which the viewer fails on a snapshot."""
        if self.trace and not any(event.get("category") == name for event in self.trace):
            self.trace[-1].setdefault("category", name)

    def segments(self) -> list[dict[str, Any]]:
        """The segments that are allocated now; that of an arena is gone."""
        found = [one.described(self._number) for one in (self.lasting, self.passing)]
        return [segment for segment in found if segment["total_size"]]

    def note(self, action: str, block: Block, **more: str) -> None:
        """Record an event."""
        self.trace.append(
            {
                "action": action,
                "addr": block.address,
                "size": block.size,
                "stream": 0,
                "frames": list(block.frames),
                "time_us": len(self.trace),
                **more,
            }
        )


def _part(state: str, block: Block, end: int) -> dict[str, Any]:
    return {
        "address": block.address,
        "size": end - block.address,
        "requested_size": block.size,
        "state": state,
        "frames": list(block.frames),
    }
