"""Numbers that others move between calls: an epoch, an index, a weight that the loop sets."""

from types import SimpleNamespace

import pytest
import torch

import torchgraph as tg

epoch = 0


def trained(step, loop, count=24):
    """What each call returns, and the parameter after it, with the loop's own numbers."""
    found = []
    for number in range(count):
        loop(number)
        found.append((step(torch.full((3,), float(number))), number))
    return [(None if value is None else value.clone()) for value, _ in found]


def both(make, least):
    """Train in eager and with `tg.step`; at least so many calls have to be programs'."""
    torch.manual_seed(0)
    step, loop = make()
    expected = trained(step, loop)
    step, loop = make()
    graph = tg.step(step)
    graph.config.set_backend("aten")
    graph.config.set_look_again("off")
    found = trained(graph, loop)
    for number, (left, right) in enumerate(zip(expected, found, strict=True)):
        assert (left is None) == (right is None), number
        assert left is None or torch.equal(left, right), number
    calls = graph.report().calls
    assert calls.programs >= least, calls
    assert calls.recorded <= 12, calls


def a_step(compute):
    weight = torch.ones(3, requires_grad=True)
    optimizer = torch.optim.SGD([weight], 0.01, momentum=0.9)

    def step(x):
        optimizer.zero_grad()
        loss = compute((weight * x).sum())
        if loss is not None:
            loss.backward()
        optimizer.step()
        return loss

    return step


def in_an_attribute():
    held = SimpleNamespace(index=0)

    def loop(number):
        held.index = number

    return a_step(lambda loss: loss * (1 + 0.1 * held.index)), loop


def that_decides():
    held = SimpleNamespace(index=0)

    def loop(number):
        held.index = number

    return a_step(lambda loss: None if held.index % 5 == 3 else loss), loop


def in_a_variable():
    def loop(number):
        global epoch
        epoch = number // 3

    return a_step(lambda loss: loss * min(1.0, (epoch + 1) / 10)), loop


def a_float_in_a_dict():
    held = {"weight": 0.5}

    def loop(number):
        held["weight"] = 0.5**number

    return a_step(lambda loss: loss * held["weight"]), loop


def in_a_module():
    module = torch.nn.Linear(1, 1)
    module.index = 0

    def loop(number):
        module.index = number

    return a_step(lambda loss: loss + module.index), loop


@pytest.mark.parametrize(
    ("make", "least"),
    [
        (in_an_attribute, 17),
        (that_decides, 14),
        (in_a_variable, 12),
        (a_float_in_a_dict, 17),
        (in_a_module, 17),
    ],
)
def test_a_number_that_the_loop_sets(make, least):
    both(make, least)


def test_one_that_is_a_key_goes_on_in_eager():
    """Python reads it: another value at each call, no program."""
    held, table = SimpleNamespace(index=0), {number: 0.1 * number for number in range(24)}

    def make():
        def loop(number):
            held.index = number

        return a_step(lambda loss: loss * table[held.index]), loop

    with (
        pytest.warns(tg.errors.EagerWarning, match="index"),
        pytest.warns(tg.errors.CacheThrashWarning),
    ):
        both(make, 0)


def test_getattr_reads_one_attribute():
    """What else the object holds may move; a property runs, and a method is called by its name."""

    class Callback:
        def __init__(self):
            self.seen = []
            self.scale = 2.0

        @property
        def twice(self):
            return 2 * self.scale

        def hook(self, loss):
            return loss * getattr(self, "twice", 1.0)

    callback = Callback()

    def call(loss, name):
        for one in [callback]:
            hook = getattr(one, name)
            if callable(hook) and not hasattr(one, "absent"):
                loss = hook(loss)
        return loss

    def loop(number):
        callback.seen.append(number)
        callback.scale = 2.0 if number < 12 else 3.0

    both(lambda: (a_step(lambda loss: call(loss, "hook")), loop), 16)


def test_the_default_of_getattr_is_read_on():
    held = SimpleNamespace(usual=SimpleNamespace(scale=0))

    def step(x):
        return x * getattr(held, "other", held.usual).scale

    graph = tg.step(step)
    graph.config.set_backend("aten")
    graph.config.set_look_again("off")
    found, x = [], torch.ones(3)
    for number in range(18):
        held.usual.scale = number // 3
        found.append((graph(x), step(x)))
    assert all(torch.equal(left, right) for left, right in found)
    assert graph.report().calls.programs >= 8


def test_a_tensor_of_numbers_of_tensors():
    """``torch.tensor([a.norm(), b.norm()])``, as for the norm of all gradients."""

    def make():
        weight = torch.ones(3, requires_grad=True)
        optimizer = torch.optim.SGD([weight], 0.01)

        def step(x):
            optimizer.zero_grad()
            (weight * x).sum().backward()
            norms = torch.tensor([weight.grad.norm(2), weight.grad.abs().max()])
            assert not norms.requires_grad
            optimizer.step()
            return norms.norm(2)

        return step, lambda number: None

    both(make, 20)
