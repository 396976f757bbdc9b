"""Errors of what runs on several ranks: what they differ in, who is lost, who did not come."""

from __future__ import annotations

from ..errors import GraphError, InvalidOption, NoProgram, NotSupported

# --- several ranks --------------------------------------------------------------------------------

EXIT_CODE = 75
"""With which a process ends that a lost rank keeps waiting: EX_TEMPFAIL of sysexits.h."""


class NoProcessGroup(InvalidOption):
    """``config.enable_data_parallel()`` before ``torch.distributed.init_process_group()``."""

    fix = "call torch.distributed.init_process_group() first, and start the script by torchrun."


class RanksDiffer(GraphError):
    """``config.enable_data_parallel()`` on ranks whose models have other parameters.

    And ``loss * (1 + rank)`` in the step: ranks that have made different programs of it.
    """

    fix = "give every rank the same model, the same options and the same order of calls."


class NotAveraged(GraphError):
    """``tg.step`` of a data-parallel loop that makes its optimizer anew: who averages?"""

    fix = "make the optimizer before the step, and let the function name it."


class OutsideOfStep(GraphError):
    """``with tg.no_sync(): step(x)``: around the call, not inside of the step."""

    fix = "put the with block into the function, around backward()."


class UnknownCollective(NoProgram):
    """``torch.distributed.all_to_all(...)`` inside of a step: it holds a process group."""

    fix = (
        "use a functional collective, which names its group: "
        "torch.distributed._functional_collectives."
    )


class RanksOutOfStep(GraphError):
    """``if rank == 0: all_reduce(x)``: ranks that do not meet in the same collectives."""

    fix = "let all ranks of a group run the same collectives, in one order, over equal shapes."


class StagesOutOfOrder(NotSupported):
    """``set_stage(0, ...)`` of a module that takes what stage 1 computes."""

    fix = "number the stages in the order in which the forward runs through them."


class StageNotPlaced(InvalidOption):
    """``set_stage(1)`` of a module, where another one has a placement: where is stage 1?"""

    fix = "give each stage its ranks: graph.model.block.to(GraphModule).set_stage(1, ranks)."


class NotPipelined(NotSupported):
    """``dist.all_reduce(x)`` in a stage: a step of which a stage does what no pipeline can hold."""

    fix = "keep it out of the stages, or run the step without them."


class ScheduleUnfit(InvalidOption):
    """``config.set_pipeline_schedule("zbv")`` for stages that lie otherwise on their ranks."""

    fix = 'config.set_pipeline_schedule("gpipe") takes any order of stages.'


class PipeliningUnknown(GraphError):
    """``set_stage(1, 1)`` with a torch whose pipelining lacks the names that this builds on."""

    fix = "install a torch from 2.11 to 2.15 with torch.distributed."


class RankLost(GraphError):
    """``kill -9`` of rank 1 in training: raised on every other rank, wherever it waits for it.

    Where a wait cannot be ended, the process ends with the same words and the exit code 75.
    """

    fix = "start the ranks again from the last checkpoint, as torchrun --max-restarts does."


class RankAbsent(GraphError, TimeoutError):
    """``for x in loader: step(x)`` with fewer batches on one rank: the others wait in vain."""

    fix = (
        "let all ranks make the same number of calls: DistributedSampler, drop_last=True. A rank "
        "that does more between two calls needs config.set_agreement(timeout=seconds)."
    )


class PlacementMismatch(GraphError, ValueError):
    """``tg.placement("cpu", [0, 9])`` with 2 ranks, ``tg.sbp.split(3)`` of a matrix."""

    fix = "name ranks, dimensions and devices that are there."
