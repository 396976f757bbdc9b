"""What changes between calls without a new argument: the next call does what eager does."""

import contextlib
import types

import pytest
import torch
from torch import nn

from tests.contract.models import Eval, beside_eager, data, eager, in_turn, same, snapshot, twins
from tests.support import thinned
from torchgraph.errors import EagerWarning

TURNS = (0, 0, 0, 0, 1, 1, 1, 1, 0, 0, 1, 0)
"""Of each call: is it with the change?"""


class Base(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.act = nn.ReLU()

    @property
    def scale(self):
        return 2.0

    def helper(self, x):
        return x * self.scale

    def forward(self, x):
        return self.act(self.helper(self.linear(x)))


class Inner(Base):
    pass


class Other(Base):
    def helper(self, x):
        return x * 3


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = Inner()
        self.drop = nn.Dropout(0.2)
        self.out = nn.Linear(4, 2)

    def forward(self, x):
        return self.out(self.drop(self.inner(x)))


def in_class(cls, name, value):
    """Put ``value`` into a class for as long as the change lasts."""

    def change(_model, _optimizer):
        before = vars(cls).get(name)
        setattr(cls, name, value)
        return lambda: delattr(cls, name) if before is None else setattr(cls, name, before)

    return change


def on_instance(path, name, function):
    def change(model, _optimizer):
        module = model.get_submodule(path)
        setattr(module, name, types.MethodType(function, module))
        return lambda: delattr(module, name)

    return change


def another_method_for_an_attribute(model, _optimizer):
    """As many attributes as before."""
    inner = model.inner
    inner.note = 1
    del inner.note
    inner.helper = lambda x: x - 1
    return lambda: delattr(inner, "helper")


def another_class(model, _optimizer):
    model.inner.__class__ = Other
    return lambda: setattr(model.inner, "__class__", Inner)


def other_bases(_model, _optimizer):
    Inner.__bases__ = (Other,)
    return lambda: setattr(Inner, "__bases__", (Base,))


def step_hook(kind):
    def change(model, optimizer):
        def shrink(_optimizer, _args, _kwargs):
            with torch.no_grad():
                for parameter in model.parameters():
                    parameter.mul_(0.9)

        return getattr(optimizer, f"register_step_{kind}_hook")(shrink).remove

    return change


def sgd(self, closure=None):
    with torch.no_grad():
        for parameter in self.param_groups[0]["params"]:
            parameter.sub_(parameter.grad, alpha=0.1)


def own_step(_model, optimizer):
    optimizer.step = types.MethodType(sgd, optimizer)
    return lambda: delattr(optimizer, "step")


def wrapped_step(model, optimizer):
    step = optimizer.step

    def more():
        step()
        with torch.no_grad():
            model.out.weight.mul_(0.9)

    optimizer.step = more
    return lambda: delattr(optimizer, "step")


def class_of_the_optimizer(_model, optimizer):
    optimizer.__class__ = torch.optim.Adam
    return lambda: setattr(optimizer, "__class__", torch.optim.AdamW)


def swapped(model, _optimizer):
    def swap():
        other = nn.Parameter(torch.full_like(model.out.weight, 0.1))
        torch.utils.swap_tensors(model.out.weight, other)

    swap()
    return swap


def global_hook(_model, _optimizer):
    hook = nn.modules.module.register_module_forward_hook(lambda module, args, out: out * 1.1)
    return hook.remove


CHANGES = {
    "forward of a class": in_class(Inner, "forward", lambda self, x: self.linear(x) * 5),
    "forward of a base": in_class(Base, "forward", lambda self, x: self.linear(x) * 5),
    "a method": in_class(Base, "helper", lambda self, x: x * 7),
    "a method that hides one": in_class(Inner, "helper", lambda self, x: x * 7),
    "a property": in_class(Base, "scale", property(lambda self: 4.0)),
    "forward of torch's": in_class(nn.ReLU, "forward", lambda self, x: x.sigmoid()),
    "__call__": in_class(Inner, "__call__", lambda self, x: self.forward(x) * 1.5),
    "__call__ of all": in_class(nn.Module, "__call__", lambda self, x: self.forward(x) * 1.1),
    "__getattr__": in_class(
        Inner,
        "__getattr__",
        lambda self, name: nn.Module.__getattr__(self, "act" if name == "linear" else name),
    ),
    "step of a class": in_class(torch.optim.AdamW, "step", sgd),
    "forward of one": on_instance("inner", "forward", lambda self, x: self.linear(x) * 5),
    "a method of one": on_instance("inner", "helper", lambda self, x: x * 7),
    "forward of one of torch's": on_instance("out", "forward", lambda self, x: x @ self.weight.T),
    "a method in place of an attribute": another_method_for_an_attribute,
    "class": another_class,
    "bases": other_bases,
    "pre hook": step_hook("pre"),
    "post hook": step_hook("post"),
    "step": own_step,
    "wrapped step": wrapped_step,
    "class of the optimizer": class_of_the_optimizer,
    "swap_tensors": swapped,
    "global hook": global_hook,
}


def compare(make, change=None, around=None, turns=TURNS):
    """Eager beside a Graph, bitwise; how often the Graph recorded and replayed."""
    held = []

    def before(number, model, optimizer):
        if change is not None and turns[number] and not held:
            held.append(change(model, optimizer))
        elif held and not turns[number]:
            held.pop()()

    def surrounding(number):
        return around() if turns[number] and around is not None else contextlib.nullcontext()

    done = beside_eager(make=make, batches=data(len(turns)), before=before, around=surrounding)
    return done.recorded, done.replayed


GROUPS = [list(CHANGES)[first : first + 6] for first in range(0, len(CHANGES), 6)]


@pytest.mark.parametrize("names", GROUPS, ids=lambda names: names[0])
def test_changes_between_calls_are_noticed_and_so_are_their_ends(names):
    before = in_turn([CHANGES[name] for name in names])
    number = 4 + 6 * len(names)
    done = beside_eager(make=Net, batches=data(number), before=before)
    # One with each change, and three with the first program after each.
    assert done.replayed >= 2 + 4 * len(names)


@pytest.mark.parametrize("name", thinned(CHANGES, keep=["__getattr__", "step"]))
def test_a_change_between_the_recorded_calls(name):
    compare(Net, CHANGES[name], turns=(0, 1, 1, 0, 1, 1, 0, 0, 0))


class Hinted(nn.Module):
    """Goes by attributes of tensors."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 2)

    def forward(self, x):
        out = self.linear(x) * getattr(self.linear.weight, "scale", 1)
        return out * x.hint if hasattr(x, "hint") else out


@pytest.mark.parametrize("values", [(2.0, 3.0), (torch.tensor(2.0), torch.tensor(3.0))])
def test_an_attribute_of_a_parameter_is_noticed(values):
    def change(model, _optimizer):
        model.linear.weight.scale = values[len(turned) % 2]
        turned.append(1)
        return lambda: delattr(model.linear.weight, "scale")

    turned = []
    compare(Hinted, change, turns=(0, 0, 0, 1, 1, 1, 0, 0, 1, 1, 1, 0))


def hinted(batches, hints):
    for batch, hint in zip(batches, hints, strict=True):
        if hint is not None:
            batch.hint = hint
        yield batch


def test_attributes_of_inputs_are_noticed_with_buckets():
    model = Hinted()
    graph = Eval(model)
    graph.config.set_shape_buckets(0, [8])
    hints = [None, None, None, 2.0, 2.0, 2.0, 3.0, 2.0, None, 3.0]
    with torch.no_grad():
        for batch in hinted(data(len(hints)), hints):
            assert same(graph(batch), model(batch))


def test_tensors_in_attributes_of_inputs_are_read_by_eager():
    model = Hinted()
    graph = Eval(model)
    hints = [None, None, None, *torch.tensor([2.0, 3.0, 4.0]), None]
    batches = list(hinted(data(len(hints)), hints))
    with torch.no_grad(), pytest.warns(EagerWarning, match=r"args\[0\]\.hint is a") as found:
        got = list(map(graph, batches))
    assert len(found) == 1
    with torch.no_grad():
        assert same(got, list(map(model, batches)))


def test_an_optimizer_that_is_added_later():
    (model, optimizer), (twin, other) = twins(Net)
    graph = Eval(model)
    with torch.no_grad():
        for batch in data(4):
            graph(batch)

    def build(batch):
        loss = model(batch).square().mean()
        loss.backward()
        return loss

    graph.build = build
    graph.add_optimizer(optimizer)
    torch.manual_seed(1)
    got = [graph(batch) for batch in data(5)], snapshot(model, optimizer)
    torch.manual_seed(1)
    assert same(got, ([eager(twin, other, batch) for batch in data(5)], snapshot(twin, other)))


def test_another_build():
    model = nn.Linear(4, 2)

    class Own(Eval):
        def build(self, x):
            return self.model(x)

    graph = Own(model)
    with torch.no_grad():
        for batch in data(4):
            assert same(graph(batch), model(batch))
        Own.build = lambda self, x: self.model(x) * 2
        for batch in data(4):
            assert same(graph(batch), model(batch) * 2)
        graph.build = lambda x: model(x) * 3
        for batch in data(4):
            assert same(graph(batch), model(batch) * 3)
