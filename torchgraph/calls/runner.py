"""The path of a call: bind, find, run, commit; or in eager, recorded for the calls to come."""

from __future__ import annotations

from typing import Any

from .._torch import any_autocast
from .._torch.patching import patching
from ..errors import GraphBroken, SharedMemory, StepFailed, UnsupportedInput
from ..library import ValueMoved
from ..live.inputs import Call
from ..options.options import Options
from ..replay.interrupts import CUT_SHORT
from ..replay.replay import Replay
from .eager_path import EagerPath
from .option_changes import OptionChanges
from .padding import Padding
from .programs import Programs
from .rerun import Reruns
from .spot_checks.spot_checks import SpotChecker
from .under_autocast import UnderAutocast


class Runner:
    """Runs the calls of one Graph.

    ``live`` is what runs, ``programs`` finds a program for it, ``eager`` runs what has none. Each
    policy is an object: ``padder`` for shape buckets, ``reruns`` for history, ``spot_checker``,
    ``together`` for other ranks, ``live.schedulers``. Cache and ranks are those of ``programs``.
    """

    def __init__(self, programs: Programs, padder: Padding) -> None:
        self.live, self.programs, self.padder = programs.live, programs, padder
        self.cache, self.together = programs.cache, programs.together
        self.recordings = programs.recordings
        self.eager = EagerPath(programs)
        self.spot_checker = SpotChecker(programs)
        self.reruns = Reruns(programs, self.spot_checker.schedule)
        checks, history = self.spot_checker.schedule, self.reruns.history
        self.option_changes = OptionChanges(programs, checks, history)
        self._under_autocast = UnderAutocast(programs)

    def run(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """One call, from its arguments to what it returns."""
        if not any_autocast():
            return self._run(args, kwargs)
        with self._under_autocast:
            return self._run(args, kwargs)

    def _run(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        live, eager, options = self.live, self.eager, self.live.config.options
        if broken := self.cache.broken or live.signals.torn:
            raise GraphBroken(f"An earlier step of {live.name} failed half-way ({broken}).")
        if eager.outlines.known and (serves := eager.stays(args, kwargs, options)) is not None:
            return eager.as_it_stands(serves, args, kwargs)
        live.schedulers.check()
        if options is not self.option_changes.last or options.data_parallel is not None:
            self.option_changes.apply(options)
        since = patching.ended
        call, replay = self._find(args, kwargs, options)
        if replay is None and patching.was_seen(since):
            with live.signals, patching.alone():
                call, replay = self._find(args, kwargs, options)
        try:
            if options.history:
                returned = self.reruns.kept(replay, call, self._among_ranks)
            else:
                returned = self._among_ranks(replay, call)
        except Exception:  # what leaves a step half done has told the cache
            live.signals.torn = ""
            raise
        if eager.outlines.stays is not None:
            eager.outlines.add(args, kwargs, options, live.build_function)
        return returned if options.buckets is None else self.padder.cut(returned)

    def _find(
        self, args: tuple[Any, ...], kwargs: dict[str, Any], options: Options
    ) -> tuple[Call, Replay | None]:
        """The bound call, and the program that serves it; None for none yet."""
        try:
            if options.buckets is None:
                call = self.live.inputs.bind(args, kwargs)
                return call, self.programs.find(call)
            with self.live.signals:  # programs may be made
                return self.padder.fit(args, kwargs, options)
        except UnsupportedInput as error:
            return self.programs.unbound(args, kwargs, error), None

    def _among_ranks(self, replay: Replay | None, call: Call) -> Any:
        """A call, by its program where there is one; the other ranks know of it."""
        if not self.together.begins():
            return self.eager.run(call) if replay is None else self._served(replay, call)
        with self.together.call():
            return self.eager.run(call) if replay is None else self._served(replay, call)

    def _served(self, replay: Replay, call: Call) -> Any:
        """A call for which there is a program, or another one, or in the end eager.

        Where an op of it raises, eager runs the call from its start: what it raises is the user's.
        """
        try:
            if self.programs.may_serve(replay, call):
                try:
                    return self._replayed(replay, call)
                except (ValueMoved, SharedMemory):  # nothing has happened
                    pass
            key = self.programs.key(call)
            for other in self.programs.others(replay, key, call):
                try:
                    returned = self._replayed(other, call)
                except (ValueMoved, SharedMemory):
                    continue
                self.cache.prefer(key, other)
                return returned
            return self.eager.run(call)
        except StepFailed as failed:
            if not failed.undone or self.together.takes_part:  # the others are elsewhere
                raise
            why = self.programs.drop_failing(failed, call)
        return self.eager.run(call, why)  # out here, where nothing of the run is held any more

    def _replayed(self, replay: Replay, call: Call) -> Any:
        """Run the program, and commit: count, and step the schedulers as the user's loop would."""
        live, together = self.live, self.together
        if live.schedulers.needs_loss:
            live.schedulers.check_loss(replay.returns_loss)
        turn = together.turned if together.takes_part else Replay.turn
        around = turn(replay, live.progress.calls[replay.serves], live.config.options)
        if replay.guard_times.is_due:
            self.recordings.fallback.warn_of_guards(live.name, replay)
        start = self.spot_checker.start_if_due(replay, call)
        if (start or together.may_meet) and together.goes(replay, call, spot_check=bool(start)):
            return self.spot_checker.check(replay, call, start)
        if self.cache.is_spread:
            self.cache.bring_home(replay)
        with around:
            live.signals.torn = CUT_SHORT if replay.writes else ""
            try:
                returned = self.cache.run(replay, call)
            except BaseException:  # the cache knows what became of the step
                live.signals.torn = ""
                raise
            live.progress.count(replay.serves)
            if live.optimizers:
                live.schedulers.step(lambda: replay.loss, replay.stepped(live.optimizers))
            live.signals.torn = ""
        return returned

    def forget(self) -> None:
        """Drop all programs and recordings: the next call records."""
        self.eager.forget()
        self.programs.forget()
