"""Optimizers in a Graph: their updates, groups and defaults."""

from typing import Any

import numpy as np

from .made import case, filled, floats, labels, perceptron, told, train_graph, trained, weights

ROUNDED = 4e-5
"""OneFlow subtracts beta2 from 1 in float32, torch in float64: 1e-5 apart in each step."""


def _with(flow: Any, name: str, **options: Any) -> dict[str, Any]:
    model = perceptron(flow)
    return trained(flow, model, getattr(flow.optim, name)(model.parameters(), **options))


@case
def sgd(flow):
    return _with(flow, "SGD", lr=0.1)


@case
def sgd_by_default(flow):
    return _with(flow, "SGD")


@case
def sgd_with_momentum(flow):
    return _with(flow, "SGD", lr=0.1, momentum=0.9)


@case
def sgd_with_nesterov(flow):
    return _with(flow, "SGD", lr=0.1, momentum=0.9, nesterov=True)


@case
def sgd_with_dampening(flow):
    return _with(flow, "SGD", lr=0.1, momentum=0.9, dampening=0.5)


@case
def sgd_with_decay(flow):
    return _with(flow, "SGD", lr=0.1, momentum=0.9, weight_decay=0.1)


@case
def sgd_that_maximizes(flow):
    return _with(flow, "SGD", lr=0.01, momentum=0.5, maximize=True)


@case
def adam(flow):
    return _with(flow, "Adam", lr=0.1)


@case
def adam_by_default(flow):
    return _with(flow, "Adam")


@case
def adam_with_decay(flow):
    return _with(flow, "Adam", lr=0.1, weight_decay=0.1, betas=(0.8, 0.9), eps=1e-4)


@case
def adam_with_amsgrad(flow):
    return _with(flow, "Adam", lr=0.1, amsgrad=True)


@case
def adam_without_bias_correction(flow):
    return _with(flow, "Adam", lr=0.01, do_bias_correction=False)


@case
def adamw(flow):
    return _with(flow, "AdamW", lr=0.1, weight_decay=0.1)


@case
def adamw_by_default(flow):
    return _with(flow, "AdamW")


@case
def adagrad(flow):
    return _with(flow, "Adagrad", lr=0.1, lr_decay=0.1, initial_accumulator_value=0.1)


@case
def adagrad_by_default(flow):
    return _with(flow, "Adagrad")


@case
def rmsprop(flow):
    return _with(flow, "RMSprop", lr=0.01, eps=1e-2)


@case
def rmsprop_centered(flow):
    return _with(flow, "RMSprop", lr=0.01, alpha=0.9, centered=True)


@case
def adadelta(flow):
    return _with(flow, "Adadelta", lr=0.5, rho=0.8)


@case
def lamb(flow):
    return _with(flow, "LAMB", lr=0.1, weight_decay=0.1)


@case
def two_param_groups(flow):
    model = perceptron(flow)
    groups = [
        {"params": model[0].parameters(), "lr": 0.1, "momentum": 0.5},
        {"params": model[2].parameters(), "lr": 0.01, "weight_decay": 0.1},
    ]
    return trained(flow, model, flow.optim.SGD(groups, lr=0.2, momentum=0.9))


@case
def scaled_rates(flow):
    model = perceptron(flow)
    groups = [
        {"params": model[0].parameters(), "lr_scale": 0.1},
        {"params": model[2].parameters()},
    ]
    return trained(flow, model, flow.optim.SGD(groups, lr=0.1, momentum=0.9))


@case
def two_optimizers(flow):
    model = perceptron(flow)
    first = flow.optim.SGD(model[0].parameters(), lr=0.1)
    second = flow.optim.Adam(model[2].parameters(), lr=0.01)
    return trained(flow, model, [(first, None, False), (second, None, False)])


@case
def frozen_parameters(flow):
    model = perceptron(flow)
    for parameter in model[0].parameters():
        parameter.requires_grad_(False)
    kept = [one for one in model.parameters() if one.requires_grad]
    return trained(flow, model, flow.optim.SGD(kept, lr=0.1))


@case
def parameters_through_the_graph(flow):
    class TrainGraph(flow.nn.Graph):
        def __init__(self):
            super().__init__()
            self.model = perceptron(flow)
            self.add_optimizer(flow.optim.SGD(self.model.parameters(), lr=0.1))

        def build(self, x):
            loss = self.model(x).sum()
            loss.backward()
            return loss

    graph = TrainGraph()
    return {"losses": [told(graph(floats(flow, 4, 3))) for _ in range(5)]}


class _Tables:
    """Models that look rows of a table up."""

    @staticmethod
    def one(flow: Any, padding: Any = None) -> Any:
        class Net(flow.nn.Module):
            def __init__(self):
                super().__init__()
                self.table = flow.nn.Embedding(6, 2, padding_idx=padding)
                self.head = flow.nn.Linear(2, 1)

            def forward(self, ids):
                return self.head(self.table(ids))

        return filled(flow, Net())

    @staticmethod
    def twice(flow: Any) -> Any:
        class Net(flow.nn.Module):
            def __init__(self):
                super().__init__()
                self.table = flow.nn.Embedding(6, 2)
                self.head = flow.nn.Linear(2, 1)

            def forward(self, ids):
                return self.head(self.table(ids) * self.table(ids + 1))

        return filled(flow, Net())

    @staticmethod
    def tied(flow: Any) -> Any:
        class Net(flow.nn.Module):
            def __init__(self):
                super().__init__()
                self.table = flow.nn.Embedding(6, 2)

            def forward(self, ids):
                found = self.table(ids)
                return flow.matmul(found, self.table.weight.transpose(0, 1))

        return filled(flow, Net())


def _looked_up(
    flow: Any, optimizer: str, model: Any, configure: Any = bool, **options: Any
) -> dict[str, Any]:
    made = getattr(flow.optim, optimizer)
    if optimizer != "SGD":
        options.setdefault("eps", 1e-3)  # else the sign of a tiny gradient decides
    group = {"params": list(model.parameters()), **options.pop("group", {})}
    graph = train_graph(
        flow,
        model,
        [(made([group], **options), None, True)],
        loss=lambda out, y: (out**2).sum(),
        configure=configure,
    )
    losses = []
    for ids in ([0, 2, 2, 1], [1, 2, 3, 3], [0, 0, 0, 0], [1, 4, 2, 2], [0, 1, 4, 1]):
        given = flow.tensor(np.array(ids, np.int64))
        losses.append(told(graph(given, given)))
    return {"losses": losses, "weights": weights(model)}


@case
def sparse_sgd(flow):
    return _looked_up(flow, "SGD", _Tables.one(flow), lr=0.1)


@case
def sparse_nesterov(flow):
    options = {"momentum": 0.9, "nesterov": True, "dampening": 0.1}
    return _looked_up(flow, "SGD", _Tables.one(flow), lr=0.1, **options)


@case(within=ROUNDED)
def sparse_amsgrad(flow):
    return _looked_up(flow, "Adam", _Tables.one(flow), lr=0.1, amsgrad=True)


@case(within=ROUNDED)
def sparse_adam_with_a_dynamic_scaler(flow):
    def configure(graph):
        graph.set_grad_scaler(flow.amp.GradScaler(16.0, growth_interval=2, backoff_factor=0.5))

    return _looked_up(flow, "Adam", _Tables.one(flow), configure, lr=0.1)


@case(within=ROUNDED)
def sparse_adam_of_selected_rows(flow):
    class Net(flow.nn.Module):
        def __init__(self):
            super().__init__()
            self.table = flow.nn.Parameter(floats(flow, 6, 2))

        def forward(self, ids):
            return flow.index_select(self.table, 0, ids)

    return _looked_up(flow, "Adam", Net(), lr=0.1)


@case
def sparse_adam_of_indexed_rows(flow):
    class Net(flow.nn.Module):
        def __init__(self):
            super().__init__()
            self.table = flow.nn.Parameter(floats(flow, 6, 2))

        def forward(self, ids):
            return self.table[ids]

    return _looked_up(flow, "Adam", Net(), lr=0.1)


@case(within=ROUNDED)
def sparse_adam_with_scaled_rates(flow):
    return _looked_up(flow, "Adam", _Tables.one(flow), lr=0.1, group={"lr_scale": 0.5})


@case(within=ROUNDED)
def sparse_adam_with_a_scheduler(flow):
    model = _Tables.one(flow)
    optimizer = flow.optim.Adam(model.parameters(), lr=0.1, eps=1e-3)
    scheduler = flow.optim.lr_scheduler.StepLR(optimizer, 2, gamma=0.5)
    chosen = [(optimizer, scheduler, True)]
    graph = train_graph(flow, model, chosen, loss=lambda out, y: (out**2).sum())
    ids = [flow.tensor(np.array([n, 2, n], np.int64)) for n in (0, 1, 3, 0, 4)]
    return {"losses": [told(graph(one, one)) for one in ids], "weights": weights(model)}


@case
def sparse_momentum(flow):
    return _looked_up(flow, "SGD", _Tables.one(flow), lr=0.1, momentum=0.9)


@case(within=ROUNDED)
def sparse_adam(flow):
    return _looked_up(flow, "Adam", _Tables.one(flow), lr=0.1)


@case(within=ROUNDED)
def sparse_adamw(flow):
    return _looked_up(flow, "AdamW", _Tables.one(flow), lr=0.1, weight_decay=0.1)


@case(within=5e-6)
def sparse_adam_scaled_by_frequency(flow):
    class Net(flow.nn.Module):
        def __init__(self):
            super().__init__()
            self.table = flow.nn.Parameter(floats(flow, 6, 2))

        def forward(self, ids):
            return flow.nn.functional.embedding(ids, self.table, scale_grad_by_freq=True)

    return _looked_up(flow, "Adam", Net(), lr=0.1)


@case(within=5e-6)
def sparse_adam_with_padding(flow):
    return _looked_up(flow, "Adam", _Tables.one(flow, padding=0), lr=0.1)


@case(within=5e-6)
def sparse_adam_with_decay(flow):
    return _looked_up(flow, "Adam", _Tables.one(flow), lr=0.1, weight_decay=0.1)


@case
def sparse_adam_of_a_table_used_twice(flow):
    return _looked_up(flow, "Adam", _Tables.twice(flow), lr=0.1)


@case(within=5e-6)
def sparse_adam_of_a_tied_table(flow):
    return _looked_up(flow, "Adam", _Tables.tied(flow), lr=0.1)


@case(within=5e-6)
def sparse_adam_with_clipping(flow):
    group = {"clip_grad_max_norm": 0.5, "clip_grad_norm_type": 2.0}
    return _looked_up(flow, "Adam", _Tables.one(flow), lr=0.1, group=group)


@case(within=ROUNDED)
def sparse_adam_with_a_scaler(flow):
    def configure(graph):
        graph.set_grad_scaler(flow.amp.StaticGradScaler(8.0))

    return _looked_up(flow, "Adam", _Tables.one(flow), configure, lr=0.1)


@case
def sparse_adam_with_accumulation(flow):
    def configure(graph):
        graph.config.set_gradient_accumulation_steps(2)

    return _looked_up(flow, "Adam", _Tables.one(flow), configure, lr=0.1)


@case
def rows_of_gathered_weights(flow):
    model = _Tables.one(flow)
    rows = flow.tensor(np.array([0, 2, 3], np.int64))
    loss = labels(flow, 3, 2)
    return {
        "rows": told(flow.index_select(model.table.weight, 0, rows)),
        "labels": [int(one) for one in told(loss)],
    }
