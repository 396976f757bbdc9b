"""Gradients in a Graph: functions of one's own, what build does with them, several Graphs."""

from typing import Any

import numpy as np

from .made import (
    case,
    data,
    evaluated,
    filled,
    floats,
    perceptron,
    told,
    train_graph,
    trained,
    weights,
)


def _trained(flow: Any, **how: Any) -> dict[str, Any]:
    model = perceptron(flow)
    optimizer = flow.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    return trained(flow, model, optimizer, **how)


@case
def function_of_ones_own(flow):
    class Cube(flow.autograd.Function):
        @staticmethod
        def forward(ctx, x) -> Any:
            ctx.save_for_backward(x)
            return x**3

        @staticmethod
        def backward(ctx, grad) -> Any:
            (x,) = ctx.saved_tensors
            return grad * x * x * 3 + 0.5

    return _trained(flow, loss=lambda out, y: Cube.apply(out - y).sum() * 0.1, steps=4)


@case
def function_of_two_tensors(flow):
    class Product(flow.autograd.Function):
        @staticmethod
        def forward(ctx, x, y) -> Any:
            ctx.save_for_backward(x, y)
            return x * y

        @staticmethod
        def backward(ctx, grad) -> Any:
            x, y = ctx.saved_tensors
            return grad * y, grad * x

    return _trained(flow, loss=lambda out, y: Product.apply(out, out + y).mean(), steps=4)


@case
def no_grad_in_build(flow):
    def loss(out, y):
        with flow.no_grad():
            target = out * 0.5 + y
        return ((out - target) ** 2).mean()

    return _trained(flow, loss=loss)


@case
def detached_in_build(flow):
    return _trained(flow, loss=lambda out, y: (out * out.detach() - y).mean())


def _undivided(stored: Any) -> dict[str, Any]:
    weight, bias = data(2, 3, seed=1), data(2, seed=2)
    gradient = data(4, 3).sum(axis=0)
    moved = {"weight": weight - np.float32(0.1) * gradient, "bias": bias - np.float32(0.1 * 4)}
    return {name: value.tolist() for name, value in moved.items()}


@case(
    bugs={
        "weights": (
            "OneFlow divides gradients by the number of elements of what backward() was called on",
            _undivided,
        )
    }
)
def backward_with_a_gradient(flow):
    model = filled(flow, flow.nn.Linear(3, 2))

    class TrainGraph(flow.nn.Graph):
        def __init__(self):
            super().__init__()
            self.model = model
            self.add_optimizer(flow.optim.SGD(model.parameters(), lr=0.1))

        def build(self, x):
            out = self.model(x)
            out.backward(flow.ones_like(out))
            return out.sum()

    graph = TrainGraph()
    return {"first": told(graph(floats(flow, 4, 3))), "weights": weights(model)}


@case
def gradient_returned(flow):
    model = perceptron(flow)

    class TrainGraph(flow.nn.Graph):
        def __init__(self):
            super().__init__()
            self.model = model
            self.add_optimizer(flow.optim.SGD(model.parameters(), lr=0.1))

        def build(self, x):
            hidden = self.model[0](x)
            hidden.retain_grad()
            loss = self.model[2](flow.relu(hidden)).mean()
            loss.backward()
            return loss, hidden.grad

    graph = TrainGraph()
    return {"outs": [[told(one) for one in graph(floats(flow, 4, 3))] for _ in range(3)]}


@case
def weight_returned(flow):
    model = filled(flow, flow.nn.Linear(3, 1))

    class TrainGraph(flow.nn.Graph):
        def __init__(self):
            super().__init__()
            self.model = model
            self.add_optimizer(flow.optim.SGD(model.parameters(), lr=0.1))

        def build(self, x):
            loss = self.model(x).sum()
            loss.backward()
            return self.model.weight

    graph = TrainGraph()
    outs = [told(graph(floats(flow, 4, 3))) for _ in range(4)]
    return {"outs": outs, "after": told(model.weight)}


@case(refused="OneFlow does not update a parameter that has a gradient before the first call")
def gradients_of_eager_before(flow):
    model = perceptron(flow)
    model(floats(flow, 4, 3)).sum().backward()
    return trained(flow, model, flow.optim.SGD(model.parameters(), lr=0.1))


@case(
    bugs={
        name: (
            "OneFlow does not update a parameter that has a gradient before the first call",
            lambda stored, name=name: stored["sgd"][name],
        )
        for name in ("losses", "weights")
    }
)
def gradients_of_zeros_before(flow):
    model = perceptron(flow)
    optimizer = flow.optim.SGD(model.parameters(), lr=0.1)
    model(floats(flow, 4, 3)).sum().backward()
    optimizer.zero_grad()
    return trained(flow, model, optimizer)


@case
def tied_weights(flow):
    class Net(flow.nn.Module):
        def __init__(self):
            super().__init__()
            self.first = flow.nn.Linear(3, 3, bias=False)
            self.second = flow.nn.Linear(3, 3, bias=False)
            self.second.weight = self.first.weight

        def forward(self, x):
            return self.second(flow.tanh(self.first(x)))

    model = filled(flow, Net())
    optimizer = flow.optim.Adam([model.first.weight], lr=0.05)
    return trained(flow, model, optimizer, loss=lambda out, y: out.mean())


@case
def train_and_eval_on_one_model(flow):
    model = perceptron(flow)
    train = train_graph(flow, model, flow.optim.SGD(model.parameters(), lr=0.1))
    evaluate = evaluated(flow, lambda self, x: self.model(x), model)
    found = []
    for step in range(4):
        model.train()
        found.append(told(train(floats(flow, 4, 3, seed=step), floats(flow, 4, 2, seed=9 + step))))
        model.eval()
        found.append(told(evaluate(floats(flow, 2, 3))))
    return {"found": found}


@case
def adversaries(flow):
    nn = flow.nn
    maker = filled(flow, nn.Linear(2, 3), seed=1)
    judge = filled(flow, nn.Linear(3, 1), seed=7)
    of_maker = flow.optim.Adam(maker.parameters(), lr=0.01)
    of_judge = flow.optim.Adam(judge.parameters(), lr=0.01)

    class Makes(nn.Graph):
        def __init__(self):
            super().__init__()
            self.maker, self.judge = maker, judge
            self.add_optimizer(of_maker)

        def build(self, z):
            made = self.maker(z)
            loss = self.judge(made).mean()
            loss.backward()
            return loss, made

    class Judges(nn.Graph):
        def __init__(self):
            super().__init__()
            self.maker, self.judge = maker, judge
            self.add_optimizer(of_judge)

        def build(self, z, x):
            loss = (self.judge(self.maker(z).detach()) - self.judge(x)).mean()
            loss.backward()
            return loss

    makes, judges = Makes(), Judges()
    found = []
    for step in range(4):
        z, x = floats(flow, 4, 2, seed=step), floats(flow, 4, 3, seed=20 + step)
        found.append(told(judges(z, x)))
        for parameter in judge.parameters():
            parameter.grad = None  # in OneFlow a lazy tensor of the first Graph, which stops this
        found.append(told(makes(z)[0]))
    return {"found": found, "maker": weights(maker), "judge": weights(judge)}
