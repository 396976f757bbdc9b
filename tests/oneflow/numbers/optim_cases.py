"""What computes a row of `optim-0.9.json`, with whatever library is given."""

from collections.abc import Iterator
from typing import Any

from .data import GRADIENTS, W0
from .optim_data import (
    CLIPS,
    GRAPH_SCHEDULERS,
    GRAPHS as GRAPH_OPTIMIZERS,
    INNER,
    LATE,
    METRICS,
    OPTIMIZERS,
    PLATEAUS,
    SCHEDULERS,
    WARM,
)

STEPS = 8


class Eager:
    """Two parameters in two param groups, trained step by step."""

    def __init__(self, flow: Any, name: str, settings: dict[str, Any], **more: Any) -> None:
        self._flow = flow
        self.parameters = [flow.nn.Parameter(flow.tensor(W0 * factor)) for factor in (1.0, -0.5)]
        first, second = self.parameters
        second_group = {"params": [second], "lr": 0.03, **more}
        groups = [{"params": [first], **more}, second_group]
        self.optimizer = getattr(flow.optim, name)(groups, **settings)

    def step(self, number: int, *, without: tuple[int, ...] = (), clip: bool = False) -> list[Any]:
        """The parameters after a step in which those ``without`` have no gradient."""
        for index, parameter in enumerate(self.parameters):
            parameter.grad = None
            if index not in without:
                gradient = GRADIENTS[(number + 3 * index) % 12]
                (parameter * self._flow.tensor(gradient)).sum().backward()
        if clip:
            self.optimizer.clip_grad()
        self.optimizer.step()
        return [parameter.detach().numpy().tolist() for parameter in self.parameters]


def eager_rows(flow: Any) -> Iterator[tuple[str, Any]]:
    """Key and value of each row that needs no graph."""
    for key, (name, settings) in OPTIMIZERS.items():
        run = Eager(flow, name, settings)
        yield f"TWO {key}", [run.step(number) for number in range(STEPS)]
    for key in LATE:
        run = Eager(flow, *OPTIMIZERS[key])
        without = {0: (1,), 1: (1,), 2: (1,), 5: (0,)}
        yield f"LATE {key}", [run.step(n, without=without.get(n, ())) for n in range(STEPS)]
    for key, (norm, kind) in CLIPS.items():
        clip: dict[str, Any] = {"clip_grad_max_norm": norm, "clip_grad_norm_type": kind}
        name, settings = OPTIMIZERS["SGD weight_decay"]
        run = Eager(flow, name, settings, **clip)
        yield f"CLIP {key}", [run.step(number, clip=True) for number in range(3)]
    run = Eager(flow, "SGD", {"lr": 0.1}, lr_scale=0.5)
    yield "LR_SCALE eager", [run.step(number) for number in range(3)]
    yield from schedule_rows(flow)


def schedule_rows(flow: Any) -> Iterator[tuple[str, Any]]:
    """The rates of both groups, step after step."""
    for key in SCHEDULERS:
        yield f"SCHEDULE {key}", _rates(*_scheduled(flow, key))
    for key in INNER:
        for warm, settings in WARM.items():
            # A ramp to the value of the inner schedule takes one base rate.
            optimizer, inner = _scheduled(flow, key, rates=(0.8, 0.8))
            scheduler = flow.optim.lr_scheduler.WarmUpLR(inner, **settings)
            yield f"WARM {warm} {key}", _rates(optimizer, scheduler)
    for warm in ("default", "constant", "linear"):
        optimizer = _optimizer(flow)
        scheduler = flow.optim.lr_scheduler.WarmupLR(optimizer, **WARM[warm])
        yield f"WARM {warm}", _rates(optimizer, scheduler)
    for key, rescaled in {"no": False, "yes": True, "first": [True, False]}.items():
        yield f"SEQUENCE {key}", _rates(*_sequence(flow, rescaled))
    yield "CHAIN", _rates(*_chain(flow))
    for key, settings in PLATEAUS.items():
        optimizer = _optimizer(flow)
        scheduler = flow.optim.lr_scheduler.ReduceLROnPlateau(optimizer, **settings)
        found = []
        for metric in METRICS:
            optimizer.step()
            scheduler.step(metric)
            found.append(_now(optimizer))
        yield f"PLATEAU {key}", found
    for key in ("StepLR all", "CosineDecayLR all", "PolynomialLR cycle"):
        yield f"RESUME {key}", _rates(*_scheduled(flow, key, last_step=4))


def _optimizer(flow: Any, rates: tuple[float, float] = (1.0, 0.4)) -> Any:
    groups = [{"params": [flow.nn.Parameter(flow.tensor(W0))], "lr": rate} for rate in rates]
    return flow.optim.SGD(groups)


def _scheduled(
    flow: Any, key: str, rates: tuple[float, float] = (1.0, 0.4), last_step: int = -1
) -> tuple[Any, Any]:
    name, settings = SCHEDULERS[key]
    optimizer = _optimizer(flow, rates)
    if last_step != -1:
        for group, rate in zip(optimizer.param_groups, rates, strict=True):
            group["initial_lr"] = rate
        settings = {**settings, "last_step": last_step}
    return optimizer, getattr(flow.optim.lr_scheduler, name)(optimizer, **settings)


def _sequence(flow: Any, rescaled: Any) -> tuple[Any, Any]:
    module = flow.optim.lr_scheduler
    optimizer = _optimizer(flow)
    inner = [
        module.LinearLR(optimizer, total_iters=3),
        module.CosineDecayLR(optimizer, decay_steps=8, alpha=0.1),
        module.StepLR(optimizer, step_size=2, gamma=0.5),
    ]
    milestones = [3, 8]
    return optimizer, module.SequentialLR(optimizer, inner, milestones, interval_rescaling=rescaled)


def _chain(flow: Any) -> tuple[Any, Any]:
    module = flow.optim.lr_scheduler
    optimizer = _optimizer(flow)
    inner = [module.ConstantLR(optimizer, factor=0.5), module.ExponentialLR(optimizer, gamma=0.9)]
    return optimizer, module.ChainedScheduler(inner)


def _now(optimizer: Any) -> list[float]:
    return [float(group["lr"]) for group in optimizer.param_groups]


def _rates(optimizer: Any, scheduler: Any) -> dict[str, Any]:
    found, last = [_now(optimizer)], [list(scheduler.get_last_lr())]
    for _ in range(14):
        optimizer.step()
        scheduler.step()
        found.append(_now(optimizer))
        last.append(list(scheduler.get_last_lr()))
    return {"rates": found, "last": last, "last_step": scheduler.last_step}


GRAPH_ROWS = (
    *(f"GRAPH TWO {key}" for key in GRAPH_OPTIMIZERS),
    *(f"GRAPH CLIP {key}" for key in CLIPS),
    *("GRAPH LR_SCALE", "GRAPH STATIC", "GRAPH STATIC CLIP", "GRAPH DYNAMIC", "GRAPH WARM"),
    *(f"GRAPH SCHEDULE {key}" for key in GRAPH_SCHEDULERS),
)


def graph_row(flow: Any, key: str) -> list[Any]:
    """Both parameters after each of eight steps of an `nn.Graph`."""
    _, kind, *rest = key.split(" ", 2)
    name, settings = "SGD", {"lr": 0.1, "weight_decay": 0.2}
    more: dict[str, Any] = {}
    scaler = schedule = None
    if kind == "TWO":
        name, settings = OPTIMIZERS[rest[0]]
    elif kind == "CLIP" or rest == ["CLIP"]:
        norm, norm_type = CLIPS[rest[0] if kind == "CLIP" else "2"]
        more = {"clip_grad_max_norm": norm, "clip_grad_norm_type": norm_type}
    elif kind == "LR_SCALE":
        more = {"lr_scale": 0.5}
    if kind == "STATIC":
        scaler = flow.amp.StaticGradScaler(64.0)
    elif kind == "DYNAMIC":
        scaler = flow.amp.GradScaler(init_scale=256.0, growth_interval=2)
    run = Eager(flow, name, settings, **more)
    if kind == "SCHEDULE":
        name, settings = SCHEDULERS[rest[0]]
        schedule = getattr(flow.optim.lr_scheduler, name)(run.optimizer, **settings)
    elif kind == "WARM":
        run.optimizer.param_groups[1]["lr"] = 0.1
        inner = flow.optim.lr_scheduler.CosineDecayLR(run.optimizer, decay_steps=7, alpha=0.1)
        schedule = flow.optim.lr_scheduler.WarmUpLR(inner, warmup_iters=3)
    return _trained(flow, run, scaler, schedule)


def _trained(flow: Any, run: Eager, scaler: Any, schedule: Any) -> list[Any]:
    class Products(flow.nn.Module):  # type: ignore[misc]  # a class of either library
        def __init__(self) -> None:
            super().__init__()
            self.p, self.q = run.parameters

        def forward(self, first: Any, second: Any) -> Any:
            return (self.p * first).sum() + (self.q * second).sum()

    class Step(flow.nn.Graph):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.m = Products()
            self.add_optimizer(run.optimizer, lr_sch=schedule)
            if scaler is not None:
                self.set_grad_scaler(scaler)

        def build(self, first: Any, second: Any) -> Any:
            loss = self.m(first, second)
            loss.backward()
            return loss

    step = Step()
    found = []
    for number in range(STEPS):
        given = (flow.tensor(GRADIENTS[(number + shift) % 12]) for shift in (0, 3))
        step(*given).numpy()
        found.append([parameter.detach().numpy().tolist() for parameter in run.parameters])
    return found


def checkpoint_rows(flow: Any) -> Iterator[tuple[str, Any]]:
    """A state_dict after four steps, with lists for tensors, and the four steps after it."""
    for key in LATE:
        run = Eager(flow, *OPTIMIZERS[key])
        before = [run.step(number) for number in range(4)][-1]
        saved = _lists(run.optimizer.state_dict())
        after = [run.step(number) for number in range(4, STEPS)]
        yield f"CHECKPOINT {key}", {"before": before, "saved": saved, "after": after}


def _lists(value: Any) -> Any:
    if hasattr(value, "numpy"):
        return {"tensor": value.numpy().tolist()}
    if isinstance(value, dict):
        return {str(key): _lists(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_lists(item) for item in value]
    return value
