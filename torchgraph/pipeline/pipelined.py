"""Executable of a step in pipeline stages."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import torch

from .._torch.distributed.held import local
from ..distributed.peers import here
from ..distributed.remote_states import make_local, make_remote
from ..ir.program import OutputKind, OutputSpec, Program, Signature, TensorMeta
from ..live.step import Leaf
from ..lower import Composite, Lowered
from ..lower.plan import packed
from .cut import Cut
from .extract import GatherProgram
from .layout import Layout
from .stages import Place
from .step import StageCode, StepRun, Values
from .update.partition import Ranks, Segment, Transfer

_AT_ONCE = 32
"""The number of states that are sent in one exchange."""


class Link(Protocol):
    """Communication between the stages of a pipeline."""

    def run(self, step: StepRun) -> None:
        """Run all micro-batches, in the order of the schedule."""

    def exchange(self, transfers: Sequence[Transfer], values: Values) -> None:
        """Send and receive values of the update; received ones are put into ``values``."""


@dataclass(frozen=True)
class SegmentCode:
    """One segment of the update of a rank, lowered."""

    of: Segment
    runs: Lowered


@dataclass(frozen=True)
class GatherCode:
    """The gather of the parameters of a rank's stages before the micro-batches, lowered."""

    of: GatherProgram
    runs: Lowered


@dataclass
class _Progress:
    wrote: bool = False
    remote: bool = False
    """True while each state is held by its owners alone."""

    def note(self, wrote: bool) -> None:
        """Record whether a part that has run writes states."""
        self.wrote |= wrote


class LocalLink:
    """All stages in this process: micro-batches run one after the other."""

    def __init__(self, cut: Cut) -> None:
        self._stages, self._count = cut.count, cut.micro_batches

    def run(self, step: StepRun) -> None:
        """Run each micro-batch forward through all stages, and backward."""
        for number in range(self._count):
            for stage in range(self._stages):
                handed = step.forward(stage, number)
                if stage + 1 < self._stages:
                    step.hand(stage + 1, number, handed)
            for stage in reversed(range(self._stages)):
                handed = step.backward(stage, number)
                if stage:
                    step.hand(stage - 1, number, handed)
                if step.split:
                    step.weights(stage, number)

    def exchange(self, transfers: Sequence[Transfer], values: Values) -> None:
        """Do nothing: all values are in this process."""


@dataclass(frozen=True)
class Pipelined(Composite):
    """The executable of a step with stages: those of one rank, or all of them.

    Results that stages of other ranks compute are tensors on the device ``meta``: of the right
    shape, and whoever looks at their values gets an error.
    """

    cut: Cut
    layout: Layout
    schedule: str
    codes: Mapping[Place, StageCode]
    """The lowered parts of this rank's stages, by stage and part."""
    gathers: GatherCode | None
    segments: Sequence[SegmentCode | None]
    exchanges: Mapping[int, Sequence[Transfer]]
    link: Link
    position: int
    """The position of this rank in its pipeline."""
    everybody: Ranks
    metas: Mapping[tuple[OutputKind, str], TensorMeta]
    """Metadata of the results of `build`, packed."""
    handed_out: Sequence[Transfer]
    """Results of `build` that are sent to all ranks."""
    owned: Mapping[int, Ranks]
    """States that some ranks alone write, by their positions among the step's inputs."""
    broadcasts: Sequence[Transfer]
    """States that are sent to all ranks after each step, by position."""
    given: Mapping[str, int]
    """Names of the update's inputs in transfers -> their positions."""
    alone: Pipelined | None = None
    """The same step with all stages in this process; None: this is it."""
    _progress: _Progress = field(default_factory=_Progress)

    @property
    def ranks(self) -> list[int]:
        """The ranks of this pipeline; empty where all stages are in this process."""
        copy = 0 if self.alone is None else self.layout.copy_of(here())
        return [] if self.alone is None else self.layout.ranks_of(copy)

    @property
    def program(self) -> Program:
        """The program of the whole step."""
        return self.cut.whole

    @property
    def signature(self) -> Signature:
        """The signature of the whole step."""
        return self.cut.whole.signature

    @functools.cached_property
    def outputs(self) -> tuple[OutputSpec, ...]:
        """The outputs of the step: packed results of the micro-batches, then of the update."""
        return (*self._returned, *self._late)

    @functools.cached_property
    def keeps(self) -> dict[str, Ranks]:
        """`owned` by the names of the states."""
        return {self.signature.inputs[i].fqn: ranks for i, ranks in self.owned.items()}

    @functools.cached_property
    def _returned(self) -> list[OutputSpec]:
        outs = self.cut.program.returns()
        return [o for o, v in outs if o.kind is OutputKind.USER and self.cut.parts.is_early(o, v)]

    @functools.cached_property
    def _late(self) -> list[OutputSpec]:
        tensors = {spec.fqn for spec in self.signature.inputs if spec.meta is not None}
        return [
            out
            for out, value in self.cut.program.returns()
            if not self.cut.parts.is_early(out, value)
            and not (out.kind is OutputKind.UPDATE and out.target in tensors)
        ]

    @property
    def executables(self) -> tuple[Lowered, ...]:
        """The lowered parts of this rank's stages, in the order of one micro-batch."""
        places = sorted(self.codes, key=lambda place: place.order)
        parts = (one for place in places for one in _both(self.codes[place]))
        return (
            *self._before,
            *parts,
            *(segment.runs for segment in self.segments if segment is not None),
        )

    @property
    def _before(self) -> tuple[Lowered, ...]:
        return () if self.gathers is None else (self.gathers.runs,)

    def remade(self, other: Callable[[Lowered], Lowered]) -> Lowered:
        """A copy in which each lowered part is replaced by ``other(part)``."""
        codes = {place: code.remade(other) for place, code in self.codes.items()}
        segments = [
            segment and replace(segment, runs=other(segment.runs)) for segment in self.segments
        ]
        gathers = self.gathers and replace(self.gathers, runs=other(self.gathers.runs))
        return replace(self, codes=codes, gathers=gathers, segments=segments)

    def in_order(self) -> list[Lowered]:
        """The lowered parts that this rank runs in a step, once for each micro-batch."""
        codes = [self.codes[place] for place in sorted(self.codes, key=lambda one: one.order)]
        again = [code.following for code in codes] * (self.signature.micro_batches - 1)
        segments = [segment.runs for segment in self.segments if segment is not None]
        return [*self._before, *(code.first for code in codes), *again, *segments]

    @property
    def random(self) -> bool:
        """True when a step draws random numbers, on any rank."""
        return bool(self.cut.draws)

    @property
    def writes(self) -> bool:
        """Always True: gradients are accumulated in place."""
        return True

    def wrote(self, error: BaseException) -> bool:
        """True when this or an earlier part had begun to write."""
        return self._progress.wrote or super().wrote(error)

    def function(self, values: Sequence[Any]) -> tuple[Any, ...]:
        """Run one step; ``values`` are of the whole batch, results are packed on dim 0."""
        self._progress.wrote = False
        inputs = self.cut.program.signature.inputs
        taken = [*values, *self._gathered(values)]
        step = StepRun(
            self.codes,
            self.cut.routes,
            inputs,
            taken,
            self.signature.micro_batches,
            self._progress.note,
        )
        self.link.run(step)
        returned: Values = {}
        for out in self._returned:
            if out.target in step.returned:
                found = step.returned[out.target]
                values_ = tuple(found[n] for n in sorted(found))
                returned[out.target] = packed(values_) if len(values_) > 1 else values_[0]
        self.link.exchange(self.handed_out, returned)
        early = [returned.get(o.target, self._unknown(o)) for o in self._returned]
        late = self._update([*taken, *(step.sums.get(name) for name in self._shares)])
        self._release_remote(values)
        return (*early, *(late[o.kind, o.target] for o in self._late))

    def _gathered(self, values: Sequence[Any]) -> list[Any]:
        """The gathered inputs of the stages; None for those that other ranks' stages read."""
        found = [None] * (len(self.cut.program.signature.inputs) - len(values))
        if self.gathers is not None:
            made = self.gathers.runs.function([values[i] for i in self.gathers.of.states])
            for position, value in zip(self.gathers.of.gives, made, strict=True):
                found[position - len(values)] = value
        return found

    def _release_remote(self, values: Sequence[Any]) -> None:
        """Broadcast some states, and free those that other ranks own."""
        self._hand(self.broadcasts, values, lambda tensor, value: tensor.copy_(value))
        told = {int(one.name) for one in self.broadcasts}
        for number, ranks in self.owned.items():
            if self.position not in ranks and number not in told:
                make_remote(values[number])
        self._progress.remote = bool(self.owned)

    def bring_home(self, values: Sequence[Any]) -> None:
        """Receive all states from the ranks that own them. Every rank has to call."""
        if not self._progress.remote:
            return
        inputs = self.signature.inputs
        transfers: list[Transfer] = []
        for number, ranks in self.owned.items():
            meta = inputs[number].meta
            assert meta is not None
            transfers.append(Transfer(str(number), meta, min(ranks), self.everybody - ranks))
        for start in range(0, len(transfers), _AT_ONCE):
            self._hand(transfers[start : start + _AT_ONCE], values, make_local)
        self._progress.remote = False

    def _hand(
        self,
        transfers: Sequence[Transfer],
        values: Sequence[Any],
        put: Callable[[torch.Tensor, torch.Tensor], object],
    ) -> None:
        if not transfers:
            return
        own = {one.name: values[int(one.name)].detach() for one in transfers}
        with torch.no_grad():
            self.link.exchange(transfers, own)
            for one in transfers:
                if self.position in one.targets:
                    put(values[int(one.name)], own[one.name])

    @functools.cached_property
    def _shares(self) -> list[str]:
        many = (one.shares.values() for one in self.cut.gradients)
        return [share.name for shares in many for share in shares]

    def _unknown(self, out: OutputSpec) -> torch.Tensor:
        """A meta tensor in the place of a result that other ranks have."""
        meta = self.metas[out.kind, out.target]
        return torch.empty(meta.shape, dtype=meta.dtype, device="meta")

    def _update(self, inputs: Sequence[Any]) -> dict[tuple[OutputKind, str], Any]:
        found: dict[tuple[OutputKind, str], Any] = {}
        sent = {one.name for many in self.exchanges.values() for one in many}
        values = {name: inputs[i] for name, i in self.given.items() if name in sent}
        for number, segment in enumerate(self.segments):
            if segment is not None:
                taken = [inputs[i] for i in segment.of.states]
                results = segment.runs.function([*taken, *(values[n] for n in segment.of.takes)])
                self._progress.note(segment.runs.writes)
                outs = segment.runs.outputs
                for out, value in zip(outs, results, strict=True):
                    if out.kind is OutputKind.GRADIENT:
                        values[out.target] = value
                    else:
                        found[out.kind, out.target] = value
            if number in self.exchanges:
                self.link.exchange(self.exchanges[number], values)
        for out in self._late:
            if out.kind is OutputKind.USER and (out.kind, out.target) not in found:
                found[out.kind, out.target] = self._unknown(out)
        return found


def _both(code: StageCode) -> tuple[Lowered, ...]:
    return (code.first,) if code.first is code.following else (code.first, code.following)


def is_spread(runs: Lowered) -> bool:
    """True for a step after which some states are on other ranks alone."""
    return isinstance(runs, Pipelined) and bool(runs.owned)


def keeps_like(runs: Lowered, other: Lowered) -> bool:
    """True when this rank holds, after a step of ``other``, all states that ``runs`` needs."""
    if not isinstance(other, Pipelined) or not other.owned:
        return True
    return isinstance(runs, Pipelined) and runs.keeps == other.keeps


def bring_home(runs: Lowered, leaves: Sequence[Leaf]) -> None:
    """Receive all states from the ranks that own them. Every rank of the pipeline has to call.

    Args:
        leaves: what the step is bound to.
    """
    if isinstance(runs, Pipelined):
        runs.bring_home([local(leaf.value) for leaf in leaves])
