"""The programs of a Graph: found for a call, or made of a dry run for those who look at one."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from typing import Any

from .._torch.surroundings import ambient, unfollowed
from ..capture.program_of import Captured
from ..collection import weakly
from ..errors import GraphError, NoProgram, NotCompiled, StepFailed, UnsupportedInput
from ..history.history import unwritten
from ..library import ValueMoved
from ..live.inputs import Call, unbound
from ..live.snapshot import Snapshot
from ..live.step import Step
from ..record.compare.outcome import Outcome
from ..record.trying import Trying
from ..replay.cache import ProgramCache
from ..replay.replay import Replay
from .compiler import Compiler
from .fallback import no_advice_taken
from .live_step import LiveStep
from .ranks.together import Together
from .recordings import Recordings
from .signatures import words


class Programs:
    """Finds the program that serves a call, and makes one from a dry run.

    Holds the cache, the compiler, the recordings of each signature, and the other ranks.
    """

    def __init__(self, live: LiveStep) -> None:
        self.live = live
        self.cache = ProgramCache()
        self.compiler = Compiler(live, self.cache)
        self.together = Together(
            type(live.owner).__name__, lambda: live.options, weakly(self._give_back, _nothing)
        )
        self.recordings = Recordings(
            self.cache,
            Trying(live.take, live.snapshot),
            partial(self.compiler.compile, goes_on=True),
            self.together,
            lambda: live.words,
        )

    def forget(self) -> None:
        """Drop all programs and recordings."""
        self.cache.clear()
        self.recordings.clear()

    def _give_back(self) -> None:
        """Drop the programs: the process group that they name ends."""
        self.forget()
        self.cache.graphs.release()

    def key(self, call: Call) -> Any:
        """The key of a call: its arguments, ambient state, options, and `build`."""
        return (call.key, *self._surroundings())

    def _surroundings(self) -> tuple[Any, ...]:
        """The parts of a key besides the call."""
        live = self.live
        return (ambient(), live.config.options, live.build_function, live.trained.added)

    def why_eager(self, call: Call) -> str:
        """Why calls of this signature stay in eager; empty where they may have a program."""
        known = self.recordings.signatures.get(self.key(call))
        return known.eager if known is not None else ""

    def serving(self) -> list[Replay]:
        """The programs whose guards hold now."""
        return self.cache.serving(self._surroundings())

    def find(self, call: Call) -> Replay | None:
        """The program whose guards hold for a call now; None for none."""
        if call.apart:
            return None
        key = self.key(call)
        found = self.cache.find(key)
        if found is None and self.cache.holds(key):
            with self.live.signals, self.live.scaler_started():
                found = self.cache.refit(key, self.live.scan())
        return found

    def may_serve(self, replay: Replay, call: Call) -> bool:
        """True when gradients are those that a program starts from, and the batch is confirmed."""
        if replay.captured.own_update:
            fits = replay.captured.side_effects.fits()
        else:
            fits = not self.live.optimizers or replay.guards.no_gradients()
        return fits and not replay.needs_confirming_for(call)

    def others(self, tried: Replay, key: Any, call: Call) -> Iterator[Replay]:
        """The other programs for a call, of that key, that ``tried`` seemed to serve."""
        for replay in self.cache.others(key, tried):
            if self.may_serve(replay, call):
                yield replay

    def unbound(
        self, args: tuple[Any, ...], kwargs: dict[str, Any], error: UnsupportedInput
    ) -> Call:
        """A call that runs in eager, for an argument of it that cannot be bound.

        Raises:
            UnsupportedInput: ``error``, where that is an error.
        """
        self.live.check_arguments(args, kwargs)
        call = unbound(args, kwargs, error.way_out)
        self.recordings.unbound(self.key(call), error, self.live.config.options)
        return call

    def drop_failing(self, failed: StepFailed, call: Call) -> str:
        """Drop programs that fail in most of their calls; why this call runs in eager."""
        at = f" (at {failed.where})" if failed.where else ""
        why = f"an op of its program raises {type(failed.__cause__).__name__}{at}"
        self.recordings.drop_failing(self.key(call), why, self.live.config.options)
        return why

    def candidates(self, call: Call) -> Iterator[Replay]:
        """The programs that may serve a call now; then one compiled from it that is not cached."""
        found = self.find(call)
        if found is not None:
            yield found
            yield from self.cache.others(self.key(call), found)
        yield self.compiler.compile(self.dry_outcome(call), call)

    # --- to look at -------------------------------------------------------------------------------

    @property
    def is_compiled(self) -> bool:
        """True after the first call."""
        return self.compiler.latest is not None or self.live.last_call is not None

    def last(self) -> tuple[Replay, Call, Any]:
        """The program that was made last, of which call, and its arguments described.

        Raises:
            NotCompiled: before the first call; `NoProgram` where none can be made, with the reason.
        """
        if self.compiler.latest is None and self.live.last_call is not None:
            with self.live.signals:
                self._compile_last(*self.live.last_call)
        if self.compiler.latest is None:
            raise NotCompiled(f"{self.live.name} has not been called yet.")
        return self.compiler.latest

    def _compile_last(self, outcome: Outcome, call: Call) -> None:
        """Make a program of a call that is not confirmed."""
        try:
            self.compiler.compile(outcome, call, goes_on=True)
        except NoProgram:
            raise
        except Exception as error:  # the call has run, and the next ones do: whatever it is
            what = error.what.rstrip(".") if isinstance(error, GraphError) else words(error)
            raise NoProgram(
                f"No program could be made of the last call: {what}.",
                where=error.where if isinstance(error, GraphError) else None,
                fix="call it again: graph.report() says what becomes of it.",
                falls_back=False,
            ) from error

    def last_or_none(self) -> tuple[Replay | None, Call | None, str]:
        """`last`; where there is no program, None with the last call and the reason."""
        try:
            return *self.last()[:2], ""
        except (NoProgram, NotCompiled) as error:
            last = self.live.last_call
            return None, None if last is None else last[1], error.what

    def inspected(
        self, look: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[Replay, Call, Any]:
        """The program for a call, the call, and the result of ``look`` for both."""
        live = self.live
        with live.lock.lock, live.signals, no_advice_taken(live.options):
            self.cache.bring_home()
            call = live.inputs.bind(args, kwargs)
            with self.with_states(call):
                held = (live.scan, live.owners(), live.options)
                for replay in self.candidates(call):
                    if not live.own_update:
                        replay.guards.check_gradients(replay.name_of)
                    with live.building(), suppress(ValueMoved):  # it is for other values
                        return replay, call, look(replay, live.build, call, *held)
        raise AssertionError("a program fits the call that it was made of")

    # --- dry runs ---------------------------------------------------------------------------------

    def dry_program(self, call: Call) -> Replay | None:
        """The program for a call, made from a dry run; None for a step that cannot have one.

        A dry run with another batch confirms it.
        """
        found = self.find(call)
        if found is not None and found.needs_confirming_for(call):
            with self.undone(call) as step:
                options = self.live.config.options
                self.recordings.learn(self.recordings.take(self.key(call), step, call, options))
            found = self.find(call)
        if found is None:
            scanned = self.live.scan()
            if scanned.impossible or scanned.scripted or scanned.lazy or call.apart or unfollowed():
                return None  # TorchScript's methods count calls: no dry run can be undone
            outcome = self.dry_outcome(call, strict=False)
            if not outcome.is_whole:
                return None  # states are not there yet, or it is skipped: eager's own step
            found = self.compiler.compile(outcome, call)
            self.cache.add(self.key(call), found, self.live.config.options.cache_size)
            self.recordings.weak_confirmation(self.key(call), found, outcome, call)
        return found

    def captured(self, call: Call) -> Captured:
        """The captured program of a call, made from a dry run and not cached."""
        return self.compiler.program_of(self.dry_outcome(call), call)

    def dry_outcome(self, call: Call, *, strict: bool = True) -> Outcome:
        """The outcome of a dry run of a call.

        ``strict``: raise where no program can hold the step.
        """
        with self.undone(call) as step:
            return self.live.take(step, call, True, strict)

    @contextmanager
    def undone(self, call: Call) -> Iterator[Step]:
        """Undo every effect of the block on state, arguments and random generators."""
        self.cache.bring_home()
        try:
            with self.live.undone(call) as step:
                yield step
        finally:
            self.cache.forget_casts()  # versions count again from where they were

    def snapshot(self) -> Snapshot:
        """A snapshot of all state, to be kept: without the tensors that no program writes."""
        return self.live.snapshot(self.live.scan(), None, unwritten(list(self.cache)))

    @contextmanager
    def with_states(self, call: Call) -> Iterator[None]:
        """In the block, all is there that a first step makes: one runs before, undone after."""
        with ExitStack() as stack:
            if self.find(call) is None:
                outcome = self.dry_outcome(call)
                begins = outcome.passing or not outcome.stable
                if begins and (outcome.own_update or not outcome.step.has_gradients()):
                    self.live.take(stack.enter_context(self.undone(call)), call, False)
            yield


def _nothing() -> None:
    """The `_give_back` of programs that were freed: nothing is left to release."""
