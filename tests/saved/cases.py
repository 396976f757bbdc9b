"""Graphs to be saved: each makes a Graph and a stream of calls for it."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn, optim
from torch.nn import functional as F
from torch.optim import lr_scheduler as lrs

import torchgraph as tg
from examples.models import GPT, MobileNetV2


class Step(tg.Graph):
    """A model, a loss; what else the case configures."""

    def __init__(self, model, optimizer=None, scheduler=None, loss=F.cross_entropy):
        super().__init__()
        self.model, self.loss = model, loss
        if optimizer is not None:
            self.add_optimizer(optimizer, lr_sch=scheduler)

    def build(self, x, y):
        loss = self.loss(self.model(x), y)
        if self.training:
            loss.backward()
        return loss


class Predict(tg.Graph):
    def __init__(self, model):
        super().__init__()
        self.model = model

    def build(self, x):
        return self.model(x)


def mlp(width=8):
    return nn.Sequential(
        nn.Linear(4, width), nn.ReLU(), nn.Dropout(0.2), nn.BatchNorm1d(width), nn.Linear(width, 3)
    )


def batches(size=6) -> Iterator[Any]:
    generator = torch.Generator().manual_seed(3)
    while True:
        x = torch.randn(size, 4, generator=generator)
        yield (x, torch.randint(3, (size,), generator=generator)), {}


def images() -> Iterator[Any]:
    generator = torch.Generator().manual_seed(3)
    while True:
        yield (torch.randn(2, 3, 32, 32, generator=generator),), {}


def windows() -> Iterator[Any]:
    generator = torch.Generator().manual_seed(3)
    while True:
        yield (torch.randint(50, (2, 9), generator=generator),), {}


def ran(graph, calls, count=6):
    """The Graph, after so many calls."""
    for args, kwargs in itertools.islice(calls, count):
        graph(*args, **kwargs)
    return graph


Case = tuple[tg.Graph, Iterator[Any]]
CASES: dict[str, Callable[[], Case]] = {}


def case(make: Callable[[], Case]) -> Callable[[], Case]:
    CASES[make.__name__] = make
    return make


def trained(make_optimizer, make_scheduler=None, configure=lambda config: None) -> Case:
    model = mlp()
    optimizer = make_optimizer(model.parameters())
    graph = Step(model, optimizer, make_scheduler and make_scheduler(optimizer))
    configure(graph.config)
    return graph, batches()


OPTIMIZERS = {
    "sgd": lambda p: optim.SGD(p, lr=0.1),
    "momentum": lambda p: optim.SGD(p, lr=0.1, momentum=0.9, nesterov=True),
    "adam": lambda p: optim.Adam(p, lr=0.01, amsgrad=True),
    "adamw": lambda p: optim.AdamW(p, lr=0.01),
    "nadam": lambda p: optim.NAdam(p, lr=0.01),
    "radam": lambda p: optim.RAdam(p, lr=0.01),
    "rmsprop": lambda p: optim.RMSprop(p, lr=0.01, momentum=0.5),
    "adagrad": lambda p: optim.Adagrad(p, lr=0.01),
    "adamax": lambda p: optim.Adamax(p, lr=0.01),
    "asgd": lambda p: optim.ASGD(p, lr=0.01),
    "lion": lambda p: tg.optim.Lion(p, lr=0.01),
    "lamb": lambda p: tg.optim.LAMB(p, lr=0.01),
}
SCHEDULES = {
    "step": lambda o: lrs.StepLR(o, 2, 0.5),
    "multi_step": lambda o: lrs.MultiStepLR(o, [3, 5, 7], 0.5),
    "constant": lambda o: lrs.ConstantLR(o, 0.5, 6),
    "linear": lambda o: lrs.LinearLR(o, 0.1, 1.0, 12),
    "exponential": lambda o: lrs.ExponentialLR(o, 0.9),
    "cosine": lambda o: lrs.CosineAnnealingLR(o, 12),
    "restarts": lambda o: lrs.CosineAnnealingWarmRestarts(o, 4),
    "cyclic": lambda o: lrs.CyclicLR(o, 0.01, 0.1, 3, mode="triangular2"),
    "one_cycle": lambda o: lrs.OneCycleLR(o, 0.1, total_steps=40),
    "polynomial": lambda o: lrs.PolynomialLR(o, 20),
    "plateau": lambda o: lrs.ReduceLROnPlateau(o, patience=1),
    "sequential": lambda o: lrs.SequentialLR(
        o, [lrs.LinearLR(o, 0.1, 1.0, 5), lrs.CosineAnnealingLR(o, 20)], [5]
    ),
    "chained": lambda o: lrs.ChainedScheduler([lrs.ExponentialLR(o, 0.9), lrs.StepLR(o, 2)], o),
}
for _name, _make in OPTIMIZERS.items():
    CASES[f"optimizer_{_name}"] = lambda make=_make: trained(make)
for _name, _make in SCHEDULES.items():
    CASES[f"schedule_{_name}"] = lambda make=_make: trained(OPTIMIZERS["momentum"], make)


@case
def accumulation():
    return trained(
        OPTIMIZERS["adamw"], None, lambda config: config.set_gradient_accumulation_steps(3)
    )


@case
def autocast():
    return trained(OPTIMIZERS["adamw"], None, lambda c: c.enable_amp(True, dtype=torch.bfloat16))


@case
def scaled():
    graph, calls = trained(OPTIMIZERS["adamw"], SCHEDULES["step"])
    graph.set_grad_scaler(torch.amp.GradScaler("cpu", init_scale=2.0**126, growth_interval=2))
    return graph, calls


@case
def clipped():
    model = mlp()
    groups = [{"params": model.parameters(), "clip_grad_max_norm": 0.1}]
    return Step(model, optim.AdamW(groups, lr=0.01)), batches()


@case
def fused():
    return trained(
        lambda p: optim.AdamW(p, lr=0.01, fused=True),
        None,
        lambda config: config.allow_fuse_model_update_ops(True),
    )


@case
def two_groups():
    model = mlp()
    decayed = [p for p in model.parameters() if p.ndim > 1]
    others = [p for p in model.parameters() if p.ndim <= 1]
    groups = [{"params": decayed, "weight_decay": 0.1}, {"params": others, "lr": 0.02}]
    return Step(model, optim.AdamW(groups, lr=0.01)), batches()


@case
def predicts():
    return Predict(mlp().eval()), (((args[0],), {}) for args, _ in batches())


@case
def mobilenet():
    return Predict(MobileNetV2(10).eval()), images()


class Text(tg.Graph):
    def __init__(self, model, optimizer):
        super().__init__()
        self.model = model
        self.add_optimizer(optimizer)

    def build(self, ids):
        logits = self.model(ids[:, :-1])
        loss = F.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten())
        loss.backward()
        return loss


@case
def gpt():
    model = GPT(50, width=32, heads=2, layers=2, block_size=8)
    return Text(model, optim.AdamW(model.parameters(), lr=1e-3)), windows()


class Structured(tg.Graph):
    """Takes and gives back nested containers; holds a tensor that no module has."""

    def __init__(self):
        super().__init__()
        self.net = nn.Linear(4, 3)
        self.scale = [torch.full((3,), 2.0)]

    def build(self, batch, *, mask=None, scale=1.5):
        found = self.net(batch["x"]) * self.scale[0] * scale
        if mask is not None:
            found = found * mask
        return {"found": found, "parts": (found.sum(), [3, "text", None]), "x": batch["x"]}


@case
def structured():
    def calls():
        for (x, _), _ in batches():
            yield ({"x": x, "mode": "a"},), {"mask": torch.ones(6, 1)}

    return Structured(), calls()


class Branching(tg.Graph):
    """Looks at a value: there is a program for each side."""

    def __init__(self):
        super().__init__()
        self.net = nn.Linear(4, 3)
        self.add_optimizer(optim.SGD(self.net.parameters(), lr=0.1))

    def build(self, x):
        found = self.net(x)
        loss = found.square().mean() if x.sum() > 0 else found.abs().sum()
        loss.backward()
        return loss


@case
def branching():
    def calls():
        for number, ((x, _), _) in enumerate(batches()):
            yield (x.abs() if number % 2 else -x.abs(),), {}

    return Branching(), calls()


class Difference(tg.Graph):
    """Computes nothing worth a name, of two tensors."""

    def __init__(self):
        super().__init__()
        self.net = nn.Linear(4, 3)
        self.add_optimizer(optim.SGD(self.net.parameters(), lr=0.1))

    def build(self, a, b):
        loss = (self.net(a) - 2 * self.net(b).exp()).square().mean()
        loss.backward()
        return loss


@case
def one_tensor_twice():
    return Difference(), (((x, x), {}) for (x, _), _ in batches())


@case
def slices_of_one_tensor():
    wide = (torch.cat([x, -x], dim=1) for (x, _), _ in batches())
    return Difference(), (((x[:, :4], x[:, 4:]), {}) for x in wide)


class Gathering(nn.Module):
    """Constants whose elements share memory, states with gaps, numbers read from data."""

    def __init__(self):
        super().__init__()
        self.net = nn.Linear(4, 3)
        self.register_buffer("spaced", torch.randn(6, 3)[:, ::2])
        self.register_buffer("wide", torch.randn(1, 3).expand(5, 3), persistent=False)

    def forward(self, x):
        found = self.net(x)
        if found.isfinite().all().float().item() < 1.0:
            found = found.nan_to_num()
        index = torch.arange(2).flip(0).expand(len(x), 2)
        return found.gather(1, index) + self.spaced[:, :2] + self.wide[0, :2]


@case
def gathering():
    model = Gathering()
    optimizer = optim.AdamW(model.parameters(), lr=0.01)
    calls = (((x, x[:, :2].clone()), {}) for (x, _), _ in batches())
    return Step(model, optimizer, loss=F.mse_loss), calls
