"""Objects of other people's code whose methods raise: a step that holds one runs as in eager."""

import collections
import types
import unittest.mock
import weakref

import pytest
import torch
from torch import nn

import torchgraph as tg
from torchgraph.live.snapshot import refill


def _raises(*names: str):
    def one(name):
        def method(self, *args: object, **kwargs: object):
            raise RuntimeError(f"{name} was asked for")

        return method

    return {name: one(name) for name in names}


def _of_class(kind):
    """An object that passes for another class, and has nothing of it."""
    return type("Passing", (), {"__class__": property(lambda self: kind)})()


def _dead():
    target = type("Target", (), {})()
    return weakref.proxy(target)


def _lazy_module():
    def read(self, name):
        if name in ("__dict__", "__class__", "__name__"):
            raise ImportError(f"{name} is loaded later")
        return types.ModuleType.__getattribute__(self, name)

    return type("Lazy", (types.ModuleType,), {"__getattribute__": read})("lazy")


_SPECIAL = ("__eq__", "__hash__", "__len__", "__bool__", "__iter__", "__repr__", "__contains__")
_OF_CONTAINERS = ("__iter__", "__len__", "__getitem__", "__eq__", "items", "keys", "values")
OBJECTS = {
    "attributes": lambda: type("A", (), _raises("__getattribute__"))(),
    "class": lambda: type(
        "C", (), {**_raises(*_SPECIAL), "__class__": property(_raises("c")["c"])}
    )(),
    "special": lambda: type("S", (), _raises(*_SPECIAL))(),
    "list": lambda: type("L", (list,), _raises(*_OF_CONTAINERS))([1]),
    "dict": lambda: type("D", (dict,), _raises(*_OF_CONTAINERS))(a=1),
    "tuple": lambda: type("T", (tuple,), _raises("__iter__", "__len__", "__getitem__"))((1, 2)),
    "float": lambda: type("F", (float,), _raises("__eq__", "__repr__", "__format__"))(0.5),
    "module": lambda: type("M", (nn.Module,), _raises("__getattr__"))(),
    "lazy module": _lazy_module,
    "a proxy of an object that is gone": _dead,
    "passes for a module": lambda: _of_class(nn.Module),
    "passes for an optimizer": lambda: _of_class(torch.optim.Optimizer),
    "passes for a tensor": lambda: _of_class(torch.Tensor),
    "passes for a dict": lambda: _of_class(dict),
    "a mock of a tensor": lambda: unittest.mock.MagicMock(spec=torch.Tensor),
    "a mock of a module": lambda: unittest.mock.MagicMock(spec=nn.Module),
    "a mock of an optimizer": lambda: unittest.mock.MagicMock(spec=torch.optim.Optimizer),
}


def _of_closure(held, model, optimizer):
    return (lambda: held), ()


def _of_optimizer(held, model, optimizer):
    optimizer.extra = held
    return (lambda: None), ()


def _of_group(held, model, optimizer):
    optimizer.param_groups[0]["extra"] = held
    return (lambda: None), ()


def _of_arguments(held, model, optimizer):
    return (lambda: None), (held,)


def _in_containers(held, model, optimizer):
    around = {"all": [held]}
    return (lambda: around["all"]), ()


PLACES = {
    "closure": _of_closure,
    "container": _in_containers,
    "optimizer": _of_optimizer,
    "param group": _of_group,
    "argument": _of_arguments,
}


def _losses(make, place, graphed):
    torch.manual_seed(0)
    model = nn.Linear(3, 2)
    optimizer = torch.optim.Adam(model.parameters(), 0.1)
    look, more = place(make(), model, optimizer)

    def step(x, *others: object):
        look()
        optimizer.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        return loss

    run = tg.step(step) if graphed else step
    losses = [run(torch.randn(4, 3), *more).detach() for _ in range(4)]
    if graphed:
        assert run.report().calls.programs
        assert str(run)
        assert str(run.report())
    return [*losses, *(parameter.detach() for parameter in model.parameters())]


@pytest.mark.parametrize("place", PLACES.values(), ids=PLACES)
@pytest.mark.parametrize("make", OBJECTS.values(), ids=OBJECTS)
def test_a_step_that_holds_what_raises_is_served(make, place):
    expected, found = _losses(make, place, False), _losses(make, place, True)
    assert all(map(torch.equal, expected, found))


def test_a_step_is_described_where_a_module_holds_a_mock_of_one():
    model = nn.Linear(3, 2)
    model.extra = unittest.mock.MagicMock(spec=nn.Module)
    step = tg.step(lambda x: model(x))
    step(torch.ones(1, 3))
    assert str(step)
    assert str(step.report())


def test_a_counter_is_put_back_as_it_was():
    held = collections.Counter(a=2)
    before = list(held.items())
    held["a"] += 1
    refill(held, before)
    assert held == {"a": 2}
