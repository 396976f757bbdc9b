"""The rows `OPT`, `SCH`, `LOSS` and `OP`: each computed with whatever library is given."""

from collections.abc import Callable
from typing import Any

import numpy as np

from .data import GRADIENTS, IMAGES, LABELS, W0, P, Q

OPTIMIZERS: dict[str, tuple[str, dict[str, Any]]] = {
    "SGD": ("SGD", {"lr": 0.1}),
    "SGD mom": ("SGD", {"lr": 0.1, "momentum": 0.9}),
    "SGD mom wd": ("SGD", {"lr": 0.1, "momentum": 0.9, "weight_decay": 0.1}),
    "SGD nesterov": ("SGD", {"lr": 0.1, "momentum": 0.9, "nesterov": True}),
    "SGD dampening": ("SGD", {"lr": 0.1, "momentum": 0.9, "dampening": 0.5}),
    "SGD maximize wd": (
        "SGD",
        {"lr": 0.1, "momentum": 0.9, "weight_decay": 0.1, "maximize": True},
    ),
    "Adam": ("Adam", {"lr": 0.1}),
    "Adam wd": ("Adam", {"lr": 0.1, "weight_decay": 0.1}),
    "Adam amsgrad": ("Adam", {"lr": 0.1, "amsgrad": True}),
    "AdamW default": ("AdamW", {"lr": 0.1}),
    "AdamW wd": ("AdamW", {"lr": 0.1, "weight_decay": 0.1}),
    "Adam default lr": ("Adam", {}),
    "RMSprop": ("RMSprop", {"lr": 0.1}),
    "RMSprop eps": ("RMSprop", {"lr": 0.1, "eps": 1e-2}),
    "RMSprop default": ("RMSprop", {}),
    "RMSprop mom": ("RMSprop", {"lr": 0.1, "momentum": 0.9}),
    "RMSprop centered": ("RMSprop", {"lr": 0.1, "centered": True}),
    "Adagrad": ("Adagrad", {"lr": 0.1}),
    "Adagrad default": ("Adagrad", {}),
    "Adagrad wd": ("Adagrad", {"lr": 0.1, "weight_decay": 0.1}),
    "Adadelta": ("Adadelta", {"lr": 1.0}),
    "Adadelta default": ("Adadelta", {}),
    "LAMB wd": ("LAMB", {"lr": 0.1, "weight_decay": 0.1}),
}

GRAPHS = (
    *("SGD mom", "SGD maximize wd", "SGD nesterov", "SGD dampening", "SGD mom wd"),
    *("Adam wd", "AdamW wd", "AdamW default", "RMSprop eps", "RMSprop", "Adagrad"),
    *("Adagrad default", "Adadelta", "LAMB wd", "Adam amsgrad"),
)

SCHEDULERS: dict[str, dict[str, Any]] = {
    "StepLR": {"step_size": 3, "gamma": 0.5},
    "MultiStepLR": {"milestones": [2, 5], "gamma": 0.5},
    "ExponentialLR": {"gamma": 0.9},
    "ConstantLR": {"factor": 0.3, "total_iters": 4},
    "LinearLR": {"start_factor": 0.3, "total_iters": 4},
    "CosineAnnealingLR": {"T_max": 8, "eta_min": 0.01},
    "CosineAnnealingWarmRestarts": {"T_0": 4, "T_mult": 2},
    "PolynomialLR": {"decay_batch": 8, "end_learning_rate": 0.1, "power": 2.0},
    "LambdaLR": {"lr_lambda": lambda step: 0.9**step},
    "CosineDecayLR": {"decay_steps": 8, "alpha": 0.1},
}

LOSSES = (
    *("CrossEntropyLoss", "NLLLoss", "MSELoss", "L1Loss", "SmoothL1Loss"),
    *("BCELoss", "BCEWithLogitsLoss", "KLDivLoss"),
)

Row = Callable[[], Any]


def rows(flow: Any) -> dict[str, Row]:
    """By key, what computes the row with ``flow``, in the stored order."""
    found: dict[str, Row] = {}
    for key, (name, settings) in OPTIMIZERS.items():
        found[f"OPT {key}"] = _later(optimizer_row, flow, name, settings)
    for name, settings in SCHEDULERS.items():
        found[f"SCH {name}"] = _later(scheduler_row, flow, name, settings)
    for reduction in ("none", "mean", "sum"):
        for name in LOSSES:
            found[f"LOSS {name} {reduction}"] = _later(_loss_row, flow, name, reduction)
    for name, compute in _ops(flow).items():
        found[f"OP {name}"] = compute
    return found


def _later(function: Callable[..., Any], *args: Any) -> Row:
    return lambda: function(*args)


def optimizer_row(flow: Any, name: str, settings: dict[str, Any]) -> list[Any]:
    """The parameter after each of six steps."""
    parameter = flow.nn.Parameter(flow.tensor(W0))
    optimizer = getattr(flow.optim, name)([parameter], **settings)
    found = []
    for gradient in GRADIENTS[:6]:
        parameter.grad = None
        (parameter * flow.tensor(gradient)).sum().backward()
        optimizer.step()
        found.append(parameter.detach().numpy().tolist())
    return found


def scheduler_row(flow: Any, name: str, settings: dict[str, Any]) -> list[float]:
    """The learning rate of each of twelve steps."""
    optimizer = flow.optim.SGD([flow.nn.Parameter(flow.tensor(W0))], lr=1.0)
    scheduler = getattr(flow.optim.lr_scheduler, name)(optimizer, **settings)
    found = []
    for _ in range(12):
        found.append(float(optimizer.param_groups[0]["lr"]))
        optimizer.step()
        scheduler.step()
    return found


def graph_row(flow: Any, name: str, settings: dict[str, Any]) -> list[Any]:
    """`optimizer_row` of a step that is an `nn.Graph`."""

    class Product(flow.nn.Module):  # type: ignore[misc]  # a class of either library
        def __init__(self) -> None:
            super().__init__()
            self.p = flow.nn.Parameter(flow.tensor(W0))

        def forward(self, gradient: Any) -> Any:
            return (self.p * gradient).sum()

    model = Product()
    optimizer = getattr(flow.optim, name)([{"params": [model.p], **settings}])

    class Step(flow.nn.Graph):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.m = model
            self.add_optimizer(optimizer)

        def build(self, gradient: Any) -> Any:
            loss = self.m(gradient)
            loss.backward()
            return loss

    step = Step()
    found = []
    for gradient in GRADIENTS[:6]:
        step(flow.tensor(gradient)).numpy()
        found.append(model.p.detach().numpy().tolist())
    return found


def _loss_row(flow: Any, name: str, reduction: str) -> Any:
    loss = getattr(flow.nn, name)(reduction=reduction)
    labelled = name in ("CrossEntropyLoss", "NLLLoss")
    return _plain(loss(flow.tensor(P), flow.tensor(LABELS if labelled else Q)))


def _plain(value: Any) -> Any:
    return np.asarray(value.detach().numpy()).tolist()


def _ops(flow: Any) -> dict[str, Row]:
    nn, functional, tensor = flow.nn, flow.nn.functional, flow.tensor
    a, images = tensor(P), tensor(IMAGES)
    first = int(LABELS[0])

    def after_one(name: str) -> Any:
        norm = nn.BatchNorm2d(3)
        norm(images)
        return getattr(norm, name)

    computed = {
        "CE int32 labels": lambda: nn.CrossEntropyLoss()(a, tensor(LABELS.astype("int32"))),
        "CE ignore_index mean": lambda: nn.CrossEntropyLoss(ignore_index=first)(a, tensor(LABELS)),
        "CE label_smoothing": lambda: nn.CrossEntropyLoss(label_smoothing=0.1)(a, tensor(LABELS)),
        "tensor.softmax()": lambda: a.softmax(),
        "tensor.std": lambda: a.std(dim=1),
        "tensor.var": lambda: a.var(dim=1),
        "var all": lambda: a.var(),
        "GELU": lambda: nn.GELU()(images),
        "GELU tanh": lambda: nn.GELU(approximate="tanh")(images),
        "BN train": lambda: nn.BatchNorm2d(3)(images),
        "BN running_var": lambda: after_one("running_var"),
        "BN num_batches_tracked": lambda: after_one("num_batches_tracked"),
        "AvgPool2d pad": lambda: nn.AvgPool2d(3, 2, 1)(images),
        "interpolate bilinear": lambda: functional.interpolate(
            images, scale_factor=2, mode="bilinear"
        ),
        "interpolate bicubic": lambda: functional.interpolate(
            images, scale_factor=2, mode="bicubic"
        ),
        "Upsample nearest": lambda: nn.Upsample(scale_factor=2)(images),
        "normalize": lambda: functional.normalize(a),
        "argmax": lambda: a.argmax(),
        "sum bool": lambda: (a > 0.5).sum(),
        "mean int": lambda: tensor([1, 2]).mean(),
        "int div": lambda: tensor([3, -3]) / tensor([2, 2]),
        "floor_div": lambda: tensor([3, -3]) // 2,
        "int pow": lambda: tensor([2, 3]) ** 2,
        "topk": lambda: a.topk(2)[0],
        "masked_select": lambda: flow.masked_select(a, a > 0.5),
        "where scalar": lambda: flow.where(a > 0.5, a, flow.zeros_like(a)),
        "Dropout eval": lambda: nn.Dropout(0.5).eval()(a),
        "LayerNorm": lambda: nn.LayerNorm(6)(a),
        "clamp": lambda: a.clip(0.2, 0.5),
        "cumsum": lambda: a.cumsum(1),
        "einsum": lambda: flow.einsum("ij,kj->ik", a, a),
        "norm": lambda: flow.linalg.norm(a),
        "one_hot": lambda: functional.one_hot(tensor(LABELS), 6),
        "linspace": lambda: flow.linspace(0, 1, 5),
        "round": lambda: flow.round(tensor([0.5, 1.5, 2.5])),
        "sign": lambda: flow.sign(a - 0.5),
    }
    found = {
        name: _later(lambda one: np.asarray(one().detach().numpy(), dtype="float64").tolist(), one)
        for name, one in computed.items()
    }
    return {**found, "clip_grad_norm_": _later(_clipped, flow)}


def _clipped(flow: Any) -> list[float]:
    parameter = flow.nn.Parameter(flow.tensor(W0))
    (parameter * flow.tensor(GRADIENTS[0])).sum().backward()
    norm = flow.nn.utils.clip_grad_norm_([parameter], 0.5)
    found: list[float] = np.concatenate([parameter.grad.numpy(), [float(norm.numpy())]]).tolist()
    return found
