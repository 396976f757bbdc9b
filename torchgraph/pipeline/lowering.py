"""Lowering of a program with stages: cut, lowered part by part, joined by a schedule."""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from dataclasses import replace
from time import perf_counter

import torch
from torch import fx

from ..distributed.errors import NotPipelined
from ..distributed.peers import Peers, here, members
from ..ir.program import OutputKind, PassRecord, Program, Role, TensorMeta
from ..lower import Target, lower
from ..options.options import Options
from .alike import compare
from .cut import Cut
from .layout import MERGES, SPLITS, Layout, order
from .pipelined import GatherCode, Link, LocalLink, Pipelined, SegmentCode
from .ranks import RankLink
from .stages import Place
from .step import StageCode
from .update.partition import Transfer, UpdatePartition, update_of


def is_pipelined(options: Options) -> bool:
    """True when a module of the Graph has a stage with a placement."""
    return any(setting.ranks for setting in options.stages)


def pipelined(
    program: Program, name: str, options: Options, watched: Container[str] = ()
) -> Pipelined:
    """The executable of a step with stages, for this rank.

    Args:
        name: shown in tracebacks.
        watched: states that the host reads on every rank.

    Raises:
        StageNotPlaced, NotPipelined, StagesOutOfOrder, ScheduleUnfit.
    """
    check(program, options)
    schedule = options.pipeline_schedule
    layout = Layout.of(options.stages, merge=schedule in MERGES)
    start, nodes = perf_counter(), program.count()
    cut = Cut(program, layout.numbers, layout.labels, split=schedule in SPLITS)
    summed = sum(len(one.shares) > 1 for one in cut.gradients)
    record = PassRecord("stages", cut.count, perf_counter() - start, nodes, nodes, not summed)
    program.history.append(record)
    target = Target(replace(options, backend="aten", cuda_graph="off"))
    everywhere = options.pipeline_outputs == "all"
    lowered = _Lowering(cut, layout, name, target, watched, everywhere=everywhere)
    alone = lowered.joined([0] * cut.count, 0, LocalLink(cut))
    if not layout.is_spread:
        return alone
    copy = layout.copy_of(here())
    _check_copies(layout, options)
    pipelines = [layout.ranks_of(number) for number in range(layout.copies)]
    owners, peers = layout.owners(copy), Peers(pipelines, copy)
    if cut.draws:
        compare(peers, {"torch's random generator": torch.get_rng_state()})
    orders = order(schedule, owners, cut.micro_batches)
    link = RankLink(cut, owners, orders, peers)
    return replace(lowered.joined(owners, peers.position, link), alone=alone)


def check(program: Program, options: Options) -> None:
    """Raise NotPipelined for options that do not go with stages."""
    if not options.training:
        raise NotPipelined(
            "A pipeline runs training steps, and this Graph has no optimizer.",
            fix="let each rank evaluate in a Graph without stages, after graph.sync() of this one.",
        )
    refused = {
        "DTensor arguments": any(spec.layout for spec in program.signature.roles(Role.INPUT)),
        "casts that are kept between calls": any(program.signature.roles(Role.DERIVED)),
        "config.keep_history": bool(options.history),
        "config.set_shape_buckets": options.buckets is not None,
        "config.set_cuda_graph": options.cuda_graph == "require",
    }
    for what, given in refused.items():
        if given:
            raise NotPipelined(f"A pipeline of stages does not go with {what} yet.")
    if options.backend == "inductor":
        raise NotPipelined(
            'The stages of a pipeline run op by op: config.set_backend("inductor") compiles none.',
            fix='config.set_backend("aten")',
        )


def _check_copies(layout: Layout, options: Options) -> None:
    """Raise NotPipelined unless gradients are averaged over the ranks of each stage."""
    parallel, rank = options.data_parallel, here()
    averaged = [rank] if parallel is None else members(parallel.group)
    for label, ranks in zip(layout.labels, layout.placed, strict=True):
        if rank in ranks and sorted(ranks) != averaged:
            over = "nowhere" if parallel is None else f"over ranks {averaged}"
            raise NotPipelined(
                f"Stage {label} is on ranks {list(ranks)}, and gradients are averaged {over}.",
                fix="config.enable_data_parallel(mesh) over the ranks of each stage, such as "
                'mesh["dp"] of a mesh with the dimensions pp and dp.',
            )


class _Lowering:
    """The parts of a cut step, each lowered once."""

    def __init__(
        self,
        cut: Cut,
        layout: Layout,
        name: str,
        target: Target,
        watched: Container[str],
        *,
        everywhere: bool,
    ) -> None:
        self._cut, self._layout, self._name, self._target = cut, layout, name, target
        self._watched, self._everywhere = watched, everywhere
        self._codes = {place: self._lowered(place) for place in cut.stage_programs}
        self._update = update_of(cut)

    def _lowered(self, place: Place) -> StageCode:
        part = self._cut.stage_programs[place]
        called = f"{self._name}, stage {place.stage}, {place.part.name.lower()}"
        first_called = f"{called}, first micro-batch" if part.adds else called
        first = lower(part.first, first_called, self._target).runs
        if part.following is part.first:
            return StageCode(part, first, first)
        return StageCode(part, first, lower(part.following, called, self._target).runs)

    def joined(self, owners: Sequence[int], position: int, link: Link) -> Pipelined:
        """The executable of the stages of one rank, with its part of the update."""
        cut, segments = self._cut, UpdatePartition(self._cut, self._update, owners, self._watched)
        own: list[SegmentCode | None] = []
        for number, segment in enumerate(segments.segments_of(position)):
            called = f"{self._name}, update {number}"
            own.append(
                None
                if segment is None
                else SegmentCode(segment, lower(segment.program, called, self._target).runs)
            )
        here = {p: code for p, code in self._codes.items() if owners[p.stage] == position}
        given = {spec.name: number for number, spec in enumerate(self._update.signature.inputs)}
        metas = _metas(cut)
        handed_out = [
            Transfer(out.target, metas[out.kind, out.target], source, segments.everybody - {source})
            for place, outs in cut.returned.items()
            for out, source in ((out, owners[place.stage]) for out, _ in outs)
            if self._everywhere and (out.kind, out.target) in metas
        ]
        return Pipelined(
            cut,
            self._layout,
            self._target.options.pipeline_schedule,
            here,
            self._gathers(here),
            own,
            segments.exchanges,
            link,
            position,
            segments.everybody,
            metas,
            handed_out,
            segments.owned,
            segments.transfers_to_all(),
            given,
        )

    def _gathers(self, codes: Mapping[Place, StageCode]) -> GatherCode | None:
        read = {position for code in codes.values() for position in code.of.states}
        found = self._cut.gathers.program_of(read)
        if found is None:
            return None
        runs = lower(found.program, f"{self._name}, gathers", self._target).runs
        return GatherCode(found, runs)


def _metas(cut: Cut) -> dict[tuple[OutputKind, str], TensorMeta]:
    """The metadata of the results of `build`, as the whole batch gives them."""
    found: dict[tuple[OutputKind, str], TensorMeta] = {}
    for out, value in cut.program.returns():
        fake = value.meta.get("val") if isinstance(value, fx.Node) else None
        if out.kind is OutputKind.USER and isinstance(fake, torch.Tensor):
            if cut.parts.is_early(out, value) and cut.micro_batches > 1:
                rows = cut.micro_batches * (fake.shape[0] if fake.ndim else 1)
                fake = torch.empty((rows, *fake.shape[1:]), dtype=fake.dtype, device="meta")
            found[out.kind, out.target] = replace(TensorMeta.of(fake), device=_device(value))
    return found


def _device(value: fx.Node) -> torch.device:
    device: torch.device = value.meta["val"].device
    return device
