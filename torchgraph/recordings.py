"""Calls that no program serves yet: they run as eager runs them, are written down and confirmed."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any
from weakref import WeakKeyDictionary

from ._torch import storage_id
from .cache import ProgramCache
from .capture.inputs import Call
from .capture.step import Step
from .confirm import Batch, Place, Start, as_eager, digest, unlike
from .errors import (
    AttributeReadAndWritten,
    ConfirmWarning,
    EagerWarning,
    GraphError,
    MovingConstant,
    warn,
)
from .ops.expect import ValueMoved
from .options import Options
from .program import Role
from .record.compare import Difference, Kind, difference
from .record.outcome import Outcome
from .record.watch import warn_written
from .replay.replay import Replay

_PATIENCE = 4
"""Recordings in a row that are not the same before a step counts as one that never settles."""

_SIGNATURES = 4
"""How many signatures are remembered for each program that the cache holds."""


@dataclass(eq=False)
class _Draft:
    """A recording that waits to be confirmed."""

    outcome: Outcome
    replay: Replay | None
    batch: Batch
    """That was recorded."""


@dataclass
class _Signature:
    """What is known about the calls of one key."""

    drafts: list[_Draft] = field(default_factory=list)
    restless: int = 0
    """Recordings in a row that matched none before them."""
    restless_constants: int = 0
    dropped: int = 0
    """Programs in a row that held for the batch alone that they were made with."""
    others: int = 0
    """Recordings in a row that were each for other values than all before them."""
    last: Difference | None = None
    refused: GraphError | None = None
    """Raised by the next call, before anything runs."""
    eager: str = ""
    """Why its calls run in eager for good."""


class Recordings:
    """Of one Graph.

    Args:
        take: runs a call as eager runs it; heard or not.
        compile: makes a program of what a call left.
    """

    def __init__(
        self,
        cache: ProgramCache,
        take: Callable[[Step, Call, bool], Outcome],
        compile: Callable[[Outcome, Call], Replay],
    ) -> None:
        self._cache = cache
        self._take = take
        self._compile = compile
        self._signatures: dict[Hashable, _Signature] = {}
        self._doubts: WeakKeyDictionary[Replay, _Doubt] = WeakKeyDictionary()

    def clear(self) -> None:
        """Forget everything."""
        self._signatures.clear()
        self._doubts.clear()

    def call(self, key: Any, step: Step, call: Call, options: Options) -> Outcome:
        """Run a call that no program serves, and learn from it.

        Raises:
            CaptureError and its kin: the step can be no static program; nothing has changed. What
                was found too late to take a step back is raised by the next call instead.
        """
        known = self._signature(key, options)
        if known.refused is not None and not self._cache.holds(key):
            raise known.refused.with_traceback(None)
        unlike_others = step.shares_memory(call.tensors)
        if known.eager or known.refused is not None or unlike_others:
            return self.alone(step, call)
        doubted = self._doubted(key, call)
        drafts = [*known.drafts, *doubted]
        start = Start.of(step, call, [one.replay for one in drafts if one.replay is not None])
        outcome = self._take(step, call, True)
        if outcome.stepped:
            self._learn(key, known, doubted, call, start, outcome, options)
        return outcome

    def _signature(self, key: Any, options: Options) -> _Signature:
        """The least recently used go first: a value that moves is a new signature each time."""
        known = self._signatures.pop(key, _Signature())
        self._signatures[key] = known
        while len(self._signatures) > _SIGNATURES * options.cache_size:
            del self._signatures[next(iter(self._signatures))]
        return known

    def alone(self, step: Step, call: Call) -> Outcome:
        """Run a call of which nothing is learnt."""
        return self._take(step, call, False)

    def _learn(
        self,
        key: Any,
        known: _Signature,
        doubted: list[_Draft],
        call: Call,
        start: Start,
        outcome: Outcome,
        options: Options,
    ) -> None:
        if known.drafts and outcome.moved:
            self._stay_eager(
                known,
                f"{outcome.moved} moves in the optimizer's own step, which may go by it. A number "
                "that is kept in optimizer.state or in a param group may move",
            )
            return
        found = [(draft, difference(draft.outcome, outcome)) for draft in (*known.drafts, *doubted)]
        for draft, apart in found:
            if draft in doubted and apart is not None and apart.kind is not Kind.VALUE:
                self._drop(draft.replay)
                known.dropped += 1
                if known.dropped == _PATIENCE:
                    self._stay_eager(known, f"with each new batch, {apart.what}{_at(apart)}")
                    return
        same = next((draft for draft, apart in found if apart is None), None)
        if same is None:
            self._draft(key, known, call, start, outcome, options, found[0][1] if found else None)
        elif same.replay is not None:
            self._confirm(key, known, same, same.replay, call, start, outcome, options)

    def _drop(self, replay: Replay | None) -> None:
        if replay is not None and replay in self._cache:
            self._cache.remove(replay)

    def _draft(
        self,
        key: Any,
        known: _Signature,
        call: Call,
        start: Start,
        outcome: Outcome,
        options: Options,
        apart: Difference | None,
    ) -> None:
        known.last = apart
        if apart is not None:
            known.others += apart.kind is Kind.VALUE
            known.restless += apart.kind is not Kind.VALUE
            known.restless_constants += apart.kind in (Kind.CONSTANT, Kind.TENSOR, Kind.OUTPUT)
        restless = known.restless >= _PATIENCE or known.restless_constants >= 2
        if restless or known.others >= options.cache_size:
            self._give_up(key, known)
            return
        replay = None
        if outcome.settled:
            try:
                replay = self._compile(outcome, call)
            except GraphError as error:
                self._refuse(key, known, error)
                return
            except Exception as error:  # eager computes the same: whatever it is, it goes on
                self._stay_eager(known, f"no program can be made of it: {_words(error)}")
                return
        known.drafts.insert(0, _Draft(outcome.forgotten(), replay, start.batch))
        del known.drafts[options.cache_size :]

    def _confirm(
        self,
        key: Any,
        known: _Signature,
        draft: _Draft,
        replay: Replay,
        call: Call,
        start: Start,
        outcome: Outcome,
        options: Options,
    ) -> None:
        if draft in known.drafts:
            known.drafts.remove(draft)
        self._warn_of_writes(outcome)
        bound = self._bound(known, replay, call, start, outcome)
        if bound is None:
            return
        replay = bound
        doubt = _Doubt.about(key, draft, start.batch, outcome)
        try:
            wrong = unlike(as_eager(replay, options), start, call, outcome)
        except ValueMoved as moved:
            self._unserved(key, known, draft, replay, moved, options)
            return
        except Exception as error:  # eager has made the step: whatever it is, that stands
            wrong = f"it fails with {type(error).__name__}: {error}"
        if wrong:
            self._drop(replay)
            known.eager = f"its program does not compute what eager does: {wrong}"
            warn(
                f"The program of this step is not confirmed: {wrong}. This is a fault of "
                "torchgraph: please report it. The step goes on in eager.",
                ConfirmWarning,
            )
            return
        known.restless = known.restless_constants = known.others = 0
        if replay not in self._cache:
            self._cache.add(key, replay, options.cache_size)
        self._doubts.pop(replay, None)
        if doubt is None:
            known.dropped = 0
        else:
            draft.replay = None  # nobody but the cache keeps a program alive
            self._doubts[replay] = doubt

    def _bound(
        self, known: _Signature, replay: Replay, call: Call, start: Start, outcome: Outcome
    ) -> Replay | None:
        """The program over the tensors that are there now; None when it has to wait for others."""
        if replay.refit(outcome.after):
            return replay
        self._drop(replay)
        try:
            replay = self._compile(outcome, call)
        except Exception as error:  # eager has made the step
            self._stay_eager(known, f"no program can be made of it: {_words(error)}")
            return None
        if replay.refit(outcome.after):
            return replay
        known.drafts.insert(0, _Draft(outcome.forgotten(), replay, start.batch))
        return None

    def _unserved(
        self,
        key: Any,
        known: _Signature,
        draft: _Draft,
        replay: Replay,
        moved: ValueMoved,
        options: Options,
    ) -> None:
        """A call like the draft that its program cannot serve, and so cannot be confirmed by.

        What Python reads moves from micro-batch to micro-batch, of which the first is recorded; or
        an argument lies elsewhere in its memory.
        """
        if replay not in self._cache:
            known.drafts.insert(0, draft)
        known.others += 1
        what = f"a program cannot serve each such call: {moved}"
        known.last = Difference(Kind.VALUE, what, moved.line)
        if known.others >= options.cache_size:
            self._give_up(key, known)

    def doubts(self, replay: Replay, call: Call) -> bool:
        """True when another batch than a program was recorded and confirmed with says more.

        Then the program does not serve the call, which is recorded.
        """
        doubt = self._doubts.get(replay)
        return doubt is not None and doubt.is_told_by(call)

    def _doubted(self, key: Any, call: Call) -> list[_Draft]:
        """What the programs were recorded as that ``call`` says more about."""
        return [
            replace(doubt.draft, replay=replay)
            for replay, doubt in list(self._doubts.items())
            if doubt.key == key and replay in self._cache
            if doubt.is_told_by(call) and not replay.why_not()
        ]

    def _stay_eager(self, known: _Signature, why: str) -> None:
        known.eager = why
        known.drafts.clear()
        warn(f"The step runs in eager: {why}.", EagerWarning)

    def _give_up(self, key: Any, known: _Signature) -> None:
        apart = known.last
        assert apart is not None
        at = _at(apart)
        if apart.kind in (Kind.STRUCTURE, Kind.STATE):
            self._stay_eager(known, f"it is not the same from call to call, {apart.what}{at}")
            return
        if apart.kind is Kind.VALUE:
            calls = f"in each of {known.others} calls: compute with the tensor, or return it"
            self._stay_eager(known, f"{apart.what}{at}, {calls}")
            return
        kind: type[GraphError] = MovingConstant
        if apart.kind is Kind.ATTRIBUTE:
            kind = AttributeReadAndWritten
        self._refuse(key, known, kind(f"From call to call, {apart.what}.", where=apart.where))

    def _refuse(self, key: Any, known: _Signature, error: GraphError) -> None:
        known.refused = error
        known.drafts.clear()
        if self._cache.holds(key):
            warn(f"Some calls run in eager: {error}", EagerWarning)

    def _warn_of_writes(self, outcome: Outcome) -> None:
        written = [change for change in outcome.changes if not change.read]
        if written:
            warn_written(written)


@dataclass(frozen=True, eq=False)
class _Doubt:
    """About a program that was confirmed by the very batch that it was recorded with."""

    key: Any
    draft: _Draft
    digest: tuple[bytes, ...]
    """Of the batch, where constants may be of it; else empty."""
    places: Mapping[int, Place]
    """Of arguments whose memory others may hold too: a global, a list, an attribute."""

    @classmethod
    def about(cls, key: Any, draft: _Draft, batch: Batch, outcome: Outcome) -> _Doubt | None:
        """None where two equal recordings say enough."""
        pairs = zip(draft.outcome.leaves, outcome.leaves, strict=True)
        others = any(
            one.role is Role.FREE and storage_id(one.value) != storage_id(other.value)
            for (one, _), (other, _) in pairs
        )
        constants = others or bool(outcome.tape.constants)
        told = batch.digest if constants and draft.batch.digest == batch.digest else ()
        both = enumerate(zip(draft.batch.places, batch.places, strict=True))
        places = {number: now for number, (then, now) in both if then == now}
        return cls(key, draft, told, places) if told or places else None

    def is_told_by(self, call: Call) -> bool:
        """True for another batch."""
        if not all(place.holds(call.tensors[i]) for i, place in self.places.items()):
            return True
        return bool(self.digest) and digest(call) != self.digest


def _at(apart: Difference) -> str:
    return f" (at {apart.where})" if apart.where else ""


def _words(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"
