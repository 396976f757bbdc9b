"""Training steps: losses, accumulation, clipping, scalers, options."""

from typing import Any

import numpy as np

from .made import (
    case,
    data,
    filled,
    floats,
    labels,
    meta,
    perceptron,
    told,
    trained,
)


def _trained(flow: Any, configure: Any = bool, **how: Any) -> dict[str, Any]:
    model = how.pop("model", None) or perceptron(flow)
    optimizer = flow.optim.SGD(how.pop("params", model.parameters()), lr=0.05, momentum=0.9)
    return trained(flow, model, optimizer, configure=configure, **how)


def _classes(flow: Any) -> Any:
    return lambda step: labels(flow, 4, 2, seed=step)


@case(within=5e-6)
def cross_entropy(flow):
    return _trained(flow, loss=flow.nn.CrossEntropyLoss(), y=_classes(flow))


@case
def cross_entropy_that_is_summed(flow):
    return _trained(flow, loss=flow.nn.CrossEntropyLoss(reduction="sum"), y=_classes(flow), steps=3)


@case(within=5e-6)
def nll_of_log_softmax(flow):
    nll = flow.nn.NLLLoss()

    def loss(out, y):
        return nll(flow.nn.functional.log_softmax(out, dim=1), y)

    return _trained(flow, loss=loss, y=_classes(flow))


@case
def mse(flow):
    return _trained(flow, loss=flow.nn.MSELoss())


@case
def l1(flow):
    return _trained(flow, loss=flow.nn.L1Loss())


@case
def smooth_l1(flow):
    return _trained(flow, loss=flow.nn.SmoothL1Loss(beta=0.5))


@case
def bce_with_logits(flow):
    return _trained(
        flow, loss=flow.nn.BCEWithLogitsLoss(), y=lambda n: flow.tensor(np.abs(data(4, 2, seed=n)))
    )


@case(within=1e-5)
def kl_divergence(flow):
    kl = flow.nn.KLDivLoss(reduction="sum")

    def loss(out, y):
        return kl(flow.nn.functional.log_softmax(out, dim=1), flow.softmax(y, dim=1)) * 0.2

    return _trained(flow, loss=loss)


@case
def sum_of_losses(flow):
    return _trained(flow, loss=lambda out, y: out.mean() + ((out - y) ** 2).sum() * 0.1)


@case(within=1e-5)
def convolutions_with_batch_norm(flow):
    nn = flow.nn
    model = nn.Sequential(
        nn.Conv2d(2, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(64, 2)
    )
    return _trained(
        flow,
        model=filled(flow, model),
        loss=nn.CrossEntropyLoss(),
        x=lambda step: floats(flow, 4, 2, 4, 4, seed=step),
        y=_classes(flow),
    )


# --- accumulation ---------------------------------------------------------------------------------


def _in_two(graph: Any) -> None:
    graph.config.set_gradient_accumulation_steps(2)


@case
def accumulation(flow):
    return _trained(flow, _in_two)


@case
def accumulation_of_summed_losses(flow):
    return _trained(flow, _in_two, loss=lambda out, y: ((out - y) ** 2).sum() * 0.1)


@case(within=1e-5)
def accumulation_with_batch_norm(flow):
    nn = flow.nn
    model = filled(flow, nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2)))
    many = {"x": lambda n: floats(flow, 12, 3, seed=n), "y": lambda n: floats(flow, 12, 2, seed=n)}
    return _trained(flow, _in_two, model=model, **many)


@case
def shapes_under_accumulation(flow):
    model = perceptron(flow)

    class TrainGraph(flow.nn.Graph):
        def __init__(self):
            super().__init__()
            self.model = model
            self.add_optimizer(flow.optim.SGD(model.parameters(), lr=0.1))
            self.config.set_gradient_accumulation_steps(2)

        def build(self, x):
            out = self.model(x)
            loss = out.mean()
            loss.backward()
            return loss, out, self.model[0].bias, loss.reshape(1), flow.ones(3, 2)

    graph = TrainGraph()
    outs = [graph(floats(flow, 4, 3, seed=step)) for step in range(3)]
    return {
        "metas": [meta(one) for one in outs[0]],
        "values": [[told(one) for one in out] for out in outs],
    }


# --- clipping -------------------------------------------------------------------------------------


def _clipped(flow: Any, norm_type: float, **more: Any) -> dict[str, Any]:
    model = perceptron(flow)
    group = {"clip_grad_max_norm": 0.1, "clip_grad_norm_type": norm_type, **more}
    groups = [{"params": list(model.parameters()), **group}]
    return trained(flow, model, flow.optim.SGD(groups, lr=0.5))


@case
def clipping(flow):
    return _clipped(flow, 2.0)


@case
def clipping_by_the_largest(flow):
    return _clipped(flow, float("inf"))


@case
def clipping_by_the_sum(flow):
    return _clipped(flow, 1.0)


@case
def clipping_before_decay(flow):
    return _clipped(flow, 2.0, weight_decay=0.1)


@case
def clipping_of_each_group(flow):
    model = perceptron(flow)
    clip = {"clip_grad_max_norm": 0.1, "clip_grad_norm_type": 2.0}
    groups = [{"params": list(model[n].parameters()), **clip} for n in (0, 2)]
    return trained(flow, model, flow.optim.SGD(groups, lr=0.5))


@case
def clipping_under_accumulation(flow):
    model = perceptron(flow)
    clip = {"clip_grad_max_norm": 0.1, "clip_grad_norm_type": 2.0}
    groups = [{"params": list(model.parameters()), **clip}]
    return trained(flow, model, flow.optim.SGD(groups, lr=0.5), configure=_in_two)


# --- scalers, options -----------------------------------------------------------------------------


@case
def static_scaler(flow):
    return _trained(flow, lambda graph: graph.set_grad_scaler(flow.amp.StaticGradScaler(64.0)))


@case
def dynamic_scaler(flow):
    scaler = flow.amp.GradScaler(init_scale=16.0, growth_factor=2.0, growth_interval=2)
    return _trained(flow, lambda graph: graph.set_grad_scaler(scaler))


@case
def dynamic_scaler_that_skips(flow):
    scaler = flow.amp.GradScaler(3e38, growth_factor=1e6, backoff_factor=1e-6)
    result = _trained(flow, lambda graph: graph.set_grad_scaler(scaler))
    return {"weights": result["weights"]}


@case
def amp_on_the_cpu(flow):
    return _trained(flow, lambda graph: graph.config.enable_amp(True))


@case
def amp_with_a_scaler_on_the_cpu(flow):
    def configure(graph):
        graph.config.enable_amp(True)
        graph.set_grad_scaler(flow.amp.StaticGradScaler(4.0))

    return _trained(flow, configure)


@case
def all_fusions(flow):
    def configure(graph):
        graph.config.allow_fuse_model_update_ops(True)
        graph.config.allow_fuse_add_to_output(True)
        graph.config.allow_fuse_cast_scale(True)
        graph.config.enable_zero(False)
        graph.config.enable_straighten_algorithm("Disable")

    return _trained(flow, configure)


@case
def activation_checkpointing(flow):
    def configure(graph):
        for number in (0, 2):
            block = graph.model[number].to(flow.nn.graph.GraphModule)
            block.activation_checkpointing = True

    return _trained(flow, configure)


@case
def stages_in_one_process(flow):
    def configure(graph):
        for stage, module in enumerate(graph.model):
            module.to(flow.nn.graph.GraphModule).set_stage(stage)

    return _trained(flow, configure)
