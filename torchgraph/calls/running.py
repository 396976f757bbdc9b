"""The path of a call: a program runs it, or it runs as eager runs it and teaches the next."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

from .._torch import any_autocast
from .._torch.consumed import Consumed
from .._torch.surroundings import kept_casts, uncompiled
from ..collection import paused
from ..distributed.errors import OutsideOfStep
from ..distributed.replicas import inside_no_sync
from ..errors import EagerWarning, GraphBroken, SharedMemory, StepFailed, UnsupportedInput
from ..guards import patching
from ..history.history import History, Record
from ..history.results import results_of
from ..history.settings import Settings
from ..library import ValueMoved
from ..live.inputs import Call, paths, unbound
from ..options.options import Options
from ..passes import pipeline
from ..passes.runner import check_names
from ..pipeline.alike import check_alike
from ..replay.interrupts import CUT_SHORT
from ..replay.replay import Replay
from ..structure import Contents
from .call_lock import CallLock
from .in_eager import (
    BESIDE,
    bare_results,
    in_words,
    is_bare,
    may_run_beside,
    run_bare,
    updated,
    why_alone,
)
from .outline import OTHERS, Outlines, quickly_apart, requires_grad
from .signatures import Signature
from .spot_checks.spot_checks import SpotChecking
from .stepping import in_build


class Running(SpotChecking):
    """Runs a call.

    Args:
        name, module_text, block_text: as for `Stepping`.
    """

    __slots__ = ("_history", "_outlines")

    def __init__(
        self, name: str, module_text: Callable[[str], str], block_text: Callable[[str], str]
    ) -> None:
        super().__init__(name, module_text, block_text)
        self._call_lock = CallLock(self._signals)
        self._met = self.config.options
        """The options of the last call."""
        self._history = History()
        self._outlines = Outlines()

    def _run_step(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """One call, from its arguments to what it returns."""
        if broken := self._cache.broken or self._signals.torn:
            raise GraphBroken(f"An earlier step of {self._graph_name} failed half-way ({broken}).")
        options = self.config.options
        if self._outlines.known:
            serves = self._serves_in_eager(args, kwargs, options)
            if serves is not None:
                return self._as_it_stands(serves, args, kwargs)
        self._schedulers.check()
        if options is not self._met or options.data_parallel is not None:
            self._meet_options()
        since = patching.ended
        call, replay = self._fit(args, kwargs)
        if replay is None and patching.was_seen(since):
            with self._signals, patching.alone():
                call, replay = self._fit(args, kwargs)
        try:
            run = self._run_kept_call if options.history else self._run_call
            returned = run(replay, call)
        except Exception:  # what leaves a step half done has told the cache
            self._signals.torn = ""
            raise
        if self._outlines.stays is not None:
            self._outlines.add(args, kwargs, options, self._build_function)
        return returned if options.buckets is None else self._without_padding(returned)

    def _run_call(self, replay: Replay | None, call: Call) -> Any:
        """A call, by its program where there is one; the other ranks know of it."""
        if not self._together.begins():
            return self._recorded(call) if replay is None else self._served(replay, call)
        with self._together.call():
            return self._recorded(call) if replay is None else self._served(replay, call)

    def _run_kept_call(self, replay: Replay | None, call: Call) -> Any:
        """Run a call that is kept for a rerun."""
        record, looked = self._note(call, replay), self._spot_checks.count
        returned = self._run_call(replay, call)
        record.gave = results_of(returned)
        if self._spot_checks.count != looked:
            record.program = None  # its numbers are eager's
        return returned

    def _serves_in_eager(
        self, args: tuple[Any, ...], kwargs: dict[str, Any], options: Options
    ) -> str | None:
        """A description of the arguments of a call known to stay in eager; None for another."""
        known = self._outlines.find(args, kwargs, options, self._build_function)
        return None if known is None else self._recordings.stays(known, options)

    def _without_padding(self, returned: Any) -> Any:
        """The results of a padded call, without the rows of padding."""
        return returned

    @property
    def _build_function(self) -> object:
        """The function of `build`, which may be replaced."""
        return getattr(self.build, "__func__", None)

    def _meet_options(self) -> None:
        """Apply the options of this call, which may differ from those of the last."""
        if self.config.options.data_parallel is not None and inside_no_sync():
            raise OutsideOfStep(f"{self._graph_name} is called inside of tg.no_sync().")
        if self.config.options is self._met:
            return
        check_names(pipeline(self.config.options), self.config.options.passes)
        self._met = self.config.options
        self._cache.shrink(self._met.cache_size)
        self._spot_checks.follow(self._met.look_again, self._cache.hits)
        self._recordings.begin_anew()
        if not self._met.history:
            self._history.forget()

    def _as_it_stands(self, serves: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run the plain function for a call known to stay in eager."""
        self._progress.count(serves)
        self._cache.forget_casts()
        token, own = in_build.set(True), vars(self)  # no more than has to be, and in one place
        own["_bare"] = True
        try:
            with uncompiled(), Consumed() as roots:
                returned = self.build(*args, **kwargs)
        finally:
            own["_bare"] = False
            in_build.reset(token)
        found = quickly_apart(returned, args, kwargs, roots)
        if found is not OTHERS:
            return found
        self._outlines.clear()
        assert self._last_call is not None
        return bare_results(
            returned, Contents(args, kwargs), (), self._last_call[0].step, ends=True
        )[0]

    def _note(self, call: Call, replay: Replay | None) -> Record:
        """Keep the state for a rerun of the call."""
        limits = (self._met.history, self._met.history_every or self._met.history)
        with self._signals, self._scaler_started():
            return self._history.note(
                limits,
                self._progress.step + 1,
                call,
                replay,
                self._optimizers,
                lambda: self._snapshot(self._scan()),
                self._settings,
            )

    def _settings(self) -> Settings:
        """The attributes of modules, and those that the user set on the Graph."""
        step = self._scan()
        modules = [(vars(module), ()) for module in step.modules.values()]
        tensors = [leaf.value for _, leaf in step.tensors()]
        return Settings([*modules, (vars(self), self._own_names)], tensors)

    def _served(self, replay: Replay, call: Call) -> Any:
        """A call for which there is a program.

        Where an op of it raises, eager runs the call from its start: what it raises is the user's.
        """
        try:
            if not (self._has_gradients(replay) or replay.needs_confirming_for(call)):
                try:
                    return self._replayed(replay, call)
                except (ValueMoved, SharedMemory):  # nothing has happened
                    pass
            return self._other(replay, call)
        except StepFailed as failed:
            if not failed.undone or self._together.takes_part:  # the others are elsewhere
                raise
            at = f" (at {failed.where})" if failed.where else ""
            why = f"an op of its program raises {type(failed.__cause__).__name__}{at}"
            self._recordings.drop_failing(self._key(call), why, self.config.options)
        return self._recorded(call, why)  # out here, where nothing of the run is held any more

    def _fit(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Call, Replay | None]:
        """The bound call, and the program that serves it; None for none yet."""
        try:
            call = self._inputs.bind(args, kwargs)
        except UnsupportedInput as error:
            return self._unbound(args, kwargs, error), None
        return call, self._program_for(call)

    def _unbound(
        self, args: tuple[Any, ...], kwargs: dict[str, Any], error: UnsupportedInput
    ) -> Call:
        """A call that runs in eager, for an argument of it; else raises ``error``."""
        call = unbound(args, kwargs, error.way_out)
        self._recordings.unbound(self._key(call), error, self.config.options)
        return call

    def _replayed(self, replay: Replay, call: Call) -> Any:
        """Run the program; then the schedulers step, as the user's loop would step them."""
        if self._schedulers.needs_loss:
            self._schedulers.check_loss(replay.returns_loss)
        options, calls = self.config.options, self._progress.calls[replay.serves]
        together = self._together
        turn = together.turned if together.takes_part else Replay.turn
        around = turn(replay, calls, options)
        if replay.guard_times.is_due:
            self._recordings.fallback.warn_of_guards(self._graph_name, replay)
        is_due = self._cache.hits >= self._spot_checks.from_hits and self._wants_spot_check(replay)
        start = self._start(replay, call) if is_due else None
        checks = start is not None
        if (checks or together.may_meet) and together.goes(replay, call, spot_check=checks):
            return self._spot_check(replay, call, start or self._start(replay, call))
        if self._cache.is_spread:
            self._cache.bring_home(replay)
        with around:
            self._signals.torn = CUT_SHORT if replay.writes else ""
            try:
                returned = self._cache.run(replay, call)
            except BaseException:  # the cache knows what became of the step
                self._signals.torn = ""
                raise
            if any_autocast() and replay.writes:
                kept_casts.updated()
            self._progress.count(replay.serves)
            if self._optimizers:
                stepped = replay.stepped(self._optimizers)
                self._schedulers.step(lambda: replay.loss, stepped)
            self._signals.torn = ""
        return returned

    def _has_gradients(self, replay: Replay) -> bool:
        """True when the gradients that are there are not those that the program starts from."""
        if replay.captured.own_update:
            return not replay.captured.side_effects.fits()
        return bool(self._optimizers) and not replay.guards.no_gradients()

    def _other(self, tried: Replay, call: Call) -> Any:
        """A call that the program which seemed to fit does not serve, or may not."""
        key = self._key(call)
        for replay in self._cache.others(key, tried):
            if self._has_gradients(replay) or replay.needs_confirming_for(call):
                continue
            try:
                returned = self._replayed(replay, call)
            except (ValueMoved, SharedMemory):
                continue
            self._cache.prefer(key, replay)
            return returned
        return self._recorded(call)

    def _check_alike(self, call: Call) -> None:
        """Raise RanksDiffer unless all ranks of a pipeline begin with the same, and go on so."""
        options = self.config.options
        found = dict(zip(paths(call.args, call.kwargs), call.tensors, strict=True))
        if self._last_call is None:
            found |= {str(leaf.fqn): leaf.value for _, leaf in self._scan().tensors()}
        check_alike(options, found)

    def _recorded(self, call: Call, failed: str = "") -> Any:
        """One step as eager runs it; the next one like it may have a program.

        ``failed``: why its program did not run it: then nothing is to be learnt of it.
        """
        self._together.runs_in_eager()
        self._cache.bring_home()
        self._cache.forget_casts()  # torch's fused updates count no version
        if self.config.options.stages:
            self._check_alike(call)
        call, self._signals.torn = call.noted(), ""
        with self._signals, ExitStack() as turn:
            free = turn.enter_context(patching.alone())
            alone = not self._together.takes_part
            if not free and alone and may_run_beside(call, self.config.options, self._schedulers):
                return self._beside(call)
            return self._in_turn(call, turn, failed)

    def _beside(self, call: Call) -> Any:
        """One step as eager runs it, while another thread records: no class is patched for it."""
        self._recordings.fallback.say(BESIDE, BESIDE, EagerWarning)
        with self._building(patched=False):
            step = self._scan()
            with self._replicated(step):
                returned, _ = run_bare(self.build, call, step, ends=self._own_update)
            self._signals.torn = CUT_SHORT
            stepped = [] if self._own_update else updated(step, self.config.options)
            serves = in_words(call)
            self._progress.count(serves)
            self._recordings.fallback.count(serves, BESIDE)
            self._schedulers.step(lambda: None, stepped)
            self._signals.torn = ""
        return returned

    def _in_turn(self, call: Call, turn: ExitStack, failed: str) -> Any:
        """Run a call without a program; no other thread records until ``turn`` is closed."""
        if self._last_call is not None and (serves := self._stays_eager(call)) is not None:
            self._progress.count(serves)
            opened = self._opened(not self._own_update)
            step = self._last_call[0].step
            recorded_call = self._together.recorded_call(None)
            with recorded_call, self._building(), uncompiled(), opened, self._replicated(step):
                returned, _ = run_bare(self.build, call, step, ends=True)
            self._outlines.stays = self._known_by_outline(call, returned)
            return returned
        with self._scaler_started(), paused():
            step = self._scan()
            updates = not self._own_update and bool(self._optimizers)
            why, said = why_alone(step, call, self.config.options, updates=updates)
            if failed:  # the state of a Graph that raises is restored: that is observed
                observed = not self._own_update
                taken = self._recordings.alone(step, call, failed, observed=observed)
            elif why:
                taken = self._recordings.alone(step, call, why, said=said)
            else:
                taken = self._recordings.take(self._key(call), step, call, self.config.options)
                self._outlines.clear()
            turn.close()
            outcome = taken.outcome
            try:
                with self._together.recorded_call(outcome):
                    self._recordings.learn(taken)
            finally:  # whatever comes of that, Ctrl-C or a warning that is an error
                self._progress.count(outcome.serves)
                if self._drive(outcome):
                    taken.be_patient()
                if self._optimizers:
                    stepped = outcome.stepped_of(self._optimizers)
                    self._schedulers.step(lambda: outcome.loss, stepped)
                self._signals.torn = ""
            self._last_call = (outcome.forgotten(), call.without_data())
        return outcome.returned

    def _stays_eager(self, call: Call) -> str | None:
        """A description of the arguments of a call that runs as the plain function; else None."""
        options, own = self.config.options, list(self._schedulers) or not self._own_update
        bare = not own and is_bare(call, options)
        return self._recordings.stays_eager(self._key(call), options) if bare else None

    def _known_by_outline(self, call: Call, returned: object) -> Signature | None:
        """The signature of a call around which nothing is to be done; None for another one."""
        options, key = self.config.options, self._key(call)
        watched = options.history or options.stages or options.data_parallel is not None
        together = self._together.takes_part or self._replicas.groups or self._replicas.shards
        quick = quickly_apart(returned, call.args, call.kwargs) is not OTHERS
        quick = quick and not requires_grad(returned)
        if watched or together or not quick or self._cache.holds(key):
            return None
        return self._recordings.signatures.get(key)

    def _forget(self) -> None:
        self._outlines.clear()
        self._cache.clear()
        self._recordings.clear()
