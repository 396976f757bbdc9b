"""Who trains: eager PyTorch, torch.compile, a hand-made CUDA graph, torchgraph. All with AdamW."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.optim import AdamW, Optimizer

import torchgraph as tg

from .work import Work

LR = 1e-3
Step = Callable[[], Tensor]


class TrainGraph(tg.Graph):
    """One training step through torchgraph."""

    def __init__(
        self,
        work: Work,
        optimizer: Optimizer,
        backend: str = "aten",
        switch_at: int | None = None,
    ) -> None:
        super().__init__()
        self.model = work.model
        self.loss_fn = work.loss_fn
        self.add_optimizer(optimizer)
        self.config.set_backend(backend, switch_at=switch_at)
        if work.amp is not None:
            self.config.enable_amp(dtype=work.amp)

    def build(self, x: Tensor, y: Tensor) -> Tensor:
        loss = self.loss_fn(self.model(x), y)
        loss.backward()
        return loss


@dataclass(frozen=True)
class Contender:
    """A way to train. ``make`` returns one step, and the Graph behind it when there is one."""

    name: str
    make: Callable[[Work], tuple[Step, TrainGraph | None]]
    compiles: bool = False
    """True for what needs a compiler: slow to start, and absent where there is none."""
    settles: int = 0
    """How many further calls it takes before it runs as it will from then on."""
    cuda_only: bool = False


def stage_seconds(graph: TrainGraph) -> dict[str, float]:
    """What the last compilation of a Graph took, by stage."""
    return {stage.name: stage.seconds for stage in graph.report().stages}


def is_compiled(graph: TrainGraph) -> bool:
    """True once a call was served by Inductor's code."""
    held = graph.report().programs.held
    return any(one.inductor_since is not None and one.runs > one.inductor_since for one in held)


def capture_seconds(graph: TrainGraph) -> float:
    """What making the program took."""
    seconds = stage_seconds(graph)
    return seconds["building graph"] + seconds["building plan"]


def _training(
    loss_of: Callable[[Tensor, Tensor], Tensor],
    work: Work,
    optimizer: Optimizer,
    update: Callable[[], object] | None = None,
) -> Step:
    update = update or optimizer.step

    def step() -> Tensor:
        optimizer.zero_grad(set_to_none=True)
        loss = loss_of(work.x, work.y)
        loss.backward()
        update()
        return loss.detach()

    return step


def _loss_of(work: Work) -> Callable[[Tensor, Tensor], Tensor]:
    if work.amp is None:
        return lambda x, y: work.loss_fn(work.model(x), y)

    def loss(x: Tensor, y: Tensor) -> Tensor:
        with torch.autocast(x.device.type, work.amp):
            return work.loss_fn(work.model(x), y)

    return loss


def _eager(work: Work) -> tuple[Step, None]:
    return _training(_loss_of(work), work, AdamW(work.model.parameters(), lr=LR)), None


def _eager_fused(work: Work) -> tuple[Step, None]:
    optimizer = AdamW(work.model.parameters(), lr=LR, fused=True)
    return _training(_loss_of(work), work, optimizer), None


def _compiled(work: Work) -> tuple[Step, None]:
    optimizer = AdamW(work.model.parameters(), lr=LR, fused=True)
    return _training(torch.compile(_loss_of(work)), work, optimizer), None


def _reduced_overhead(work: Work) -> tuple[Step, None]:
    # As torch's recipe for a compiled optimizer has it: lr as a tensor, foreach.
    parameters = work.model.parameters()
    optimizer = AdamW(parameters, lr=torch.tensor(LR), foreach=True, capturable=True)
    compiled = torch.compile(_loss_of(work), mode="reduce-overhead")
    update = torch.compile(optimizer.step, fullgraph=False)
    step = _training(compiled, work, optimizer, update)

    def marked() -> Tensor:
        torch.compiler.cudagraph_mark_step_begin()
        return step().clone()

    return marked, None


def _manual_cuda_graph(work: Work) -> tuple[Step, None]:
    optimizer = AdamW(work.model.parameters(), lr=LR, fused=True, capturable=True)
    eager = _training(_loss_of(work), work, optimizer)
    state: list[tuple[torch.cuda.CUDAGraph, Tensor]] = []

    def step() -> Tensor:
        if not state:
            state.append(_capture(eager, optimizer))
        graph, loss = state[0]
        graph.replay()
        return loss

    return step, None


def _capture(eager: Step, optimizer: Optimizer) -> tuple[torch.cuda.CUDAGraph, Tensor]:
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            eager()
    torch.cuda.current_stream().wait_stream(side)
    optimizer.zero_grad(set_to_none=True)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        loss = eager()
    return graph, loss


def aten_with(
    configure: Callable[[tg.GraphConfig], object],
) -> Callable[[Work], tuple[Step, TrainGraph]]:
    """Makes a step of a Graph on the ``aten`` backend that ``configure`` gives its options."""

    def make(work: Work) -> tuple[Step, TrainGraph]:
        graph = TrainGraph(work, AdamW(work.model.parameters(), lr=LR))
        configure(graph.config)
        return lambda: graph(work.x, work.y), graph

    return make


def _torchgraph_fused(work: Work) -> tuple[Step, TrainGraph]:
    graph = TrainGraph(work, AdamW(work.model.parameters(), lr=LR, fused=True))
    graph.config.allow_fuse_model_update_ops()
    graph.config.enable_multi_tensor_update()
    return lambda: graph(work.x, work.y), graph


def _on(backend: str, *, fused: bool) -> Callable[[Work], tuple[Step, TrainGraph]]:
    def make(work: Work) -> tuple[Step, TrainGraph]:
        optimizer = AdamW(work.model.parameters(), lr=LR, fused=fused)
        graph = TrainGraph(work, optimizer, backend, SWITCH_AT if backend == "auto" else None)
        return lambda: graph(work.x, work.y), graph

    return make


EAGER, TORCHGRAPH = "eager", "torchgraph aten"
DEFAULT_BACKEND = "torchgraph auto"
SWITCH_AT = 16
"""Where `auto` switches here: what it computes, thousands of calls, no warm-up would reach."""
CONTENDERS: dict[str, Contender] = {
    one.name: one
    for one in (
        Contender(EAGER, _eager),
        Contender("eager fused", _eager_fused),
        Contender("compile fused", _compiled, compiles=True),
        Contender("compile reduce-overhead", _reduced_overhead, compiles=True, cuda_only=True),
        Contender("manual cuda graph", _manual_cuda_graph, cuda_only=True),
        Contender(TORCHGRAPH, aten_with(lambda config: None)),
        Contender("torchgraph aten fused", _torchgraph_fused),
        Contender("torchgraph inductor", _on("inductor", fused=False), compiles=True),
        Contender(DEFAULT_BACKEND, _on("auto", fused=False), compiles=True, settles=SWITCH_AT),
    )
}
