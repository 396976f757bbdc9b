"""Lives of a Graph: each function makes models and Graphs, does something, and lets all go."""

from __future__ import annotations

import contextlib
import io
import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import nn, optim

import torchgraph as tg
from tests.memory.models import (
    Counting,
    Evaluate,
    Net,
    SpotChecks,
    Train,
    Trainer,
    Unsupported,
    _Failing,
    batch,
    own_step,
    run,
)
from torchgraph.nn.graph import GraphModule

LIVES: dict[str, Callable[[], None]] = {}
"""By name."""


def life(function: Callable[[], None]) -> Callable[[], None]:
    """One of `LIVES`."""
    LIVES[function.__name__] = function
    return function


@life
def never_called() -> None:
    Train(Net())


@life
def recorded() -> None:
    run(Train(Net()), 1)


@life
def confirmed() -> None:
    run(Train(Net()), 2)


@life
def replayed() -> None:
    run(Train(Net()), 6)


@life
def closed() -> None:
    graph = Train(Net())
    run(graph)
    graph.close()
    run(graph, 1)


@life
def evaluated() -> None:
    graph = Evaluate(Net().eval())
    for _ in range(4):
        graph(batch()[0])


@life
def trained_and_evaluated() -> None:
    model = Net()
    train, evaluate = Train(model), Evaluate(model)
    for _ in range(3):
        model.train()
        run(train)
        model.eval()
        for _ in range(3):
            evaluate(batch()[0])


@life
def by_train_step() -> None:
    model = Net()
    run(tg.train_step(model, nn.functional.cross_entropy, optim.AdamW(model.parameters())))


@life
def with_attributes() -> None:
    graph = Counting(Net())
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        run(graph, 6)
        graph.weight = 0.25
        run(graph, 6)


@life
def own_update() -> None:
    run(own_step(), 6)


@life
def own_update_of_a_method() -> None:
    trainer = Trainer()
    for _ in range(6):
        trainer.step(*batch())


@life
def traced() -> None:
    model = Net().eval()

    @tg.Graph.trace
    def forward(x: torch.Tensor) -> torch.Tensor:
        return model(x)

    for _ in range(4):
        forward(batch()[0])


@life
def with_a_scheduler() -> None:
    model = Net()
    optimizer = optim.AdamW(model.parameters())
    run(Train(model, optimizer, lr_sch=optim.lr_scheduler.StepLR(optimizer, 2)), 6)


@life
def with_a_scaler() -> None:
    graph = Train(Net())
    graph.set_grad_scaler(torch.amp.GradScaler("cpu"))
    run(graph, 6)


@life
def with_buckets() -> None:
    graph = Train(nn.Linear(6, 3))
    graph.config.set_shape_buckets(0, [8, 16])
    for rows in (8, 8, 8, 5, 5, 12, 12, 12, 12):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", tg.errors.PaddingWarning)
            with contextlib.suppress(tg.errors.PaddingRefused):
                graph(*batch(rows))


@life
def with_micro_batches() -> None:
    graph = Train(Net())
    graph.config.set_gradient_accumulation_steps(2)
    run(graph)


@life
def with_checkpointing() -> None:
    graph = Train(nn.Sequential(nn.Sequential(nn.Linear(6, 8), nn.ReLU()), nn.Linear(8, 3)))
    graph.model[0].to(GraphModule).activation_checkpointing = True
    run(graph)


@life
def with_memory_options() -> None:
    graph = Train(Net())
    graph.config.enable_straighten_algorithm()
    graph.config.enable_compress_memory()
    run(graph)


@life
def with_other_options() -> None:
    graph = Train(Net())
    graph.config.set_clip_grad_norm(1.0)
    graph.config.enable_gradient_norms()
    graph.config.allow_fuse_model_update_ops()
    graph.config.set_outputs_buffer_size(2)
    graph.config.enable_amp(dtype=torch.bfloat16)
    run(graph)


@life
def with_changed_options() -> None:
    graph = Train(Net())
    run(graph)
    graph.config.set_clip_grad_norm(1.0)
    run(graph)
    graph.config.passes.disable("cse")
    run(graph)


@life
def with_other_shapes() -> None:
    graph = Train(Net())
    graph.config.set_cache_size(2)
    for rows in (4, 5, 6, 4):
        run(graph, rows=rows)


@life
def with_other_optimizers() -> None:
    for make in (optim.SGD, optim.RMSprop, optim.NAdam, optim.RAdam, tg.optim.LAMB):
        model = Net()
        run(Train(model, make(model.parameters(), lr=0.01)))


@life
def with_moving_decisions() -> None:
    run(Train(SpotChecks()), 12)


@life
def debugged() -> None:
    graph = Train(Net())
    graph.debug(3)
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        run(graph)


@life
def looked_at() -> None:
    graph = Train(Net())
    repr(graph)
    run(graph, 1)
    repr(graph)
    run(graph, 3)
    str(graph.report())
    str(graph.report(memory=batch()))
    graph.check(*batch())
    repr(graph)
    repr(graph.model)
    repr(graph.model.first.to(GraphModule))
    list(graph.model.named_modules())
    str(graph.program)


@life
def handed_out() -> None:
    held: Any = []
    graph = Train(Net())
    held += [graph(*batch()) for _ in range(4)]
    held += [graph.program, graph.report(), graph.model, graph.model.first.to(GraphModule)]
    del graph
    repr(held[-2]), repr(held[-1])


@life
def saved_and_loaded() -> None:
    graph = Train(Net())
    run(graph)
    states = graph.state_dict()
    run(graph)
    graph.load_state_dict(states)
    run(graph)


@life
def moved_models() -> None:
    graph = Train(Net())
    run(graph)
    model = graph.model.to(nn.Module)
    model.first = nn.Linear(6, 8)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with contextlib.suppress(tg.errors.GraphError):
            run(graph)


@life
def failed() -> None:
    for at in (4, 8):
        graph = Train(_Failing(ValueError, at))
        for rows in (4, 8, 8, 4):
            with contextlib.suppress(ValueError):
                graph(*batch(rows))


@life
def refused() -> None:
    graph = Train(Unsupported())
    for _ in range(4):
        with contextlib.suppress(tg.errors.GraphError):
            graph(*batch())


@life
def in_eager() -> None:
    graph = Train(Unsupported())
    graph.config.set_fallback("eager")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", tg.errors.EagerWarning)
        run(graph, 6)


@life
def interrupted() -> None:
    graph = Train(_Failing(KeyboardInterrupt, 4))
    for rows in (4, 8, 4, 8, 8):
        with contextlib.suppress(KeyboardInterrupt):
            graph(*batch(rows))


@life
def failed_in_a_replay() -> None:
    graph = Train(nn.Embedding(6, 3))

    def call(index: int) -> None:
        graph(torch.full((4,), index), torch.zeros(4, dtype=torch.long))

    for _ in range(4):
        call(1)
    with contextlib.suppress(tg.errors.StepFailed, IndexError):
        call(7)
    with contextlib.suppress(tg.errors.GraphBroken, IndexError):
        call(1)
