"""The compiled step is compared with the `aten` program: in its first call, and in each spot check.

The compiled step runs first, after what it writes was copied: over the live tensors in its first
call, over copies in a spot check. Then the `aten` program runs over what was copied, fed with what
left the compiled regions (`Reference`), and what differs has to be explained by rounding
(`rounding`). If it is, the results of a first call stay. If not, the copies are put back, and the
step is the `aten` program's, this one and all that follow.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
from torch import fx
from torch.fx.node import Argument

from ..collection import afresh
from ..errors import BackendWarning, SourceLine, warn
from ..ir.copies import copy_of, fill
from ..ir.each import expanded
from ..ir.names import optimizer_of
from ..ir.program import OutputKind, OutputSpec, Program
from ..library import ValueMoved
from ..lower import Lowered, Plan, Region
from ..lower.agreements import communicates
from ..random_state import TorchRandomState
from .compare import Gap, gap, is_inexact, largest, tight
from .memory import give_back
from .origin import line_of, op_of
from .reference import Observed, Reference, ValueKey
from .repeats import Unrepeated, first_unrepeated
from .rounding import RUNS, Noise, Shaker, Suspect
from .run import parts_of, skipped_by, walk_parts
from .start import make_casts
from .sums import Sums


class NotConfirmed(Exception):
    """The compiled step is not the program's. Everything is as it was before the call."""

    def __init__(self, what: str, where: SourceLine | None = None) -> None:
        super().__init__(what)
        self.where = where
        self.odd: Unrepeated | None = None
        """An op of the `aten` program that gives other bits when it is called again."""


@dataclass
class Confirmation:
    """Counts of the comparisons of a compiled program with the `aten` program."""

    mode: str = "first"
    """The setting of `set_confirm`."""
    confirmed: int = 0
    last: int | None = None
    """The last call of the program that was confirmed, counted from 1."""
    note: str = ""
    """Parts that were not compared and why, or why the compiled program was dropped."""
    dropped: bool = False

    def __str__(self) -> str:
        times = f"{self.confirmed} call{'s' * (self.confirmed != 1)} confirmed"
        last = f", the last was call {self.last}" if self.last else ""
        what = "not confirmed: set_confirm('off')" if self.mode == "off" else f"{times}{last}"
        return f"{what}; {self.note}" if self.note else what


class Audit:
    """Compares the runs of one compiled program with the `aten` program."""

    def __init__(
        self,
        program: Program,
        compiled: Lowered,
        op_by_op: Lowered,
        regions: Sequence[Region],
        mode: str,
        name: str,
    ) -> None:
        """``program`` is the `aten` program; ``op_by_op`` is ``compiled`` without CUDA Graphs."""
        self.program = program
        self.status = Confirmation(mode)
        self._name = name
        self._compiled = compiled
        self._op_by_op = op_by_op
        self._regions = regions
        self._single = expanded(program)  # each parameter has ops, as in the compiled program
        self._parts = parts_of(self._single)
        self.undone = False
        """True when the last run has failed, and nothing of it was kept."""
        self._communicates = communicates(program)
        self._pending = mode != "off"
        self._redraws = any(region.effects.random for region in regions)
        """Compiled code draws other numbers: the draws count as noise, too."""
        metas = (spec.meta for spec in program.signature.inputs)
        self._gpus = {m.device for m in metas if m is not None and m.device.type == "cuda"}
        specs = compiled.signature.inputs
        self._places = {spec.fqn: i for i, spec in enumerate(specs)}
        written = compiled.signature.written
        self._written = [i for i, s in enumerate(specs) if s.fqn in written and s.meta is not None]
        self._bounds: dict[ValueKey, float] = {}
        """Value -> what noise explained before, relative to its largest element."""
        fqns = {spec.name: spec.fqn for spec in specs}
        self._inside = {fqns.get(name, "") for region in regions for name in region.states}
        """States that regions write."""

    def drop(self, found: NotConfirmed, call: int) -> None:
        """Say that the compiled program is not run any more, from its first call on."""
        self.dropped(str(found), call)
        where = f"\n  at {found.where}" if found.where else ""
        fault = "Please report this, with the step."
        if found.odd is not None:
            fault = f"No compiled code can be compared with the step, since {found.odd}."
        warn(
            f"{self._name} goes on with the aten backend. Call {call} ran in compiled code and in "
            f"the aten program: {found}.{where}\nNothing of the compiled step was kept. {fault}",
            BackendWarning,
        )

    def dropped(self, why: str, call: int) -> None:
        """Note that the compiled program is not run any more."""
        self.status.dropped = True
        self.status.note = f"dropped at call {call}: {why}"

    @property
    def is_due(self) -> bool:
        """True while no call was confirmed, or could not be."""
        return self._pending

    def function(self, values: Sequence[Any], call: int) -> tuple[object, ...]:
        """The compiled step, compared; ``call`` is the number of the call, counted from 1.

        Raises:
            NotConfirmed: it differs, or it failed where the `aten` program does not.
        """
        self.undone = False
        try:
            return self._compared(values, call)
        finally:
            give_back(sum(values[i].nbytes for i in self._written if values[i].is_cpu))

    def _compared(self, values: Sequence[Any], call: int) -> tuple[object, ...]:
        try:
            start = _Start(
                values,
                {i: copy_of(values[i]) for i in self._written},
                TorchRandomState(self._gpus),
            )
        except Exception as failure:
            if not _no_memory(failure):
                raise
            return self._unconfirmed(call, self._compiled.function(values))
        try:
            observed = Observed(self._parts, self._regions)
            results = self._observe(observed, values)
        except ValueMoved:  # other ranks may have ended the step, too: no collective is repeated
            self._undo(start)
            raise
        except Exception as failure:
            self._undo(start)
            # A collective that this rank alone repeats would never end.
            if not self._communicates and not self._runs(start):
                raise  # the step cannot be done: compiled code is not to blame
            raise NotConfirmed(f"it failed ({type(failure).__name__}: {failure})") from failure
        ended = TorchRandomState(self._gpus)
        try:
            observed.check()
            found = self._compare(observed, start, results)
        except Exception as failure:
            if _no_memory(failure):
                ended.put_back()
                return self._unconfirmed(call, results)
            self._undo(start)
            raise NotConfirmed(
                f"the aten program failed ({type(failure).__name__}: {failure})"
            ) from failure
        if found is not None:
            self._undo(start)
            found.odd = first_unrepeated(self._single, self._given(start))
            raise afresh(found)
        ended.put_back()
        self.status.note = "random draws are its own, and count as noise" if self._redraws else ""
        if not self._skips(results):  # a step that was skipped says nothing about the update
            self._pending = False
            self.status.confirmed += 1
            self.status.last = call
        return results

    # --- running ----------------------------------------------------------------------------------

    def _observe(self, observed: Observed, values: Sequence[object]) -> tuple[object, ...]:
        executable = self._op_by_op
        if isinstance(executable, Plan):
            executable = replace(executable, update=_Observer(executable.update, observed))
        log = observed.collectives.recording() if self._communicates else nullcontext()
        with observed.watching(), log:
            results: tuple[object, ...] = executable.function(values)
        return results

    def _runs(self, start: _Start) -> bool:
        """True when the `aten` program runs without an error."""
        given = self._given(start)
        try:
            walk_parts(self._single, self._parts, given, lambda run, node, value: value)
        except Exception:
            return False
        finally:
            start.random.put_back()
        return True

    def _given(self, start: _Start) -> list[Any]:
        """The inputs of the `aten` program, as they were when the call began."""
        signature = self.program.signature
        given = [
            None if spec.derived_from is not None else start.value(self._places[spec.fqn])
            for spec in signature.inputs
        ]
        make_casts(signature, given)
        return given

    def _undo(self, start: _Start) -> None:
        start.put_back()
        self.undone = True

    def _unconfirmed(self, call: int, results: tuple[object, ...]) -> tuple[object, ...]:
        self._pending = False
        self.status.note = f"call {call} was not compared: no memory for a copy of what it writes"
        return results

    # --- comparing --------------------------------------------------------------------------------

    def _compare(
        self, observed: Observed, start: _Start, results: Sequence[object]
    ) -> NotConfirmed | None:
        ended, given = TorchRandomState(self._gpus), self._given(start)
        ends = self._ends(results, start.values)
        suspects: dict[ValueKey, Suspect] = {}
        reference = Reference(self._single, self._parts, observed, redraws=self._redraws)
        sums = Sums()
        start.random.put_back()

        def judge(key: ValueKey, node: Argument, expected: object) -> None:
            what, mixed = "", True
            if not isinstance(key, OutputSpec):
                part, run, name = key
                got: object = observed.of(part, run)[name]
            elif key in ends:
                what, got = key.target, ends[key]
                mixed = not observed.complete or key.target in self._inside
            else:
                return
            found = gap(expected, got)
            allowed = tight(expected, flips=mixed) | sums.gap(node, expected)
            if not found.within(allowed | self._bound(key, expected)):
                one = node if isinstance(node, fx.Node) else None
                suspects[key] = Suspect(one, what, expected, found, mixed)

        reference.run(given, judge, before=sums.before)
        if not self._redraws and not ended.equal(TorchRandomState(self._gpus)):
            return NotConfirmed("it leaves the random generator in another state")

        every = suspects
        for seed, noise in enumerate(RUNS):
            if not suspects:
                break
            if not self._redraws:
                start.random.put_back()
            _shake(reference, given, Shaker(noise, seed), noise, suspects)
            suspects = {key: one for key, one in suspects.items() if not one.explained}
        if suspects:
            return _named(next(iter(suspects.values())))
        self._bounds |= {key: one.relative for key, one in every.items()}
        return None

    def _bound(self, key: ValueKey, expected: object) -> Gap:
        """The difference that noise explained in an earlier comparison: it is not made again."""
        known = self._bounds.get(key)
        if not known or not isinstance(expected, torch.Tensor):
            return Gap()
        return Gap(known * largest(expected))

    def _ends(
        self, results: Sequence[object], values: Sequence[object]
    ) -> dict[OutputSpec, object]:
        """The results and writes of the compiled step, without those of skipped optimizers."""
        returned = dict(zip(self._compiled.outputs, results, strict=True))
        skipped = self._skips(results)
        found = {}
        for out in self._compiled.signature.outputs:
            if out in returned:
                if optimizer_of(out.target) not in skipped or out.kind is OutputKind.SKIP:
                    found[out] = returned[out]
            elif out.kind is OutputKind.UPDATE and out.target in self._places:
                found[out] = values[self._places[out.target]]
        return found

    def _skips(self, results: Sequence[Any]) -> set[str]:
        return skipped_by(self._compiled.outputs, results)


class _Start(NamedTuple):
    """The inputs of a compiled step when its call began."""

    values: Sequence[Any]
    """The live ones, which the step writes."""
    copies: dict[int, torch.Tensor]
    """Of those that it writes, by place."""
    random: TorchRandomState

    def value(self, place: int) -> Any:
        """An input as it was."""
        return self.copies.get(place, self.values[place])

    def put_back(self) -> None:
        """Restore the inputs and the generators."""
        for place, value in self.copies.items():
            fill(self.values[place], value)
        self.random.put_back()


def _shake(
    reference: Reference,
    given: Sequence[object],
    shaker: Shaker,
    noise: Noise,
    suspects: Mapping[ValueKey, Suspect],
) -> None:
    """Let suspects meet their values in a run with noise."""

    def again(key: ValueKey, node: Argument, value: object) -> None:
        if key in suspects:
            suspects[key].met(value, noise)

    try:
        reference.run(given, again, shaker, suspects)
    except Exception as failure:  # a value that must not move did: this run says nothing
        if _no_memory(failure):
            raise


class _Observer:
    """The update of a plan, which says what it was given."""

    def __init__(self, update: Lowered, observed: Observed) -> None:
        self._update, self._observed = update, observed

    def function(self, values: Sequence[object]) -> tuple[object, ...]:
        self._observed.update_given(self._update.signature, values)
        return self._update.function(values)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._update, name)


def _no_memory(failure: BaseException) -> bool:
    if isinstance(failure, (MemoryError, torch.OutOfMemoryError)):
        return True
    return isinstance(failure, RuntimeError) and "can't allocate memory" in str(failure)


def _named(suspect: Suspect) -> NotConfirmed:
    node, far, allowed = suspect.node, suspect.gap, suspect.allowed
    called = f"{node.name} ({op_of(node)})" if node is not None else ""
    what = " computed by ".join(filter(None, (suspect.what, called)))
    return NotConfirmed(
        f"{what} differs by {_words(far, suspect.expected)}, where rounding gives "
        f"{_words(allowed, suspect.expected)} at most",
        line_of(node),
    )


def _words(one: Gap, value: object) -> str:
    if one.broken:
        return f"{one.broken} values that are not finite"
    if isinstance(value, torch.Tensor) and not is_inexact(value):
        return f"{one.size:g} of its {value.numel()} values"
    return f"{one.size:.3g}"
