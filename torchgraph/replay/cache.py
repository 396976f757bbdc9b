"""The programs of one Graph: one per signature of a call, the least recently used goes first."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from typing import Any

from ..counters import counters
from ..errors import CacheThrashWarning, StepFailed, warn
from ..live.inputs import Call
from ..live.step import Step
from ..pipeline.pipelined import bring_home, is_spread, keeps_like
from .cuda.graphs import CudaGraphs
from .replay import Replay

Key = tuple[Any, ...]
"""The signature of a call, torch's ambient switches, and the options."""


class ProgramCache:
    """Replays by key. Several may share a key: a training and an evaluation program, say."""

    def __init__(self) -> None:
        self._entries: OrderedDict[int, tuple[Key, Replay]] = OrderedDict()
        self._by_key: dict[Key, list[Replay]] = {}
        self._latest: tuple[Key, list[Replay]] = ((), [])
        self.graphs = CudaGraphs()
        """State shared by the CUDA Graphs of all programs."""
        self.broken = ""
        """The failure that left a step of a program half done; empty when there was none."""
        self.is_spread = False
        """True once a program leaves states on other ranks."""
        self._captures_since_hit = 0
        self._warned = False
        self.hits = 0
        """Calls that a program has served."""
        self.misses = 0
        self._gone = 0
        """Runs of programs that are no longer held."""
        self.reasons: list[str] = []
        """Why programs did not fit a call, latest last."""

    def __iter__(self) -> Iterator[Replay]:
        return (replay for _, replay in self._entries.values())

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, replay: Replay) -> bool:
        return id(replay) in self._entries

    def find(self, key: Key) -> Replay | None:
        """The program that serves a call as things stand; None when there is none."""
        latest, candidates = self._latest
        if not latest or key[0] is not latest[0] or key != latest:  # less than to hash it
            candidates = self._by_key.get(key, [])
            self._latest = (key, candidates)
        # To find in Python why the others do not fit takes longer than a step may.
        for replay in candidates if len(candidates) > 1 else ():
            if replay.fits_for_sure():
                self._hit(replay)
                return replay
        for replay in candidates:
            if not replay.why_not():
                self._hit(replay)
                return replay
        return None

    @property
    def served(self) -> int:
        """Calls that programs ran."""
        return self._gone + sum(replay.runs for replay in self)

    def serving(self, things: Key) -> list[Replay]:
        """The programs whose guards hold. ``things``: a key without its first part, the call's."""
        held = self._entries.values()
        return [one for key, one in held if key[1:] == things and not one.why_not()]

    def others(self, key: Key, tried: Replay) -> list[Replay]:
        """The programs for ``key``, but for ``tried``, whose guards hold now."""
        found = [one for one in self._by_key.get(key, ()) if one is not tried]
        return [one for one in found if not one.why_not()]

    def prefer(self, key: Key, replay: Replay) -> None:
        """Try ``replay`` first from now on: values that Python reads mostly stay the same."""
        candidates = self._by_key[key]
        candidates.remove(replay)
        candidates.insert(0, replay)

    def holds(self, key: Key) -> bool:
        """True when there is a program for ``key``, even if its guards do not hold now."""
        return bool(self._by_key.get(key))

    def why_not(self, key: Key) -> str:
        """Why a program for ``key`` does not serve a call now; empty when nothing is known."""
        return next(filter(None, (one.why_not() for one in self._by_key.get(key, ()))), "")

    def run(self, replay: Replay, call: Call) -> Any:
        """One step of a program.

        Raises:
            StepFailed: an op raised. ``broken`` says whether anything was written before.
        """
        try:
            returned = replay.run(call)
        except BaseException as error:
            if isinstance(error, StepFailed) or not isinstance(error, Exception):
                self.broken = replay.broken
            raise
        self.hit()  # a program whose predicate fails has served nobody
        return returned

    def hit(self) -> None:
        """A program has served a call, or it ran in eager to be compared with the program."""
        self.hits += 1
        counters.replays += 1

    def refit(self, key: Key, step: Step) -> Replay | None:
        """A program that serves the call once it is bound to the tensors that are there now."""
        for replay in self._by_key.get(key, ()):
            self.reasons.append(replay.why_not())
            if replay.refit(step) and not replay.why_not():
                self.reasons.pop()
                self._hit(replay)
                return replay
        return None

    def add(self, key: Key, replay: Replay, size: int) -> None:
        """Keep a new program, and at most ``size`` in all."""
        self.misses += 1
        self._entries[id(replay)] = (key, replay)
        self.is_spread |= is_spread(replay.executable)
        self._by_key.setdefault(key, []).insert(0, replay)
        self._latest = ((), [])
        self.shrink(size)

    def shrink(self, size: int) -> None:
        """Drop programs until there are at most ``size``, the least recently used first."""
        while len(self._entries) > size:
            self.remove(next(iter(self)))

    def bring_home(self, serves: Replay | None = None) -> None:
        """Let this rank have all states, as the other ranks of a pipeline do at the same time.

        ``serves``: what runs next: what it needs is enough.
        """
        for replay in self if self.is_spread else ():
            if serves is None or not keeps_like(serves.executable, replay.executable):
                bring_home(replay.executable, replay.leaves)

    def forget_casts(self) -> None:
        """Have the next call recompute the kept casts of weights."""
        for _, replay in self._entries.values():
            replay.derived.forget()

    def drafted(self) -> None:
        """A program was made, and none served a call since the last."""
        self._captures_since_hit += 1

    def warn_of_thrash(self, size: int, why: str) -> None:
        """Warn when more programs than it holds were made, and none served a call since."""
        if self._captures_since_hit > size and not self._warned:
            self._warned = True
            last = f" The last reason: {why}." if why else ""
            warn(
                f"{self._captures_since_hit} calls in a row needed a new program, more than the "
                f"cache holds ({size}).{last} Pass what changes as a tensor, pad inputs to few "
                "shapes, or raise config.set_cache_size.",
                CacheThrashWarning,
            )

    def remove(self, replay: Replay) -> None:
        """Drop one program."""
        self.bring_home()
        key, _ = self._entries.pop(id(replay))
        self._gone += replay.runs
        self._by_key[key].remove(replay)
        if not self._by_key[key]:
            del self._by_key[key]
        self._latest = ((), [])
        replay.close()

    def clear(self) -> None:
        """Drop all programs: the next call records again."""
        for replay in list(self):
            self.remove(replay)

    def _hit(self, replay: Replay) -> None:
        self._captures_since_hit = 0
        self._entries.move_to_end(id(replay))
