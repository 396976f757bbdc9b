"""torch.distributed.pipelining: its schedules' orders, and the runtime that runs one."""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable, Mapping, Sequence
from types import SimpleNamespace
from typing import Any, NamedTuple

import torch
import torch.distributed as dist

_SCHEDULES = {
    "interleaved": "ScheduleInterleaved1F1B",
    "zero_bubble": "ScheduleInterleavedZeroBubble",
    "zbv": "ScheduleZBVZeroBubble",
}
_NAMES = ("_PipelineScheduleRuntime", "_ComputationType", "_Action", *_SCHEDULES.values())
_METHODS = ("register_custom_function", "_prepare_schedule_with_comms", "step")
_OTHER = ("UNSHARD", "RESHARD", "REDUCE_GRAD")


class Act(NamedTuple):
    """An action of a rank: ``F``, ``B``, or ``I`` and ``W`` of a split backward."""

    kind: str
    stage: int
    number: int
    """The number of the micro-batch."""


class Mailbox:
    """The sends and receives between a stage and its neighbours. To be overridden."""

    def forward_sends(self, stage: int, number: int) -> list[dist.P2POp]:
        """The sends after a forward."""
        raise NotImplementedError

    def forward_receives(self, stage: int, number: int) -> list[dist.P2POp]:
        """The receives before a forward."""
        raise NotImplementedError

    def backward_sends(self, stage: int, number: int) -> list[dist.P2POp]:
        """The sends after a backward."""
        raise NotImplementedError

    def backward_receives(self, stage: int, number: int) -> list[dist.P2POp]:
        """The receives before a backward."""
        raise NotImplementedError


@functools.cache
def _module() -> Any:
    """The schedules, of which torch's import loads nothing; raises ImportError without them."""
    found = importlib.import_module("torch.distributed.pipelining.schedules")
    lacking = [name for name in _NAMES if not hasattr(found, name)]
    runtime = getattr(found, "_PipelineScheduleRuntime", None)
    lacking += [name for name in _METHODS if runtime and not hasattr(runtime, name)]
    if lacking:
        raise ImportError(f"torch.distributed.pipelining has no {lacking[0]}")
    return found


def lacks() -> str:
    """The error that says what this torch lacks for pipelines; empty where nothing is missing."""
    try:
        _module()
    except ImportError as error:
        return str(error)
    return ""


def order(schedule: str, ranks: int, stages: int, micro_batches: int) -> dict[int, list[Act]]:
    """The actions of each rank in one of torch's schedules.

    Args:
        schedule: ``"interleaved"``, ``"zero_bubble"`` or ``"zbv"``.
        stages: of all ranks together; stage i is on rank i modulo ``ranks``, for ``"zbv"`` there
            and back.

    Raises:
        ValueError: torch's word on numbers that the schedule does not take.
    """
    module = _module()
    mine = [
        SimpleNamespace(
            stage_index=number * ranks,
            num_stages=stages,
            group_size=ranks,
            group_rank=0,
            is_first=number == 0,
            is_last=False,
            has_backward=True,
            submod=torch.nn.Identity(),
        )
        for number in range(stages // ranks)
    ]
    made = getattr(module, _SCHEDULES[schedule])(mine, micro_batches)
    return {
        rank: [
            Act(act.computation_type.value, act.stage_index, act.microbatch_index)
            for act in acts
            if act is not None
        ]
        for rank, acts in made.pipeline_order.items()
    }


def runtime(
    orders: Mapping[int, Sequence[Act]],
    own: Sequence[int],
    stages: int,
    micro_batches: int,
    group: dist.ProcessGroup,
    mailbox: Mailbox,
    does: Mapping[str, Callable[[int, int, Callable[[], None]], None]],
) -> Callable[[], None]:
    """A function that runs one step in the given order of actions.

    Args:
        orders: what each rank of the group does.
        own: this rank's stages.
        does: kind -> a function of stage, micro-batch, and what waits for their inputs.
    """
    module = _module()
    kinds, action = module._ComputationType, module._Action
    cls = _stage_class()
    held = [cls(mailbox, stage, stages, group) for stage in own]
    schedule = module._PipelineScheduleRuntime(held, micro_batches)
    for kind, function in does.items():
        schedule.register_custom_function(kinds(kind), functools.partial(_run, function))
    for name in _OTHER:
        if hasattr(kinds, name):
            schedule.register_custom_function(getattr(kinds, name), _nothing)
    schedule._prepare_schedule_with_comms(
        {
            rank: [action(act.stage, kinds(act.kind), act.number) for act in acts]
            for rank, acts in orders.items()
        }
    )
    return functools.partial(schedule.step, return_outputs=False)


def _run(function: Callable[[int, int, Callable[[], None]], None], action: Any, ctx: Any) -> None:
    schedule, key = ctx.schedule_ref, (action.stage_index, action.microbatch_index)
    forward = action.computation_type.value == "F"
    received = schedule.fwd_recv_ops if forward else schedule.bwd_recv_ops

    def wait() -> None:
        works = received.pop(key, ())
        for work in works if isinstance(works, (list, tuple)) else (works,):
            work.wait()

    function(*key, wait)


def _nothing(action: Any, ctx: Any) -> None:
    pass


@functools.cache
def _stage_class() -> Any:
    base = importlib.import_module("torch.distributed.pipelining.stage")._PipelineStageBase

    def make(
        self: Any, mailbox: Mailbox, stage: int, stages: int, group: dist.ProcessGroup
    ) -> None:
        base.__init__(self, torch.nn.Identity(), stage, stages, torch.device("cpu"), group)
        self.mailbox = mailbox
        self.args_recv_info, self.act_send_info = {0: ()}, {}

    body = {
        "__init__": make,
        "get_fwd_send_ops": lambda self, n: self.mailbox.forward_sends(self.stage_index, n),
        "get_fwd_recv_ops": lambda self, n: self.mailbox.forward_receives(self.stage_index, n),
        "get_bwd_send_ops": lambda self, n: self.mailbox.backward_sends(self.stage_index, n),
        "get_bwd_recv_ops": lambda self, n: self.mailbox.backward_receives(self.stage_index, n),
        "_get_init_p2p_neighbors_ops": lambda self: [],
        **{name: lambda self, *args, **kwargs: None for name in base.__abstractmethods__},
    }
    return type("Stage", (base,), body)
