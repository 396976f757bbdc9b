"""Reruns: past steps run once more from a kept state, after which all state is restored."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch

from ..errors import HistoryDiffers, SharedMemory
from ..history.history import History, Kept, Record, put_numbers_back
from ..history.results import Result, difference, results_of
from ..history.settings import Settings
from ..library import ValueMoved
from ..live.inputs import Call
from ..lower import Target
from ..passes import pipeline, run
from ..replay.cuda.cuda_graph import Calls
from ..replay.replay import Replay
from ..structure import tensors_in
from .programs import Programs
from .spot_checks.schedule import SpotChecks


class RerunStep(NamedTuple):
    """The result of a rerun of one step."""

    returned: list[tuple[str, torch.Tensor]]
    """(path, tensor) of what `build` returned."""
    loss: torch.Tensor | None
    skipped: bool
    """True when a grad scaler kept an optimizer from stepping."""


class Reruns:
    """The last steps of a Graph, kept and run again."""

    def __init__(self, programs: Programs, checks: SpotChecks) -> None:
        self._programs, self._live, self._cache = programs, programs.live, programs.cache
        self._checks = checks
        self.history = History()
        self._twins: dict[int, Replay] = {}
        """Programs as they ran before Inductor's code took over, during reruns."""

    # --- before and after a call ------------------------------------------------------------------

    def kept(
        self, replay: Replay | None, call: Call, run: Callable[[Replay | None, Call], Any]
    ) -> Any:
        """Run a call by ``run``, and keep what it takes to run it again."""
        record, checked = self._note(call, replay), self._checks.count
        returned = run(replay, call)
        record.gave = results_of(returned)
        if self._checks.count != checked:
            record.program = None  # its numbers are eager's
        return returned

    def _note(self, call: Call, replay: Replay | None) -> Record:
        """The record of a call, with the state before it."""
        live, options = self._live, self._live.options
        with live.signals, live.scaler_started():
            return self.history.note(
                (options.history, options.history_every or options.history),
                live.progress.step + 1,
                call,
                replay,
                live.optimizers,
                self._programs.snapshot,
                self._settings,
            )

    def _settings(self) -> Settings:
        """The attributes of modules, and those that the user set on the Graph."""
        step, graph = self._live.scan(), self._live.owner
        modules = [(vars(module), ()) for module in step.modules.values()]
        tensors = [leaf.value for _, leaf in step.tensors()]
        return Settings([*modules, (vars(graph), graph._own_names)], tensors)

    # --- reruns -----------------------------------------------------------------------------------

    @contextmanager
    def going_back(self) -> Iterator[None]:
        """In the block steps may be rerun; at its end all state is as before."""
        stats = [(one, vars(one).copy(), one.seconds.copy()) for one in self._cache]
        hits, torn = self._cache.hits, self._live.signals.torn
        with self._live.lock.lock, self._live.signals, self._live.scaler_started():
            before = self._programs.snapshot()
            try:
                with before.kept():
                    yield
            finally:
                self._twins.clear()
                self._live.signals.torn, self._cache.hits = torn, hits
                for replay, known, seconds in stats:
                    replay.runs, replay.loss = known["runs"], known["loss"]
                    replay.first_seconds, replay.seconds = known["first_seconds"], seconds
                self._look_anew()

    def _look_anew(self) -> None:
        """Have kept casts of the weights recomputed."""
        for replay in self._cache:
            replay.derived.forget()

    def back_to(self, kept: Kept) -> None:
        """Restore all state from before that step."""
        kept.snapshot.restore()
        kept.random.put_back()
        self._look_anew()

    def given(self, record: Record) -> Call:
        """The call of a step, and numbers and generators as it found them."""
        if record.held is None:
            raise HistoryDiffers(
                f"Step {record.step} of {self._live.name} had arguments that cannot be kept: they "
                "could not be bound.",
                fix="give it tensors, numbers, strings, and containers and dataclasses of them.",
            )
        record.random.put_back()
        if record.settings is not None:
            record.settings.put_back()
        put_numbers_back(self._live.optimizers, record.numbers)
        return record.held.again()

    def step_again(self, record: Record) -> RerunStep:
        """One step, by the program that ran it or, to the same bits, in eager.

        Raises:
            HistoryDiffers: its results differ from those of its first run.
        """
        done = self._run_again(record)
        now = [Result.of(*one) for one in done.returned]
        apart = "" if record.gave is None else difference(record.gave, now)
        if apart:
            raise HistoryDiffers(
                f"Step {record.step} of {self._live.name} does not give what it gave: {apart}. "
                "The steps before it, run again, do not lead to the state that was there, or it "
                "reads what is not kept."
            )
        return done

    def _run_again(self, record: Record) -> RerunStep:
        call = self.given(record)
        replay = self.program_of_step(record, call)
        if replay is not None:
            try:
                returned = replay.run(call)
            except (ValueMoved, SharedMemory):  # nothing has happened
                return self._in_eager_again(call)
            stepped = replay.stepped(self._live.optimizers)
            self._live.schedulers.step(lambda: replay.loss, stepped)
            tensors = tensors_in(returned, "output")
            return RerunStep(tensors, replay.loss, len(stepped) < len(self._live.optimizers))
        return self._in_eager_again(call)

    def program_of_step(self, record: Record, call: Call) -> Replay | None:
        """The program for the rerun of a step; None for a step that runs in eager."""
        found = self._programs.find(call)
        if found is None or not self._programs.may_serve(found, call):
            return None
        if found.code.regions and not record.ran_compiled(found):
            return self._on_aten(found)
        return found

    def _on_aten(self, replay: Replay) -> Replay | None:
        """The program of ``replay`` as it ran before the switch to Inductor's code."""
        twin = self._twins.get(id(replay))
        if twin is None:
            options = self._live.options
            program = run(replay.captured.program, pipeline(options), options.passes)
            code = self._cache.graphs.lower(program, f"{self._live.name} again", Target(options))
            twin = self._twins[id(replay)] = Replay(replay.captured, code, options, Calls())
        # The rerun of a first step makes new slots, and they are not those of the capture.
        return twin if twin.refit(self._live.scan()) else None

    def _in_eager_again(self, call: Call) -> RerunStep:
        outcome = self._live.take(self._live.scan(), call.noted(), False, compared=True)
        self._live.signals.torn = ""
        stepped = outcome.stepped_of(self._live.optimizers) if self._live.optimizers else []
        if self._live.optimizers:
            self._live.schedulers.step(lambda: outcome.loss, stepped)
        tensors = tensors_in(outcome.returned, "output")
        loss = outcome.loss if isinstance(outcome.loss, torch.Tensor) else None
        return RerunStep(tensors, loss, len(stepped) < len(self._live.optimizers))

    def states_now(self) -> dict[str, Any]:
        """Every tensor of the state by name."""
        return {str(leaf.fqn): leaf.value for _, leaf in self._live.scan().tensors()}
