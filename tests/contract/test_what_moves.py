"""What moves between calls: it is an input, or has programs of its own, or is named once."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.functional import mse_loss

import torchgraph as tg
from tests.cases.forms import no_looks
from tests.cases.plays import Play, singles
from tests.cases.table import Table
from torchgraph.errors import EagerWarning, NoProgram
from torchgraph.testing import counters

case = Table(fallback="eager")


def linear() -> tuple[nn.Module, torch.optim.Optimizer]:
    model = nn.Linear(4, 2)
    return model, torch.optim.SGD(model.parameters(), lr=0.1)


# --- numbers that the loop sets -------------------------------------------------------------------


def set_by_the_loop(
    compute: Callable[[torch.Tensor], Any], put: Callable[[int], Any], **more: Any
) -> Play:
    """A loop that puts the number of a call in place before it, and a step that reads it.

    Args:
        compute: gives the loss from the product of weights and batch.
        put: is given the number of each call.
    """
    weight = torch.ones(3, requires_grad=True)
    optimizer = torch.optim.SGD([weight], 0.01, momentum=0.9)

    def step(x):
        optimizer.zero_grad()
        loss = compute((weight * x).sum())
        if loss is not None:
            loss.backward()
        optimizer.step()
        return loss

    calls = [(torch.full((3,), float(number)),) for number in range(24)]
    before = {number: lambda number=number: put(number) for number in range(24)}
    return Play(step, [weight, optimizer], before, calls)


def in_an_attribute(holder: Any, compute: Callable[[torch.Tensor, Any], Any]) -> Play:
    holder.index = 0
    put = lambda number: setattr(holder, "index", number)  # noqa: E731
    return set_by_the_loop(lambda loss: compute(loss, holder.index), put)


case.rows(
    {
        "in_an_attribute": lambda: in_an_attribute(
            SimpleNamespace(), lambda loss, index: loss * (1 + 0.1 * index)
        ),
        "in_a_module": lambda: in_an_attribute(nn.Linear(1, 1), lambda loss, index: loss + index),
    },
    least=17,
    configure=no_looks,
)
case(
    lambda: in_an_attribute(
        SimpleNamespace(), lambda loss, index: None if index % 5 == 3 else loss
    ),
    name="that_decides",
    least=14,
    configure=no_looks,
)
epoch = 0


@case(least=12, configure=no_looks)
def in_a_variable():
    def put(number):
        global epoch
        epoch = number // 3

    return set_by_the_loop(lambda loss: loss * min(1.0, (epoch + 1) / 10), put)


@case(least=17, configure=no_looks)
def a_float_in_a_dict():
    held = {"weight": 0.5}
    put = lambda number: held.update(weight=0.5**number)  # noqa: E731
    return set_by_the_loop(lambda loss: loss * held["weight"], put)


@case(least=16, configure=no_looks)
def getattr_reads_one_attribute():
    """What else the object holds may move; a property runs, and a method is called by its name."""

    class Callback:
        def __init__(self):
            self.seen, self.scale = [], 2.0

        @property
        def twice(self):
            return 2 * self.scale

        def hook(self, loss):
            return loss * getattr(self, "twice", 1.0)

    callback, name = Callback(), "hook"

    def call(loss):
        for one in [callback]:
            hook = getattr(one, name)
            if callable(hook) and not hasattr(one, "absent"):
                loss = hook(loss)
        return loss

    def put(number):
        callback.seen.append(number)
        callback.scale = 2.0 if number < 12 else 3.0

    return set_by_the_loop(call, put)


@case(least=8, configure=no_looks)
def the_default_of_getattr_is_read_on():
    held = SimpleNamespace(usual=SimpleNamespace(scale=0))
    put = {n: lambda n=n: setattr(held.usual, "scale", n // 3) for n in range(18)}
    return Play(lambda x: x * getattr(held, "other", held.usual).scale, [], put, singles(18))


@case(least=20, configure=no_looks)
def a_tensor_of_numbers_of_tensors():
    """``torch.tensor([a.norm(), b.norm()])``, as for the norm of all gradients."""
    weight = torch.ones(3, requires_grad=True)
    optimizer = torch.optim.SGD([weight], 0.01)

    def step(x):
        optimizer.zero_grad()
        (weight * x).sum().backward()
        norms = torch.tensor([weight.grad.norm(2), weight.grad.abs().max()])
        assert not norms.requires_grad
        optimizer.step()
        return norms.norm(2)

    return Play(step, [weight, optimizer], calls=singles(24, 3))


# --- what has programs of its own -----------------------------------------------------------------


@case(served=10)
def an_item_with_two_shapes():
    model, optimizer = linear()

    def step(x):
        optimizer.zero_grad()
        loss = model(x).pow(2).mean()
        loss.backward()
        optimizer.step()
        return loss.item()

    calls = [(torch.randn(3 + number % 2, 4),) for number in range(16)]
    return Play(step, [model, optimizer], calls=calls)


@case(served=21)
def a_branch_on_data_with_many_shapes_keeps_its_programs():
    """Of kinds that come in a row as the first the others are recorded when they come again."""
    model, optimizer = linear()

    def step(x):
        optimizer.zero_grad()
        loss = model(x).pow(2).mean() + x.mean()
        if x.sum() > 0:
            loss = 2 * loss
        loss.backward()
        optimizer.step()
        return loss

    signs = [-1 if number // 4 % 2 else 1 for number in range(40)]
    calls = [(sign * torch.rand(3 + n % 4, 4),) for n, sign in enumerate(signs)]
    return Play(step, [model, optimizer], calls=calls)


@case(least=6)
def a_text_that_goes_round_has_a_program_for_each_turn():
    state, following = {"phase": "a"}, {"a": "b", "b": "c", "c": "a"}

    def step(x):
        state["phase"] = following[state["phase"]]
        return x * "abc".index(state["phase"])

    return Play(step, [state], calls=singles(15))


@case(served=3)
def a_branch_of_a_counter_has_a_program_each_way():
    """Another input of the step is what comes of it."""
    held, weight = SimpleNamespace(calls=0, extra=torch.ones(3)), torch.ones(3, requires_grad=True)

    def step(x):
        held.calls += 1
        loss = (x * weight).sum()
        return loss + held.extra.sum() if held.calls % 2 == 0 else loss

    return Play(step, [held], calls=singles(8, 3))


@case(served=17)
def a_scale_that_grows_and_is_read():
    """The usual test for a step that a scaler skips."""
    model, optimizer = linear()
    scaler, stats = torch.amp.GradScaler("cpu", init_scale=4.0, growth_interval=3), {}

    def step(x):
        optimizer.zero_grad()
        loss = model(x).square().mean()
        scaler.scale(loss).backward()
        before = scaler.get_scale()
        scaler.step(optimizer)
        scaler.update()
        stats["skipped"] = before > scaler.get_scale()
        return loss.detach()

    return Play(step, [model, optimizer, scaler, stats], calls=singles(20))


# --- what is named --------------------------------------------------------------------------------


@case(says=("", "an index"), served=0)
def one_that_is_a_key_goes_on_in_eager():
    """A key is read by Python: another value at each call, no program."""
    held, table = SimpleNamespace(index=0), {number: 0.1 * number for number in range(24)}
    put = lambda number: setattr(held, "index", number)  # noqa: E731
    return set_by_the_loop(lambda loss: loss * table[held.index], put)


def given_to(step: Callable[..., Any], argument: Callable[[int], Any]) -> Play:
    model, optimizer = linear()

    def body(x, one):
        optimizer.zero_grad()
        loss = step(model(x), x[:, :2], one)
        loss.backward()
        optimizer.step()
        return loss

    calls = [(x, argument(number)) for number, (x,) in enumerate(singles(20))]
    return Play(body, [model, optimizer], calls=calls)


case(
    lambda: given_to(lambda out, y, loss: loss(out, y), lambda number: nn.MSELoss()),
    name="an_object_that_is_made_anew",
    says=r"args\[1\] is another MSELoss",
)
case(
    lambda: given_to(lambda out, y, one: mse_loss(out, y) * one, lambda number: number),
    name="a_number_that_moves",
    says=r"args\[1\] was 7 and is 8",
)


def in_the_memory_of_a_state(view: bool, way: str) -> Play:
    """A weight is an argument, too."""
    model, optimizer = linear()

    def step(x, weight):
        weight = model.weight if way == "read" else weight
        optimizer.zero_grad()
        loss = (model(x).sum() + (weight * 2).sum()) ** 2
        loss.backward()
        optimizer.step()
        return loss

    def given():
        weight = model.weight.detach()[1:] if view else model.weight
        return weight.detach().clone() if way == "clone" else weight

    calls = [[x, None] for (x,) in singles(8)]
    put = {n: lambda n=n: calls[n].__setitem__(1, given()) for n in range(8) if way != "read"}
    return Play(step, [model, optimizer], put, calls)


words = r"args\[1\] lies in the memory of.*args\[1\].detach\(\).clone\(\)"
for view in (False, True):
    case(
        lambda view=view: in_the_memory_of_a_state(view, ""),
        name=f"in_the_memory_of_a_state{'_as_a_view' * view}",
        says=f"(?s){words}",
    )
case(lambda: in_the_memory_of_a_state(False, "read"), name="read_where_it_lies", least=5)
case(lambda: in_the_memory_of_a_state(True, "clone"), name="a_clone_of_it", least=5)


@pytest.mark.parametrize("case", case)
def test_what_moves(case):
    assert case.check().called.report().calls.recorded <= 18


def test_a_tensor_as_an_index_is_told_what_to_write() -> None:
    table = nn.Parameter(torch.randn(5, 5))
    optimizer = torch.optim.SGD([table], lr=0.01)

    @tg.step
    def step(tags):
        optimizer.zero_grad()
        score = sum(table[tags[i + 1], tags[i]] for i in range(2))
        score.backward()
        optimizer.step()
        return score

    words = "a tensor without dimensions, an index that Python reads as a number.*index_select"
    with pytest.warns(EagerWarning, match=f"(?s){words}") as found:
        list(map(step, torch.randint(0, 5, (40, 3))))
    assert len(found) == 1
    assert "table[tags[i+1],tags[i]]" in "".join(str(step.report()).split())


@pytest.mark.filterwarnings("ignore::torchgraph.errors.CacheThrashWarning")
def test_an_array_that_is_another_one_at_each_call() -> None:
    x, step = torch.arange(100.0), tg.step(lambda x, rows: x[rows].sum())
    with pytest.warns(EagerWarning, match=r"torch\.from_numpy"):
        found = [step(x, np.arange(n, n + 3)).item() for n in range(24)]
    assert found == [3.0 * n + 3.0 for n in range(24)]
    with counters.expect(replays=2):  # an array that does come again has a program
        assert [step(x, np.arange(2)) for _ in range(6)] == [1.0] * 6


def test_the_line_that_gives_a_tensor_to_numpy_is_the_users() -> None:
    @tg.step
    def step(x):
        return x[np.argsort(x.detach())]

    with pytest.raises(NoProgram, match=r"test_what_moves\.py:\d+ in step: return x\[np.argsort"):
        step(torch.randn(8))
