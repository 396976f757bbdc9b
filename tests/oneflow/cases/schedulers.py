"""Schedulers that a Graph steps: the rates of its first calls."""

import numpy as np

from .made import case, floats, perceptron, rates, told, train_graph, weights


@case
def no_scheduler_but_a_step_of_it(flow):
    return rates(flow, lambda optimizer: None, steps=3)


@case
def step_lr(flow):
    return rates(flow, lambda o: flow.optim.lr_scheduler.StepLR(o, 2, gamma=0.5))


@case
def multi_step_lr(flow):
    return rates(flow, lambda o: flow.optim.lr_scheduler.MultiStepLR(o, [2, 5], gamma=0.1))


@case
def exponential_lr(flow):
    return rates(flow, lambda o: flow.optim.lr_scheduler.ExponentialLR(o, gamma=0.7))


@case
def constant_lr(flow):
    return rates(flow, lambda o: flow.optim.lr_scheduler.ConstantLR(o, factor=0.5, total_iters=3))


@case
def linear_lr(flow):
    make = flow.optim.lr_scheduler.LinearLR
    return rates(flow, lambda o: make(o, start_factor=0.2, end_factor=0.8, total_iters=4))


@case
def polynomial_lr(flow):
    make = flow.optim.lr_scheduler.PolynomialLR
    return rates(flow, lambda o: make(o, decay_batch=5, end_learning_rate=0.01, power=2.0))


@case
def polynomial_lr_in_cycles(flow):
    make = flow.optim.lr_scheduler.PolynomialLR
    return rates(flow, lambda o: make(o, decay_batch=3, power=1.0, cycle=True))


@case
def cosine_decay_lr(flow):
    make = flow.optim.lr_scheduler.CosineDecayLR
    return rates(flow, lambda o: make(o, decay_steps=5, alpha=0.1))


@case
def cosine_annealing_lr(flow):
    make = flow.optim.lr_scheduler.CosineAnnealingLR
    return rates(flow, lambda o: make(o, T_max=4, eta_min=0.01))


@case
def cosine_annealing_warm_restarts(flow):
    make = flow.optim.lr_scheduler.CosineAnnealingWarmRestarts
    return rates(flow, lambda o: make(o, T_0=3, T_mult=2, eta_min=0.01))


@case
def warm_up_lr(flow):
    schedulers = flow.optim.lr_scheduler

    def make(optimizer):
        inner = schedulers.StepLR(optimizer, 3, gamma=0.5)
        return schedulers.WarmUpLR(inner, warmup_factor=0.25, warmup_iters=4)

    return rates(flow, make)


@case
def warm_up_lr_that_is_constant(flow):
    schedulers = flow.optim.lr_scheduler

    def make(optimizer):
        inner = schedulers.CosineAnnealingLR(optimizer, T_max=6)
        return schedulers.WarmUpLR(
            inner, warmup_factor=0.5, warmup_iters=3, warmup_method="constant", warmup_prefix=True
        )

    return rates(flow, make)


@case
def sequential_lr(flow):
    schedulers = flow.optim.lr_scheduler

    def make(optimizer):
        first = schedulers.ConstantLR(optimizer, factor=0.1, total_iters=2)
        second = schedulers.ExponentialLR(optimizer, gamma=0.9)
        return schedulers.SequentialLR(optimizer, [first, second], milestones=[3])

    return rates(flow, make)


@case
def rate_set_by_hand_before_the_first_call(flow):
    model = perceptron(flow)
    optimizer = flow.optim.SGD(model.parameters(), lr=0.1)
    graph = train_graph(flow, model, optimizer)
    optimizer.param_groups[0]["lr"] = 0.01
    losses = [told(graph(floats(flow, 4, 3), floats(flow, 4, 2))) for _ in range(3)]
    return {"losses": losses, "weights": weights(model)}


@case(
    bugs={
        "moved": (
            "OneFlow's graph does not look at a rate that is set after the first call",
            [-0.1, -0.15, -0.175, -0.1875],
        )
    }
)
def rate_set_by_hand_between_calls(flow):
    model = flow.nn.Linear(1, 1, bias=False)
    model.load_state_dict({"weight": flow.tensor(np.zeros((1, 1), np.float32))})
    optimizer = flow.optim.SGD(model.parameters(), lr=0.1)
    graph = train_graph(flow, model, optimizer, loss=lambda out, y: out.sum())
    one = flow.tensor(np.ones((1, 1), np.float32))
    moved = []
    for _ in range(4):
        graph(one, one)
        optimizer.param_groups[0]["lr"] = optimizer.param_groups[0]["lr"] / 2
        moved.append(told(model.weight)[0][0])
    return {"moved": moved}
