"""``tg.bisect``: the first bad op of the first bad step."""

from __future__ import annotations

import os
import statistics
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import torch
from torch import fx

from ...artifact.saving import path_of
from ...blocks.holder import ModuleHolder
from ...calls.rerun import RerunStep
from ...calls.runner import Runner
from ...errors import (
    HistoryDiffers,
    HistoryTooShort,
    InvalidOption,
    NoHistory,
    NoProgram,
    NotSupported,
    SourceLine,
)
from ...history.history import Record, unwritten
from ...ir.program import Phase, Program, Role, provenance
from ...live.snapshot import Snapshot
from ...options.checking import OWN_CHECK, PositiveInt, checked, shown
from ...replay.replay import Replay
from ...verify.divergence import Divergence
from ...verify.infinities import all_finite, kinds_of
from ...verify.start import ReplaySandbox
from ...verify.watch import OpCall, Watch, first_growth, watched
from ..check import check
from .script import write

_SPIKE = 10.0
"""Times the median of the losses before: by default, a larger one is a spike."""
_MEDIAN_OF = 50
_FEWEST = 5
"""Losses before the default threshold means anything."""


@dataclass(frozen=True)
class BadStep:
    """The first bad step, and the op with which it went bad."""

    step: int
    """Its number, from 1; calls of the Graph are counted."""
    kind: str
    """``"nan"``, ``"spike"`` or ``"mismatch"``."""
    what: str
    """What shows it: ``output is nan``."""
    node: str = ""
    """The op's node; empty when the step has no program, or no op is to blame."""
    op: str = ""
    phase: Phase | None = None
    module: str = ""
    line: SourceLine | None = None
    came_with: str = ""
    """The input or state that was bad before any op ran; the op is the first that reads it."""
    script: str = ""
    """The path of a script that runs the op alone."""
    divergence: Divergence | None = None
    """What `check` says of a mismatch with eager."""

    def __str__(self) -> str:
        lines = [f"Step {self.step} is the first bad one: {self.what}."]
        if self.came_with:
            lines.append(f"  It came with {self.came_with}, before any op ran.")
        if self.node:
            phase = "" if self.phase is None else f", {self.phase.value}"
            where = f" in {self.module}" if self.module else ""
            first = "First read by" if self.came_with else "The first bad op is"
            lines.append(f"  {first} {self.node} ({self.op}{phase}{where})")
        if self.line is not None:
            lines.append(f"  at {self.line}")
        if self.divergence is not None:
            lines.append(str(self.divergence))
        if self.script:
            lines.append(f"  {self.script} runs it alone.")
        return "\n".join(lines)


@checked
def bisect(
    graph: Annotated[Any, OWN_CHECK],
    step: PositiveInt | None = None,
    *,
    above: float | None = None,
    directory: str | os.PathLike[str] = ".",
) -> BadStep | None:
    """Find the first bad step of a Graph's history, and the first bad op in it.

    The steps are run again from a kept state, on the Graph's own objects, which are put back: a
    step is bad when a NaN or an infinity appears in what it returns or leaves, when its loss is a
    spike, or, where none of both is found, when its program differs from eager.

    Args:
        graph: one that had ``config.keep_history(n)`` before the steps.
        step: look no further than this one; None: to the last.
        above: a loss above it is a spike; None: above ten times the median of the last 50.
        directory: where a script that runs the bad op alone is written, and its inputs.

    Returns:
        None when all steps are good.

    Raises:
        NoHistory; HistoryTooShort: it was bad before the first step that is kept; HistoryDiffers:
            the steps do not give what they gave; InvalidOption: there is no such step.
    """
    if not isinstance(graph, ModuleHolder):
        raise InvalidOption(f"bisect takes a Graph, not {shown(graph)}.")
    history = graph._runner.reruns.history
    if not history.records or not history.states:
        if graph.config.options.history:
            raise NoHistory(f"{graph.name} has kept no step yet.", fix="call it, then go back.")
        raise NoHistory(f"{graph.name} keeps nothing of its steps.")
    into = Path(path_of(directory))
    if into.exists() and not into.is_dir():
        raise InvalidOption(f"bisect: directory is a file: {into}.", fix="name a directory.")
    first, last = history.records[0].step, history.records[-1].step
    if step is not None and step > last:
        many = "1 step" if last == 1 else f"{last} steps"
        raise InvalidOption(
            f"bisect: {graph.name} has made {many}: there is no step {step} yet.",
            fix=f"name one from {first} to {last}, or none: then it looks at all.",
        )
    search = _Search(graph._runner, step, above)
    if not search.records:
        raise HistoryTooShort(f"Step {step} is not kept: steps {first} to {last} are.")
    with graph._runner.reruns.going_back():
        found = search.bad() or search.mismatch()
        return None if found is None else search.explained(found, into)


class _Search:
    def __init__(self, runner: Runner, step: int | None, above: float | None) -> None:
        history = runner.reruns.history
        self._runner = runner
        self._above = above
        self._states = {kept.step: kept for kept in history.states}
        self._start = history.states[0]
        options = runner.live.options
        self._each = (options.history_every or options.history) == 1
        """True where each step starts from a state of its own: between them all may be changed."""
        wanted = [record for record in history.records if record.step >= self._start.step]
        self._meant: dict[str, frozenset[str]] = {}
        """What is not finite in a state and no step has put there, as a buffer's mask."""
        self._whole = step is None or step >= wanted[-1].step
        self.records = [record for record in wanted if step is None or record.step <= step]
        if step is not None and step < self._start.step:
            self.records = []

    def bad(self) -> BadStep | None:
        """The first step with a NaN, an infinity or a spike."""
        last = self._runner.programs.snapshot()  # as things are
        self._runner.reruns.back_to(self._start)
        self._meant = self._meant_states()
        known = self._bad_states()
        if known:
            raise HistoryTooShort(
                f"{next(iter(known))} is not finite before step {self._start.step}, the first that "
                "is kept."
            )
        losses: deque[float] = deque(maxlen=_MEDIAN_OF)
        for record, done in self._again():
            found = self._judged(record, done, losses)
            if found is not None:
                if not _is_shown(found, done):
                    self._confirm(record.step, last)
                return found
        if self._whole and not self._each and self._moved(last):
            self._refuse(self.records[-1].step + 1)
        return None

    def _confirm(self, step: int, last: Snapshot) -> None:
        """Refuse a bad step that, run again, is not followed by the recorded states."""
        records = self._runner.reruns.history.records
        after = next((record for record in records if record.step == step + 1), None)
        kept = None if after is None else self._states.get(after.step)
        if after is not None and kept is None:
            self._runner.reruns.step_again(after)
        elif not self._each and self._moved(last if kept is None else kept.snapshot):
            self._refuse(step + 1)

    def _again(self, until: int | None = None) -> Iterator[tuple[Record, RerunStep]]:
        """Run the steps from the start on, up to ``until``."""
        since = self._start.step
        for record in self.records:
            if until is not None and record.step >= until:
                return
            kept = self._states.get(record.step)
            if kept is not None and record.step > self._start.step:
                apart = since < record.step - 1  # else each step starts from a state of its own
                if until is None and apart and self._moved(kept.snapshot):
                    self._refuse(record.step, since)
                since = record.step
                self._runner.reruns.back_to(kept)
                self._check_finite(record.step)
            yield record, self._runner.reruns.step_again(record)

    def _check_finite(self, step: int) -> None:
        """Refuse a state that went bad between two steps."""
        for name in self._bad_states():
            raise HistoryDiffers(
                f"{name} is not finite before step {step}, and was after the step before: "
                "something besides the Graph wrote it."
            )

    def _moved(self, kept: Snapshot) -> bool:
        """True where a state differs from the snapshot; recreated slots count as different."""
        tensors = self._runner.live.scan().tensors()
        return kept.moved({id(leaf.value) for _, leaf in tensors})

    def _refuse(self, step: int, since: int | None = None) -> None:
        begin = self._start.step if since is None else since
        raise HistoryDiffers(
            f"The steps {begin} to {step - 1}, run again, do not lead to the state that was there "
            f"before step {step}: something besides the Graph changed it, or a step depends on "
            "what is not kept."
        )

    def _bad_states(self) -> set[str]:
        states = self._runner.reruns.states_now().items()
        meant = self._meant
        return {name for name, value in states if not kinds_of(value) <= meant.get(name, set())}

    def _meant_states(self) -> dict[str, frozenset[str]]:
        fixed, first = unwritten(list(self._runner.cache)), self._start.step == 1
        leaves = [leaf for _, leaf in self._runner.live.scan().tensors()]
        return {
            str(leaf.fqn): kinds_of(leaf.value)
            for leaf in leaves
            if id(leaf.value) in fixed or (first and leaf.role is Role.BUFFER)
        }

    def _judged(self, record: Record, done: RerunStep, losses: deque[float]) -> BadStep | None:
        if not done.skipped:  # a scaler skips a step for its infinite gradients: it is no bad one
            for name, tensor in done.returned:
                if not all_finite(tensor):
                    return BadStep(record.step, "nan", f"{name} is {_named(tensor)}")
        bad = self._bad_states()
        if bad:
            name = sorted(bad)[0]
            more = f", and {len(bad) - 1} more" if len(bad) > 1 else ""
            return BadStep(record.step, "nan", f"{name} is not finite after it{more}")
        loss = _loss_of(done)
        if loss is None or done.skipped:
            return None
        limit = self._above
        if limit is None and len(losses) >= _FEWEST:
            limit = _SPIKE * statistics.median(map(abs, losses))
        losses.append(loss)
        if limit is not None and loss > limit:
            return BadStep(record.step, "spike", f"the loss is {loss:.6g}, above {limit:.6g}")
        return None

    def mismatch(self) -> BadStep | None:
        """The first step whose program differs from eager; None for none, or if not comparable."""
        self._runner.reruns.back_to(self._start)
        for record in self.records:
            kept = self._states.get(record.step)
            if kept is not None:
                self._runner.reruns.back_to(kept)
            call = self._runner.reruns.given(record)
            try:
                found = self._runner.live.owner._dry_run(
                    partial(check, around=self._runner.live.replicated), call.args, call.kwargs
                )[-1]
            except (NotSupported, NoProgram):
                return None
            if found is not None:
                what = "the program differs from eager"
                return BadStep(record.step, "mismatch", what, divergence=found)
            self._runner.reruns.step_again(record)
        return None

    def explained(self, found: BadStep, directory: Path) -> BadStep:
        """The bad step completed with its op, and a script that reproduces it."""
        call, source, program = self._blamed(found)
        if call is None:
            return found
        found = _with_op(found, call, source, program)
        directory.mkdir(parents=True, exist_ok=True)
        path = directory / f"step_{found.step}_{call.node.name}.py"
        return replace(found, script=write(call, str(path), _about(found)))

    def _blamed(self, found: BadStep) -> tuple[OpCall | None, fx.Node | None, Program]:
        """The call of the first bad op, and its node; the node may be an input."""
        if found.divergence is not None:
            program, watch = self._watched(found.step, found.divergence.node)
            return watch.call, None, program
        good = self._good_before(found.step)
        if found.kind == "nan" or good is None:
            program, watch = self._watched(found.step, good=good)
            return watch.reader, watch.source, program
        program, watch = self._watched(found.step)
        name = first_growth(good[1], watch, program, _SPIKE / 2)
        program, watch = self._watched(found.step, name)
        call, source = watch.call, _node(program, name)
        if call is None and source is not None:
            reader = next(iter(source.users), None)
            name = "" if reader is None else reader.name
            call = self._watched(found.step, name)[1].call
        return call, source, program

    def _good_before(self, step: int) -> tuple[Program, Watch] | None:
        """The program and values of the last good step, preferably of the same program."""
        before = [record for record in self.records if record.step < step]
        bad = next(record for record in self.records if record.step == step)
        runs = None if bad.program is None else bad.program()
        alike = [one for one in before if one.program is not None and one.program() is runs]
        chosen = alike[-1:] or before[-1:]
        return self._watched(chosen[0].step) if chosen else None

    def _watched(
        self, step: int, wanted: str = "", good: tuple[Program, Watch] | None = None
    ) -> tuple[Program, Watch]:
        """The program of a step, and the observation of its run from the state before it."""
        runner = self._runner
        runner.reruns.back_to(self._start)
        for _ in self._again(until=step):
            pass
        record = next(record for record in self.records if record.step == step)
        kept = self._states.get(step)
        if kept is not None:
            runner.reruns.back_to(kept)
        call = runner.reruns.given(record)
        replay = runner.reruns.program_of_step(record, call) or self._made(call)
        program = replay.captured.program if replay.code.regions else replay.program
        kinds = good[1].kinds if good is not None and _alike(good[0], program) else None
        with ReplaySandbox(replay, call, runner.live.scan()).values(program.signature) as values:
            watch = watched(program, values, wanted, kinds)
        return program, watch

    def _made(self, call: Any) -> Replay:
        programs = self._runner.programs
        return programs.compiler.compile(programs.dry_outcome(call), call)


def _with_op(found: BadStep, call: OpCall, source: fx.Node | None, program: Program) -> BadStep:
    came = ""
    if source is not None and source.op == "placeholder":
        names = {spec.name: str(spec.fqn) for spec in program.signature.inputs}
        came = names.get(source.name, source.name)
    origin = provenance(call.node)
    return replace(
        found,
        node=call.node.name,
        op=str(call.node.target),
        phase=origin.phase,
        module=origin.module,
        line=origin.line,
        came_with=came,
    )


def _alike(left: Program, right: Program) -> bool:
    """True for programs of which nodes may be compared by name."""
    if left is right:
        return True
    ops = [[(node.name, node.target) for node in program.nodes] for program in (left, right)]
    return ops[0] == ops[1]


def _node(program: Program, name: str) -> fx.Node | None:
    return next((node for node in program.nodes if node.name == name), None)


def _about(found: BadStep) -> str:
    at = f", at {found.line}" if found.line is not None else ""
    text = f"{found.op} as step {found.step} ran it{at}: {found.what}."
    return text.replace("\\", "/").replace('"', "'")


def _is_shown(found: BadStep, done: RerunStep) -> bool:
    """True where the results of the step contain the bad value."""
    returned = [tensor for _, tensor in done.returned]
    return bool(returned) and (found.kind == "spike" or not all(map(all_finite, returned)))


def _named(tensor: torch.Tensor) -> str:
    if tensor.numel() == 1:
        return str(tensor.item())
    return "NaN in places" if bool(tensor.isnan().any()) else "infinite in places"


def _loss_of(done: RerunStep) -> float | None:
    if done.loss is not None:
        return float(done.loss.detach().float().mean())
    for _, tensor in done.returned:
        if tensor.numel() == 1 and tensor.is_floating_point():
            return float(tensor)
    return None
