"""The Graph class: names, attributes, ways to make one, what it refuses."""

import pytest
import torch
from torch import nn

import torchgraph as tg
from tests.contract.models import Eval, Function, Net, Train, adam, data, eager, made, same
from tests.support import settle
from torchgraph import _torch, errors


def test_names_count_per_class():
    class Counted(tg.Graph):
        pass

    class CountedApart(tg.Graph):
        pass

    assert [Counted().name, Counted().name, CountedApart().name] == [
        "Counted_0",
        "Counted_1",
        "CountedApart_0",
    ]


def test_is_compiled_and_training():
    model, optimizer = made()
    train, evaluate = Train(model, optimizer), Eval(model)
    assert (train.is_compiled, train.training) == (False, True)
    assert (evaluate.is_compiled, evaluate.training) == (False, False)
    train(*data())
    model.eval()
    assert (train.is_compiled, train.training) == (True, True)
    assert train.config.training is True


def test_trace():
    @tg.Graph.trace
    def double(x, *, scale=2.0):
        return x * scale

    assert isinstance(double, tg.Graph)
    assert double.name.startswith("double_graph_")
    assert torch.equal(double(torch.ones(2)), torch.full((2,), 2.0))
    assert torch.equal(double(torch.ones(2), scale=3.0), torch.full((2,), 3.0))


def test_train_step():
    (model, optimizer), (twin, other) = made(), made()
    schedule, expected = (torch.optim.lr_scheduler.StepLR(o, 1, 0.5) for o in (optimizer, other))

    def loss_fn(out, target):
        return (out - target).square().mean()

    step = tg.train_step(model, loss_fn, optimizer, lr_sch=schedule)
    target = torch.zeros(5, 2)
    torch.manual_seed(1)
    got = [step(x, target) for x in data(3)]
    torch.manual_seed(1)
    for x, value in zip(data(3), got, strict=True):
        assert torch.equal(eager(twin, other, x), value)
        expected.step()
    assert same(model.state_dict(), twin.state_dict())
    assert isinstance(step, tg.Graph)


def test_train_step_with_a_loss_module_and_several_inputs():
    class Two(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(4, 2)

        def forward(self, x, y):
            return self.linear(x + y)

    model = Two()
    step = tg.train_step(model, nn.CrossEntropyLoss(weight=torch.tensor([1.0, 2.0])), adam(model))
    x, y = data(2)
    target = torch.tensor([0, 1, 0, 1, 1])
    expected = nn.functional.cross_entropy(model(x, y), target, torch.tensor([1.0, 2.0]))
    assert torch.equal(step(x, y, target), expected.detach())


def test_the_graph_is_one_class_under_two_names():
    assert tg.nn.Graph is tg.Graph


def test_an_option_changed_after_the_first_call_takes_effect():
    graph = Function(lambda x: x + 0)
    x = torch.ones(2)
    graph(x)
    graph.config.passes.disable("canonicalize")
    with tg.testing.counters.expect(captures=1):
        assert torch.equal(graph(x), x)


def test_a_parameter_that_build_makes():
    """The call that makes it runs in eager."""

    def trained(form):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(4, 3), nn.Linear(3, 2))
        optimizer, calls = torch.optim.SGD(model.parameters(), lr=0.1), []

        def build(x):
            calls.append(1)
            if len(calls) == 1:
                model[0] = nn.Linear(4, 3)
                optimizer.param_groups[0]["params"] = list(model.parameters())
            loss = model(x).square().mean()
            loss.backward()
            return loss

        def by_hand(x):
            optimizer.zero_grad()
            loss = build(x)
            optimizer.step()
            return loss

        run = Function(build, optimizer, model=model) if form == "graph" else by_hand
        return [run(torch.randn(5, 4)).item() for _ in range(3)], list(model.parameters())

    found, expected = trained("graph"), trained("eager")
    assert found[0] == expected[0]
    assert all(map(torch.equal, found[1], expected[1]))


def test_an_optimizer_over_the_parameters_of_a_proxy():
    """OneFlow's documentation: ``flow.optim.SGD(self.model.parameters())`` in ``__init__``."""

    class Step(tg.Graph):
        def __init__(self):
            super().__init__()
            self.model = made()[0]
            self.add_optimizer(torch.optim.SGD(self.model.parameters(), lr=0.1))

        def build(self, x):
            loss = self.model(x).sum()
            loss.backward()
            return loss

    step = Step()
    before = step.model.first.weight.detach().clone()
    step(*data())
    assert not torch.equal(before, step.model.first.weight)


def test_a_module_reassigned_and_deleted():
    model, _ = made()
    graph = Eval(model.eval())
    x = data()[0]
    settle(graph, x)
    other = nn.Linear(4, 2)
    graph.model = other
    assert torch.equal(settle(graph, x), other(x))
    graph.model = model
    assert torch.equal(graph(x), model(x))
    graph.more = other  # which changes nothing
    assert torch.equal(graph(x), model(x))
    assert list(graph.state_dict()) == ["model", "more", "_train"]
    del graph.model
    assert not hasattr(graph, "model")
    with pytest.raises(AttributeError):
        graph(x)
    with pytest.raises(AttributeError):
        del graph.model


def test_the_module_seen_from_outside_is_a_proxy_of_the_live_one():
    model, _ = made()
    graph = Eval(model)
    assert graph.model.to(nn.Module) is model
    assert isinstance(graph.model, Net)
    assert graph.model.first.weight is model.first.weight
    assert same(graph.model.state_dict(), model.state_dict())
    graph.model.eval()
    assert not model.training
    assert torch.equal(graph.model(*data()), model(*data()))


def test_sync_and_last_lr():
    model, optimizer = made()
    graph = Train(model, optimizer)
    assert graph.sync() is None
    assert graph.last_lr == [0.05]
    assert Eval(model).last_lr == []


def test_a_class_with_its_own_init_arguments_and_methods():
    class Rich(tg.Graph):
        SCALE = 2.0

        def __init__(self, model, *, bias):
            super().__init__()
            self.model = model
            self.bias = bias

        def head(self, x):
            return self.model(x) * self.SCALE

        @property
        def shift(self):
            return self.bias * 2

        def build(self, x):
            return self.head(x) + self.shift

    model = nn.Linear(4, 2)
    graph = Rich(model, bias=3)
    assert torch.equal(graph(*data()), model(*data()) * 2.0 + 6)
    graph.bias = 4
    assert torch.equal(graph(*data()), model(*data()) * 2.0 + 8)
    Rich.SCALE = 1.0
    assert torch.equal(graph(*data()), model(*data()) + 8)


@pytest.mark.parametrize("pre_dispatch", [False, True])
def test_a_graph_called_inside_make_fx(pre_dispatch):
    inner = Function(lambda x: x + 1)  # in `build` of another Graph: tests/attack/wrong_uses_graph
    with pytest.raises(errors.NestedGraph, match="Function_"):
        _torch.make_fx(lambda x: inner(x), pre_dispatch=pre_dispatch)(torch.ones(1))
