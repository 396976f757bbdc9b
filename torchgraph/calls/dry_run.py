"""Dry runs: steps that run to be recorded, and whose effects are undone."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

from .._torch.surroundings import ambient, unfollowed
from ..capture.program_of import Captured
from ..collection import paused, weakly
from ..history.history import unwritten
from ..live.inputs import Call
from ..live.snapshot import Snapshot
from ..live.step import Step
from ..options.options import Options
from ..record.compare.outcome import Outcome
from ..record.trying import Trying
from ..replay.interrupts import CUT_SHORT
from ..replay.replay import Replay
from ..structure import Contents
from .compiling import Compiling
from .ranks.together import Together
from .recordings import Recordings


class DryRuns(Compiling):
    """Finds programs for calls, and compiles them from dry runs.

    Args:
        name, module_text, block_text: as for `Stepping`.
    """

    __slots__ = ("_recordings", "_together")

    def __init__(
        self, name: str, module_text: Callable[[str], str], block_text: Callable[[str], str]
    ) -> None:
        super().__init__(name, module_text, block_text)
        compiled = partial(weakly(self._compile_step), goes_on=True)
        self._together = Together(
            type(self).__name__,
            weakly(self._options_now),
            weakly(self._give_back, gone=_nothing_left),
        )
        trying = Trying(weakly(self._take), weakly(self._snapshot))
        self._recordings = Recordings(self._cache, trying, compiled, self._together)

    def _options_now(self) -> Options:
        return self.config.options

    def _give_back(self) -> None:
        """Drop the programs: the process group that they name ends."""
        self._cache.clear()
        self._recordings.clear()
        self._cache.graphs.release()

    def _key(self, call: Call) -> Any:
        return (call.key, *self._things())

    def _why_eager(self, call: Call) -> str:
        """Why calls of this signature stay in eager; empty where they may have a program."""
        known = self._recordings.signatures.get(self._key(call))
        return known.eager if known is not None else ""

    def _things(self) -> tuple[Any, ...]:
        """The key parts of a program besides the call: ambient state, options, and `build`."""
        return (ambient(), self.config.options, getattr(self.build, "__func__", None))

    def _serving(self) -> list[Replay]:
        """The programs whose guards hold now."""
        return self._cache.serving(self._things())

    def _program_for(self, call: Call) -> Replay | None:
        """The program whose guards hold for a call now; None for none."""
        if call.apart:
            return None
        key = self._key(call)
        found = self._cache.find(key)
        if found is None and self._cache.holds(key):
            with self._signals, self._scaler_started():
                found = self._cache.refit(key, self._scan())
        return found

    def _programs_for(self, call: Call) -> Iterator[Replay]:
        """The programs that may serve a call now; then one compiled from it that is not cached."""
        found = self._program_for(call)
        if found is not None:
            yield found
            yield from self._cache.others(self._key(call), found)
        yield self._compile_step(self._dry_outcome(call), call)

    def _dry_program(self, call: Call) -> Replay | None:
        """The program for a call, made from a dry run; None for a step that cannot have one.

        A dry run with another batch confirms it.
        """
        found = self._program_for(call)
        if found is not None and found.needs_confirming_for(call):
            with self._kept(call) as step:
                self._recordings.learn(
                    self._recordings.take(self._key(call), step, call, self.config.options)
                )
            found = self._program_for(call)
        if found is None:
            scanned = self._scan()
            if scanned.impossible or scanned.scripted or scanned.lazy or call.apart or unfollowed():
                return None  # TorchScript's methods count calls: no dry run can be undone
            outcome = self._dry_outcome(call, strict=False)
            if not outcome.is_whole:
                return None  # states are not there yet, or it is skipped: eager's own step
            found = self._compile_step(outcome, call)
            self._cache.add(self._key(call), found, self.config.options.cache_size)
            self._recordings.weak_confirmation(self._key(call), found, outcome, call)
        return found

    def _captured(self, call: Call) -> Captured:
        """The captured program of a call, made from a dry run and not cached."""
        return self._program_of(self._dry_outcome(call), call)

    def _dry_outcome(self, call: Call, *, strict: bool = True) -> Outcome:
        """The outcome of a dry run of a call."""
        with self._kept(call) as step:
            return self._take(step, call, True, strict)

    @contextmanager
    def _kept(self, call: Call) -> Iterator[Step]:
        """Undo every effect of the block on state, arguments and random generators."""
        self._cache.bring_home()
        with self._scaler_started(), paused():  # callbacks of the collector are none of the step
            step = self._scan()
            contents = Contents(call.args, call.kwargs)
            before, torn = self._snapshot(step, call), self._signals.torn
            try:
                with contents.kept(), before.kept():
                    yield step
            finally:
                self._signals.torn = torn if before.is_back else CUT_SHORT

    def _snapshot(self, step: Step, call: Call | None = None) -> Snapshot:
        """All that a step may change, with the arguments of ``call``.

        Without one it is to be kept: schedulers are in it, and no tensor that no program writes.
        """
        tensors = [leaf.value for _, leaf in step.tensors()]
        scalers = [] if self._scaler is None else [self._scaler]
        owners = [self, *step.modules.values(), *self._optimizers, *scalers]
        owners += self._moved_by_build()
        if call is not None:
            found = Snapshot(owners, [*tensors, *call.tensors])
        else:
            frozen = unwritten(list(self._cache))
            found = Snapshot([*owners, *self._schedulers.parts()], tensors, unwritten=frozen)
        for leaf in (step.leaves[position] for position in step.moving):
            found.keep_number(leaf.root, leaf.path[0], leaf.value)
        return found

    @contextmanager
    def _with_states(self, call: Call) -> Iterator[None]:
        """In the block, states exist that a first step makes: one runs before, undone after."""
        with ExitStack() as stack:
            if self._program_for(call) is None:
                outcome = self._dry_outcome(call)
                if not outcome.stable and (outcome.own_update or not outcome.step.has_gradients()):
                    self._take(stack.enter_context(self._kept(call)), call, False)
            yield


def _nothing_left() -> None:
    """The `_give_back` of a Graph that was freed: nothing is left to release."""
