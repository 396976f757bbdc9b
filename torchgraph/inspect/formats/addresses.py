"""Simulated allocator of one device, with a trace of its events."""

from __future__ import annotations

import bisect
from collections.abc import Sequence
from typing import Any, NamedTuple, TypedDict

_ALIGNED = 64
_LASTING, _PASSING, _ARENA = (number << 40 for number in (1, 2, 3))
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


class Device:
    """Allocator of one device that records its allocations and frees."""

    def __init__(self, number: int) -> None:
        self.trace: list[dict[str, Any]] = []
        self._number = number
        self._lasting: list[Block] = []
        self._passing: list[Block] = []
        self._most = _PASSING
        """The highest address that was taken."""
        self._arena = 0

    def allocate(
        self,
        size: int,
        frames: Sequence[Frame],
        category: str,
        *,
        lasting: bool = False,
        at: int | None = None,
    ) -> Block:
        """Allocate the first free range that is large enough; ``at``: that address of the arena."""
        blocks = self._lasting if lasting else self._passing
        if at is None:
            at = _first_room(blocks, size, _LASTING if lasting else _PASSING)
        block = Block(at, size, frames)
        if at < _ARENA:
            bisect.insort(blocks, block, key=lambda one: one.address)
            self._most = max(self._most, block.end)
        if size:
            self._note("alloc", block, category=category)
        return block

    def free(self, block: Block) -> None:
        """Free a block. Viewers merge two events that follow each other directly."""
        if block.address < _ARENA:
            self._passing.remove(block)
        self._note("free_requested", block)
        self._note("free_completed", block)

    def begin_arena(self, size: int) -> int:
        """Begin the segment of an arena; returns its address."""
        self._arena = size
        self._note("segment_alloc", Block(_ARENA, size, ()))
        return _ARENA

    def end_arena(self) -> None:
        """End the segment of the arena."""
        self._note("segment_free", Block(_ARENA, self._arena, ()))

    def know_category(self, name: str) -> None:
        """Add the category ``unknown``, without which the viewer fails on a snapshot."""
        if self.trace and not any(event.get("category") == name for event in self.trace):
            self.trace[-1].setdefault("category", name)

    def segments(self) -> list[dict[str, Any]]:
        """The segments that are allocated now."""
        both = ((_LASTING, self._lasting, None), (_PASSING, self._passing, self._most))
        found = (self._segment(*one) for one in both)
        return [segment for segment in found if segment["total_size"]]

    def _segment(self, start: int, blocks: Sequence[Block], end: int | None) -> dict[str, Any]:
        parts: list[dict[str, Any]] = []
        at = start
        for block in blocks:
            if block.address > at:
                parts.append(_part(at, block.address - at))
            if block.size:
                parts.append(_part(block.address, block.end - block.address, block))
            at = block.end
        if end is not None and end > at:
            parts.append(_part(at, end - at))
            at = end
        taken = sum(block.size for block in blocks)
        return {
            "device": self._number,
            "address": start,
            "total_size": at - start,
            "allocated_size": taken,
            "active_size": taken,
            "requested_size": taken,
            "stream": 0,
            "segment_type": "large",
            "blocks": parts,
            "frames": [],
        }

    def _note(self, action: str, block: Block, **more: str) -> None:
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


def _first_room(blocks: Sequence[Block], size: int, start: int) -> int:
    """The lowest address with so many free bytes."""
    at = start
    for block in blocks:
        if block.address - at >= size and block.address > at:
            return at
        at = max(at, block.end)
    return at


def _part(address: int, size: int, block: Block | None = None) -> dict[str, Any]:
    state = "inactive" if block is None else "active_allocated"
    frames = [] if block is None else list(block.frames)
    requested = 0 if block is None else block.size
    return {
        "address": address,
        "size": size,
        "requested_size": requested,
        "state": state,
        "frames": frames,
    }
