"""Calls that no program serves yet: they run as eager runs them, are written down and confirmed."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from dataclasses import replace
from typing import Any
from weakref import WeakKeyDictionary

from ..capture.functional.lost_writes import LostWrite
from ..collection import afresh
from ..effects.side_effects import Assigned
from ..errors import (
    ConfirmWarning,
    EagerWarning,
    GraphError,
    NoProgram,
    PassFailed,
    UnsupportedInput,
    VerifyError,
    warn,
)
from ..guards import Name, Read
from ..library.expect import ValueMoved
from ..live.arguments import Arguments, in_a_state
from ..live.inputs import Call
from ..live.step import Step
from ..options.options import Options
from ..reasons import Because, Reason
from ..record.compare.compare import Difference, difference
from ..record.compare.outcome import Outcome, repeated_in
from ..record.compare.predicted import predicted
from ..record.ops.generators import ELSEWHERE
from ..record.tape.watch import warn_written
from ..replay.as_eager import as_eager
from ..replay.cache import ProgramCache
from ..replay.replay import Replay
from ..verify.batch import Batch, WeakConfirmation
from ..verify.confirm import OTHER_DRAWS, Left, Start, blame, unlike
from ..verify.repeats import unrepeated
from .fallback import Fallback
from .new_signatures import NEW_ARGUMENTS, NewSignatures
from .ranks.together import NOT_THERE, Together
from .signatures import (
    MOST_AGAIN,
    PATIENCE,
    Draft,
    RecordedCall,
    SignatureState,
    State,
    Taken,
    VaryingValues,
    words,
)

_SIGNATURES = 4
"""Signatures remembered for each program that the cache may hold."""


class Recordings:
    """The signatures of one Graph: each is recorded, confirmed, or left in eager.

    Args:
        take: runs a call in eager; recorded or not; NoProgram is raised or not.
        compile: makes a program of what a call left.
        together: the other ranks.
        words: gives the user's names, by torchgraph's own names.
    """

    def __init__(
        self,
        cache: ProgramCache,
        take: Callable[[Step, Call, bool, bool], Outcome],
        compile: Callable[[Outcome, Call], Replay],
        together: Together,
        words: Callable[[], Mapping[str, str]],
    ) -> None:
        self._cache, self._take, self._compile = cache, take, compile
        self._together = together
        self.signatures: dict[Hashable, SignatureState] = {}
        self._new_signatures = NewSignatures()
        self._advice = ""
        """The warning given about calls with a new signature each time."""
        self._last: Arguments | None = None
        """The arguments of the last recorded call."""
        self._varying_values = VaryingValues()
        self._doubted: WeakKeyDictionary[Replay, Draft] = WeakKeyDictionary()
        """Programs confirmed by the batch that recorded them, with their recordings."""
        self._begun: Replay | None = None
        """The program that Inductor compiles before it is confirmed."""
        self.fallback = Fallback(words)

    def clear(self) -> None:
        """Forget everything."""
        for held in (self.signatures, self._doubted, self._varying_values, self.fallback):
            held.clear()
        self._new_signatures, self._advice = NewSignatures(), ""
        self._begun = None

    def begin_anew(self) -> None:
        """Restart the count of new signatures, since options have changed."""
        self._new_signatures = NewSignatures()

    def take(self, key: Any, step: Step, call: Call, options: Options) -> Taken:
        """Run a call that no program serves; `learn` is to follow, when all is as the call left it.

        Raises:
            NoProgram and its kin: the step can be no static program; nothing has changed. What
                was found too late to take a step back is raised by the next call instead.
        """
        call = call.noted()
        known = self._signature(key, options)
        if known.state is State.REFUSED and known.refused is not None:
            stands = not isinstance(known.refused, NoProgram) or self.fallback.raises(options)
            if stands and not self._cache.holds(key):
                raise afresh(known.refused)
            self._stay_eager(known, Reason.NO_PROGRAM, known.refused.reason)
        known.look_again()
        if known.state is State.EAGER:
            known.serves = (taken := self.alone(step, call, known.eager)).outcome.serves
            return taken
        too_many = self._new_signatures.meet(known, options, late=self.fallback.late)
        too_many = too_many and not self.fallback.raises(options)  # the first two calls are tried
        why = self._new_signatures.why(self._last, call) if too_many else ""
        moved = "" if self._last is None else self._last.moved(call)
        self._last = Arguments(call)
        if too_many:
            if self._new_signatures.are_many:
                self.fallback.say(why, NEW_ARGUMENTS, EagerWarning)
                self._advice = self._advice or why
            taken = self.alone(step, call, self._advice or NEW_ARGUMENTS)
            self._new_signatures.serves = taken.outcome.serves
            return taken
        if known.made_again >= MOST_AGAIN:
            return self.alone(step.without_numbers(), call, known.plain, said=False)
        if why := in_a_state(step, call):
            return self.alone(step, call, why, said=False)
        weak = self._told_by(key, call)
        drafts = [*known.drafts, *weak]
        why_not = self._cache.why_not(key)
        held = [one.replay for one in drafts if one.replay is not None]
        start = Start.of(step.leaves, call, held, Batch.of(call))
        outcome = self._take(step, call, True, self.fallback.raises(options))
        self.fallback.count(outcome.serves, outcome.eager)
        known.recorded()
        if known.calls > 2:
            self.fallback.began()
        last = (start, outcome, options, why_not, moved)
        return Taken(outcome, RecordedCall(key, known, weak, call, *last))

    def stays_eager(self, key: Any, options: Options) -> str | None:
        """A description of the arguments of a call that stays in eager, counted; else None."""
        known = self.signatures.get(key)
        if known is None and self._new_signatures.are_many and not self._cache.holds(key):
            known = self._signature(key, options)
        return None if known is None else self.stays(known, options)

    def stays(self, known: SignatureState, options: Options) -> str | None:
        """`stays_eager` for a call of a known signature that has no program."""
        serves, why = known.serves, known.eager
        if not known.stays_eager(self.fallback.raises(options)):
            serves, why = self._new_signatures.serves, self._advice or NEW_ARGUMENTS
            if not (self._new_signatures.are_many and serves):
                return None
            if not self._new_signatures.meet(known, options, late=self.fallback.late):
                return None
        self.fallback.count(serves, why)
        return serves

    def drop_failing(self, key: Any, why: str, options: Options) -> None:
        """Let calls stay in eager of which most have made a program fail."""
        for replay in [one for one in self._cache if one.undo.fails_mostly(one.runs)]:
            self._drop(replay)
            known = self._signature(key, options)
            self._stay_eager(known, Reason.RAISES, f"at most calls {why}", later=True)

    def unbound(self, key: Any, error: UnsupportedInput, options: Options) -> None:
        """Let a call whose arguments cannot be bound run in eager.

        Raises:
            UnsupportedInput: ``error``, where that is an error.
        """
        known = self._signature(key, options)
        splits = options.training and options.micro_batches > 1
        if not error.falls_back or splits or self.fallback.raises(options):
            raise afresh(error) from None
        self._stay_eager(known, Reason.ARGUMENTS, error.reason)

    def learn(self, taken: Taken) -> None:
        """Make a program of a call, or confirm one by it."""
        if taken.recorded_call is not None and taken.outcome.stepped:
            begun, self._begun = self._begun, None
            self._learn(taken.recorded_call)
            if begun is not None and begun not in self._cache:
                begun.end_compiling()
        taken.outcome.tape.collectives.clear()

    def distrust(self, key: Any, wrong: Replay, why: str) -> None:
        """Let calls like those of ``wrong`` run in eager from now on."""
        for replay in [wrong, *self._cache.others(key, wrong)]:
            self._drop(replay)
        self.signatures[key] = SignatureState(eager=why, serves=wrong.serves)

    def weak_confirmation(self, key: Any, replay: Replay, outcome: Outcome, call: Call) -> None:
        """Let ``replay``, made of one call, be confirmed by the next other batch."""
        batch = Batch.of(call)
        replay.weak_confirmation = WeakConfirmation(key, batch, {})
        self._doubted[replay] = Draft(outcome.forgotten(), None, batch)

    def _signature(self, key: Any, options: Options) -> SignatureState:
        """The least recently used go first: a value that moves is a new signature each time."""
        known = self.signatures.pop(key, SignatureState())
        self.signatures[key] = known
        while len(self.signatures) > _SIGNATURES * options.cache_size:
            del self.signatures[next(iter(self.signatures))]
        return known

    def alone(
        self, step: Step, call: Call, why: str, said: bool = True, observed: bool = False
    ) -> Taken:
        """Run a call of which nothing is learnt; ``why`` is to be said, once, unless it was."""
        if not said:
            self.fallback.say(why, "", EagerWarning)
        outcome = self._take(step, call, observed, False)
        outcome.eager = outcome.eager or why
        self.fallback.count(outcome.serves, outcome.eager)
        return Taken(outcome, None)

    def _learn(self, recorded_call: RecordedCall) -> None:
        known, outcome = recorded_call.known, recorded_call.outcome
        if outcome.plain or outcome.eager:
            self._unlearnt(recorded_call)
            return
        if known.drafts and outcome.moved:
            self._stay_eager(
                known,
                Reason.MOVED,
                f"{outcome.moved} moves in the optimizer's own step, which may go by it. A number "
                "that is kept in optimizer.state or in a param group may move",
            )
            return
        drafts = [*known.drafts, *recorded_call.weak]
        found = [(draft, difference(draft.outcome, outcome)) for draft in drafts]
        for draft, apart in found:
            if draft in recorded_call.weak and apart is not None and not apart.is_of_state:
                self._drop(draft.replay)
                known.dropped += 1
                if known.dropped == PATIENCE:
                    why = f"with each new batch, {apart.what}{apart.at}"
                    self._stay_eager(known, apart.reason, why)
                    return
        equal = [draft for draft, apart in found if apart is None]
        # Last are those of programs that serve already: none is made beside one.
        known.drafts = [draft for draft in known.drafts if draft not in equal[:-1]]
        if equal:
            self._learn_again(recorded_call, equal[-1])
            return
        others = [other for _, other in found if other is not None]
        nearest = next((other for other in others if other.reason is not Reason.TRAINS), None)
        self._draft(recorded_call, nearest or next(iter(others), None))

    def _learn_again(self, recorded_call: RecordedCall, draft: Draft) -> None:
        """A call like one before it."""
        known, outcome = recorded_call.known, recorded_call.outcome
        if draft.replay is not None:
            self._confirm(recorded_call, draft, draft.replay)
        elif outcome.stable:  # the other was not, for the numbers that were found in it
            known.drafts.remove(draft)
            self._draft(recorded_call, None)
        elif outcome.relaid:
            self._stay_eager(
                known,
                Reason.LAYOUT,
                f"each call leaves {outcome.relaid} in another shape, layout or memory than before",
            )
        elif recorded_call.idles and outcome.strays:
            place = outcome.strays[0].name
            at = "" if place.where is None else f" (at {place.where})"
            why = f"each call puts tensors into {place.shown}{at}, and none has before"
            self._stay_eager(known, Reason.STRUCTURE, why, later=True)

    def _unlearnt(self, recorded_call: RecordedCall) -> None:
        """Nothing was written down of a call; where others may be, a few more are tried."""
        known, outcome = recorded_call.known, recorded_call.outcome
        if outcome.plain:
            known.plain, known.made_again = outcome.plain, known.made_again + 1
            if not self._cache.holds(recorded_call.key):
                self._stay_eager(known, Reason.MOVED, outcome.plain)
            return
        if outcome.lenient:
            self._stay_eager(known, Reason.NO_PROGRAM, outcome.eager)
            return
        if not outcome.passing:
            self._refuse(recorded_call, NoProgram(f"{outcome.eager}."))
            return
        self._disturbed(known, outcome.eager, served=self._cache.holds(recorded_call.key))

    def _disturbed(self, known: SignatureState, why: str, *, served: bool = False) -> None:
        """``served``: programs run its other calls."""
        known.disturbed += 1
        if known.disturbed >= 2 * PATIENCE:
            known.rest(why) if served else self._stay_eager(known, Reason.AROUND, why)

    def _drop(self, replay: Replay | None) -> None:
        if replay is not None and replay in self._cache:
            self._cache.remove(replay)

    def _draft(self, recorded_call: RecordedCall, apart: Difference | None) -> None:
        known, outcome, size = (
            recorded_call.known,
            recorded_call.outcome,
            recorded_call.options.cache_size,
        )
        known.unlike(apart)
        if apart is not None and known.others == 2 and apart.reason is Reason.DATA:
            self.fallback.warn_of_pointer(outcome, apart)
        moves = known.restless >= PATIENCE or known.restless_constants >= 2
        moves = self._varying_values.holds(apart, size) or moves or known.others >= size
        idles = recorded_call.idles
        if idles and (why := recorded_call.why_idle(apart)):
            self._stay_eager(known, Reason.IDLE, why, later=True)
            return
        if moves or (idles and apart is not None):
            self._give_up(recorded_call)
            return
        replay, next_one = None, outcome if outcome.stable else predicted(outcome)
        if next_one is not None:
            try:
                replay = self._compile(next_one, recorded_call.call)
            except Exception as error:  # eager computes the same: whatever it is, it goes on
                ours = not recorded_call.options.passes.inserted
                fault = ours and isinstance(error, (PassFailed, VerifyError))
                if isinstance(error, GraphError) and not fault:
                    self._refuse(recorded_call, error)
                else:
                    limit = isinstance(error, LostWrite)
                    why = f"no program can be made of it: {error if limit else words(error)}"
                    self._stay_eager(known, Reason.NO_PROGRAM if limit else Reason.FAULT, why)
                return
            if not any(isinstance(one.value, float) for one in outcome.tape.expectations):
                at = "" if apart is None else f"{apart.what}{apart.at}"
                self._cache.warn_of_thrash(size, recorded_call.moved or at or recorded_call.why_not)
        is_first = len(self.signatures) == 1 and not any(one.replay for one in known.drafts)
        known.drafts.insert(0, recorded_call.draft(replay, next_one))
        del known.drafts[size:]
        if is_first and replay is not None:  # the next recorded call most likely confirms it
            self._begun = replay
            replay.begin_compiling()

    def _confirm(self, recorded_call: RecordedCall, draft: Draft, replay: Replay) -> None:
        known, outcome = recorded_call.known, recorded_call.outcome
        if draft in known.drafts:
            known.drafts.remove(draft)
        repeated = repeated_in(draft.outcome, outcome)
        draft.outcome.out_tree.freeze(outcome.out_tree)
        draft.outcome.side_effects.freeze(outcome.side_effects)
        bound = self._bound(recorded_call, replay)
        if bound is None:
            return
        self._warn_of_writes(outcome, repeated)
        replay = bound
        if not self._together.confirms(replay):
            known.drafts.insert(0, draft)
            self._disturbed(known, NOT_THERE)
            return
        try:
            left, eager = Left.of(outcome), as_eager(replay, recorded_call.options)
            wrong = unlike(eager, recorded_call.start, recorded_call.call, left)
        except ValueMoved as moved:
            self._unserved(recorded_call, draft, replay, moved)
            return
        except Exception as error:  # eager has made the step: whatever it is, that stands
            self._together.explain(error)
            wrong = f"it fails with {type(error).__name__}: {error}"
        if wrong == OTHER_DRAWS and recorded_call.start.others.ran():
            known.drafts.insert(0, draft)
            self._disturbed(known, ELSEWHERE)
            return
        if wrong:
            self._drop(replay)
            odd = unrepeated(replay, recorded_call.start, recorded_call.call)
            why = f"its program does not compute what eager does: {wrong}"
            fault = Because(Reason.FAULT, why)
            known.stay_eager(fault if odd is None else Because(Reason.NO_PROGRAM, str(odd)))
            warn(
                f"The program of this step is not confirmed: {wrong}. "
                f"{blame(recorded_call.options, odd)} The step goes on in eager.",
                ConfirmWarning,
            )
            return
        replay.confirmed(outcome.side_effects.plus(list(repeated.values())))
        self.fallback.say_left_out(draft.outcome, outcome)
        known.restless = known.restless_constants = known.others = 0
        known.latest = draft.outcome if recorded_call.idles else None
        self._varying_values.came_back(outcome)
        self.fallback.began()
        if replay not in self._cache:
            self._cache.add(recorded_call.key, replay, recorded_call.options.cache_size)
        known.confirmed(replay)
        self._doubted.pop(replay, None)
        batches = draft.batch, recorded_call.start.batch
        replay.weak_confirmation = WeakConfirmation.about(
            recorded_call.key, batches, draft.outcome, outcome
        )
        if replay.weak_confirmation is None:
            known.dropped = 0
        else:
            draft.replay = None  # only the cache keeps a program alive
            self._doubted[replay] = draft

    def _bound(self, recorded_call: RecordedCall, replay: Replay) -> Replay | None:
        """The program over the tensors that are there now; None when it has to wait for others."""
        after, found = recorded_call.outcome.after, recorded_call.outcome.found
        if replay.refit(after, found):
            return replay
        self._drop(replay)
        try:
            replay = self._compile(recorded_call.outcome, recorded_call.call)
        except Exception as error:  # eager has made the step
            why = f"no program can be made of it: {words(error)}"
            self._stay_eager(recorded_call.known, Reason.FAULT, why)
            return None
        if replay.refit(after, found):
            return replay
        if recorded_call.idles and (replaced := recorded_call.outcome.replaced_object):
            why = f"each call puts another object at {replaced}: keep one there"
            self._stay_eager(recorded_call.known, Reason.IDLE, why, later=True)
            return None
        recorded_call.known.drafts.insert(0, recorded_call.draft(replay))
        return None

    def _unserved(
        self, recorded_call: RecordedCall, draft: Draft, replay: Replay, moved: ValueMoved
    ) -> None:
        """A call like the draft that its program cannot serve, and so cannot be confirmed by.

        What Python reads moves from micro-batch to micro-batch, of which the first is recorded; or
        an argument lies elsewhere in its memory.
        """
        known = recorded_call.known
        if replay not in self._cache:
            known.drafts.insert(0, draft)
        known.others += 1
        what = f"a program cannot serve each such call: {moved}"
        known.last = Difference(Reason.DATA, what, moved.line)
        if known.others >= recorded_call.options.cache_size:
            self._give_up(recorded_call)

    def _told_by(self, key: Any, call: Call) -> list[Draft]:
        """Recordings of weakly confirmed programs that ``call`` can confirm."""
        return [
            replace(draft, replay=replay)
            for replay, draft in list(self._doubted.items())
            if replay.weak_confirmation is not None
            and replay.weak_confirmation.key == key
            and replay in self._cache
            if replay.needs_confirming_for(call) and not replay.why_not()
        ]

    def _stay_eager(
        self,
        known: SignatureState,
        reason: Reason,
        why: str,
        about: str = "",
        kind: type[EagerWarning] = EagerWarning,
        fix: str = "",
        *,
        later: bool = False,
        until: Read | Name | None = None,
    ) -> None:
        """Leave a signature in eager.

        Args:
            reason: the kind, where ``why`` is no `Because`.
            why: the text of the reason.
            about: the subject, of which is warned once.
            fix: the advice, where it is not the one of ``kind``.
            later, until: when it is tried again, as for `SignatureState.stay_eager`.
        """
        reason = why.reason if isinstance(why, Because) else reason
        known.stay_eager(Because(reason, self.fallback.spelled(why)), later=later, until=until)
        self.fallback.say(why, about, kind, fix)

    def _give_up(self, recorded_call: RecordedCall) -> None:
        known, apart = recorded_call.known, recorded_call.known.last
        assert apart is not None
        self._varying_values.add(apart)
        said = apart.said()
        stops = apart.never_settles or (apart.reason is Reason.ASSIGNED and not recorded_call.idles)
        until = apart.read if stops else None  # it may stop at a number
        self._stay_eager(known, said.why.reason, *said, later=until is None, until=until)

    def _refuse(self, recorded_call: RecordedCall, error: GraphError) -> None:
        """Note a final error of a signature: its next call raises, or runs in eager."""
        known, options = recorded_call.known, recorded_call.options
        if isinstance(error, NoProgram) and not self.fallback.raises(options):
            self._stay_eager(known, Reason.NO_PROGRAM, error.reason)
            return
        known.refused = afresh(error)
        known.drafts.clear()

    def _warn_of_writes(self, outcome: Outcome, repeated: Mapping[Any, Assigned]) -> None:
        written = [change for change in outcome.changes if not change.read]
        written += [one for key, (_, one) in outcome.repeated.items() if key not in repeated]
        if written:
            warn_written(written)
