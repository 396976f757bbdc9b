"""Pipeline stages in a report: their ranks, ops and transfers."""

from __future__ import annotations

from dataclasses import dataclass

from ..lower import Lowered
from ..pipeline.packing import bytes_of
from ..pipeline.pipelined import Pipelined
from ..pipeline.stages import StagePart


@dataclass(frozen=True)
class PipelineStage:
    """One stage; bytes are those of one micro-batch."""

    name: str
    """What it is called in ``set_stage``; of several that are run as one, all of them."""
    ranks: tuple[int, ...]
    """The ranks that run it; those in the same position of all stages are one pipeline."""
    forward: int
    """Nodes."""
    backward: int
    kept: int
    """Bytes that it keeps from its forward for its backward."""
    sends: int
    """Bytes that it hands to the next stage."""
    sends_back: int
    """Bytes that it hands to the stage before."""


@dataclass(frozen=True)
class Pipeline:
    """The stages of a step, for a report."""

    schedule: str
    micro_batches: int
    stages: tuple[PipelineStage, ...]
    exchanged: int
    """Bytes that ranks hand each other in the update."""


def collect(runs: Lowered) -> Pipeline | None:
    """The stages of a step; None for a step without stages."""
    if not isinstance(runs, Pipelined):
        return None
    cut, layout = runs.cut, runs.layout
    stages = []
    for stage, label in enumerate(layout.labels):
        parts = {
            place.part: one for place, one in cut.stage_programs.items() if place.stage == stage
        }
        ahead, back = cut.routes.forward.get(stage, {}), cut.routes.backward.get(stage - 1, {})
        stages.append(
            PipelineStage(
                label,
                layout.placed[stage],
                parts[StagePart.FORWARD].first.count(),
                sum(one.first.count() for part, one in parts.items() if part),
                sum(map(bytes_of, cut.saved_by(stage))),
                sum(map(bytes_of, ahead.values())),
                sum(map(bytes_of, back.values())),
            )
        )
    exchanged = sum(
        bytes_of(one.meta) * len(one.targets) for many in runs.exchanges.values() for one in many
    )
    return Pipeline(runs.schedule, cut.micro_batches, tuple(stages), exchanged)
