"""The program of a Replay without the casts that eager does not make."""

from __future__ import annotations

from dataclasses import replace

from ..lower import Target
from ..options.options import Options
from ..passes import pipeline, run
from .cuda.graphs import CudaGraphs
from .replay import Replay


def as_eager(replay: Replay, options: Options) -> Replay:
    """``replay``, or its program without the casts that eager does not make.

    The colouring of ``policy="oneflow"`` has no eager twin: what it starts from is compared.
    """
    if options.amp is None or options.autocast is not None:
        return replay
    heuristic = replay.cudnn_heuristic
    options = replace(options, amp=None, cuda_graph="off", cudnn_heuristic=heuristic)
    program = run(replay.captured.program, pipeline(options), options.passes)
    graphs = CudaGraphs()
    code = graphs.lower(program, "as eager", Target(options))
    captured = replace(replay.captured, leaves=list(replay.leaves))
    return Replay(captured, code, options, graphs.calls)
