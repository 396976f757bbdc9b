"""What `benchmarks.optional_passes` runs: programs with and without a pass, by row."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional as F
from torch.optim import SGD

import torchgraph as tg
from torchgraph.passes import ChannelsLast, FoldBatchNorm, Pass

from .cases import CASES, dense, mlp
from .work import Work

Call = Callable[[], Any]
Forward = Callable[[nn.Module, Tensor], Tensor]


@dataclass(frozen=True)
class Row:
    """A named comparison. ``make`` gives contenders; the first is the Graph without the pass."""

    name: str
    about: str
    make: Callable[[], dict[str, Call]]


class Step(tg.Graph):
    """Training when it has an optimizer, else inference."""

    def __init__(
        self,
        work: Work,
        *passes: Pass,
        optimizer: SGD | None = None,
        is_sparse: bool = False,
        forward: Forward | None = None,
    ) -> None:
        super().__init__()
        self.model = work.model
        self.loss_fn = work.loss_fn
        self.forward = forward
        if optimizer is not None:
            self.add_optimizer(optimizer, is_sparse=is_sparse)
        for one in passes:
            self.config.passes.insert(one, after="cse")

    def build(self, x: Tensor, y: Tensor) -> Tensor:
        result: Tensor = self.forward(self.model, x) if self.forward else self.model(x)
        if self.training:
            result = self.loss_fn(result, y)
            result.backward()
        return result


def _own(work: Work, layout: torch.memory_format = torch.preserve_format) -> Work:
    model = copy.deepcopy(work.model)
    model.to(memory_format=layout)  # type: ignore[call-overload]  # torch's stubs do not know it
    return Work(model, work.x, work.y, work.loss_fn)


def training(work: Work, *passes: Pass, is_sparse: bool = False) -> Call:
    """A step of SGD through a Graph, on the work's own model."""
    optimizer = SGD(work.model.parameters(), lr=1e-3)
    graph = Step(work, *passes, optimizer=optimizer, is_sparse=is_sparse)
    return lambda: graph(work.x, work.y)


def inference(work: Work, *passes: Pass, forward: Forward | None = None) -> Call:
    """The model through a Graph, in eval mode and below autograd."""
    work.model.eval()
    graph = Step(work, *passes, forward=forward)

    def call() -> Any:
        with torch.no_grad():
            return graph(work.x, work.y)

    return call


def _eager_training(work: Work) -> Call:
    optimizer = SGD(work.model.parameters(), lr=1e-3)

    def step() -> Tensor:
        optimizer.zero_grad(set_to_none=True)
        loss = work.loss_fn(work.model(work.x), work.y)
        loss.backward()
        optimizer.step()
        return loss.detach()

    return step


def _eager_inference(work: Work) -> Call:
    work.model.eval()

    def call() -> Any:
        with torch.no_grad():
            return work.model(work.x)

    return call


# --- rows ----------------------------------------------------------------------------------------


def _images_training(case: str) -> dict[str, Call]:
    work = CASES[case].on(torch.device("cpu"))
    return {
        "graph": training(_own(work)),
        "channels_last": training(_own(work), ChannelsLast()),
        "model.to(channels_last)": training(_own(work, torch.channels_last)),
        "eager": _eager_training(_own(work)),
        "eager, model.to(channels_last)": _eager_training(_own(work, torch.channels_last)),
    }


def _images_inference(case: str) -> dict[str, Call]:
    work = CASES[case].on(torch.device("cpu"))
    return {
        "graph": inference(_own(work)),
        "fold_batch_norm": inference(_own(work), FoldBatchNorm()),
        "channels_last": inference(_own(work), ChannelsLast()),
        "both": inference(_own(work), ChannelsLast(), FoldBatchNorm()),
        "model.to(channels_last)": inference(_own(work, torch.channels_last)),
        "eager": _eager_inference(_own(work)),
        "eager, model.to(channels_last)": _eager_inference(_own(work, torch.channels_last)),
    }


def _words(rows: int) -> dict[str, Call]:
    model = nn.Sequential(nn.Embedding(rows, 64), nn.Linear(64, 8))
    labels = torch.randint(8, (512,))
    work = Work(model, torch.randint(rows, (512,)), labels, F.cross_entropy)
    sparse = _own(work)
    sparse.model[0].sparse = True  # type: ignore[index]  # a Sequential of ours
    return {
        "graph": training(_own(work)),
        "sparse_embedding": training(_own(work), is_sparse=True),
        "eager": _eager_training(_own(work)),
        "eager, Embedding(sparse=True)": _eager_training(sparse),
    }


def _autocast(model: nn.Module, x: Tensor) -> Tensor:
    with torch.autocast("cpu", torch.bfloat16):
        result: Tensor = model(x)
    return result


def _casts(batch: int) -> dict[str, Call]:
    work = dense(mlp(6, inputs=1024, width=1024), batch=batch, inputs=1024)
    half = _own(work)
    half = Work(half.model.bfloat16(), work.x.bfloat16(), work.y, work.loss_fn)
    return {
        "graph, autocast": inference(_own(work), forward=_autocast),
        "weights that are half already": inference(half),
    }


def _cast_all_first(model: nn.Module, x: Tensor) -> Tensor:
    weights = {name: value.bfloat16() for name, value in model.named_parameters()}
    result: Tensor = functional_call(model, weights, (x.bfloat16(),))
    return result


def casts_first(*, delayed: bool) -> Call:
    """24 layers of a million weights, all cast to half precision before the first of them runs."""
    work = dense(mlp(24, inputs=1024, width=1024), batch=16, inputs=1024)
    graph = Step(work, forward=_cast_all_first)
    if not delayed:
        graph.config.passes.disable("delay_variables")

    def call() -> Any:
        with torch.no_grad():
            return graph(work.x, work.y)

    return call


ROWS = (
    Row(
        "mobilenet_v2 training",
        CASES["mobilenet_v2"].about,
        lambda: _images_training("mobilenet_v2"),
    ),
    Row("conv6 training", CASES["conv6"].about, lambda: _images_training("conv6")),
    Row(
        "mobilenet_v2 inference",
        CASES["mobilenet_v2"].about,
        lambda: _images_inference("mobilenet_v2"),
    ),
    Row("conv6 inference", CASES["conv6"].about, lambda: _images_inference("conv6")),
    Row("table of 200k", "200,000 x 64, batch 512, SGD", lambda: _words(200_000)),
    Row("table of 20k", "20,000 x 64, batch 512, SGD", lambda: _words(20_000)),
    Row("casts at batch 1", "6 layers of 1024 x 1024, bfloat16", lambda: _casts(1)),
    Row("casts at batch 128", "6 layers of 1024 x 1024, bfloat16", lambda: _casts(128)),
)
