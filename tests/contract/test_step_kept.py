"""``tg.step``: what a loop keeps from call to call, and tensors that lie in memory of others."""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.nn.functional import mse_loss

import torchgraph as tg
from tests.cases.plays import Play, around_step, by_hand, net, pairs, singles
from tests.cases.table import Table
from tests.contract.test_published_loops import Words, words
from torchgraph.errors import EagerWarning

case = Table(fallback="eager")


# --- in globals and containers --------------------------------------------------------------------


hidden_state: Any = None


@case(served=4)
def a_hidden_state_in_a_global():
    global hidden_state
    model, hidden_state = Words(), (torch.zeros(2, 3, 5), torch.zeros(2, 3, 5))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)

    def step(x, y):
        global hidden_state
        optimizer.zero_grad()
        found, hidden_state = model(x, tuple(state.detach() for state in hidden_state))
        loss = functional.cross_entropy(found, y)
        loss.backward()
        optimizer.step()
        return loss

    calls = [(words(4, 3), words(12)) for _ in range(6)]
    return by_hand(step, model, optimizer, watched=[lambda: hidden_state], calls=calls)


@case(served=26)
def what_is_appended_to_lists():
    """Once the deque is full an append drops another: that is a program of its own."""
    model, losses, recent = net(), [], deque(maxlen=5)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    last = {"loss": torch.zeros(())}

    def step(x, y):
        optimizer.zero_grad()
        loss = mse_loss(model(x), y)
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
        recent.append((loss.detach(), loss.detach() * 2))
        last["loss"] = 0.9 * last["loss"] + 0.1 * loss.detach()
        return loss

    return Play(step, [model, optimizer, losses, recent, last], calls=pairs(30))


@case(served=6)
def a_queue_that_moves_on():
    """As of MoCo: the step reads the queue, and writes what it has made at the front."""
    model = nn.Linear(4, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    queue = [torch.randn(3, 3) for _ in range(2)]

    def step(x):
        optimizer.zero_grad()
        found = model(x)
        loss = sum((found @ old.T).logsumexp(1).mean() for old in queue)
        loss.backward()
        optimizer.step()
        queue.pop(0)
        queue.append(found.detach())
        return loss

    return Play(step, [model, optimizer, queue], calls=singles(8, 3, 4))


# --- in memory that was there before --------------------------------------------------------------


def parts(first: slice, second: slice) -> Play:
    whole = torch.ones(8)
    left, right = whole[first], whole[second]

    def step(x, y):
        left.add_(x.sum())
        right.mul_(y.mean())
        return left.mean() + right.mean()

    return Play(step, [whole], calls=pairs(6))


case.rows(
    {
        "parts_apart": lambda: parts(slice(0, 5), slice(5, 8)),
        "a_part_of_a_part": lambda: parts(slice(0, 6), slice(2, 4)),
    },
    served=4,
)


@case(least=8)
def parameters_that_are_given_back_the_memory_they_were_copied_to():
    """As of SAM (Foret et al., 2021), in the way that gives ``p.data`` the memory of a copy."""
    model, saved = net(), {}
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    old: dict[Any, torch.Tensor] = {}

    def step(x, y):
        loss = mse_loss(model(x), y)
        loss.backward()
        with torch.no_grad():
            norm = torch.stack([p.grad.norm() for p in model.parameters()]).norm()
            for p in model.parameters():
                old[p] = p.data.clone()
                p.add_(p.grad * (0.05 / (norm + 1e-12)))
        optimizer.zero_grad()
        mse_loss(model(x), y).backward()
        for p in model.parameters():
            p.data = old[p]
        optimizer.step()
        optimizer.zero_grad()
        return loss

    def one_memory():
        kept = old.items()
        return [(p.data_ptr() == one.data_ptr(), one.requires_grad, one) for p, one in kept]

    def save():
        saved.update({name: one.clone() for name, one in model.state_dict().items()})

    changes = {4: save, 8: lambda: model.load_state_dict(saved)}
    return Play(step, [model, optimizer, one_memory], changes, pairs(12))


KEPT: dict[str, Callable[[nn.Module, torch.Tensor], Any]] = {
    "parameter": lambda model, x: model.weight,
    "rows": lambda model, x: model.weight.detach()[1:],
    "buffer": lambda model, x: model.total[0],
    "argument": lambda model, x: x[:, -1],
    "pair": lambda model, x: (model.weight.data.T, x),
}


def keeps(give: Callable[[nn.Module, torch.Tensor], Any]) -> Play:
    """A step that keeps a tensor in memory of another one, which the loop then writes."""
    model, held, calls = nn.Linear(4, 2), SimpleNamespace(last=None), singles(8)
    model.register_buffer("total", torch.zeros(2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def step(x):
        loss = model(x).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        model.total += 1
        held.last = give(model, x)
        return loss

    def layout():
        kept = held.last if isinstance(held.last, tuple) else (held.last,)
        found = [(one.shape, one.stride(), one.storage_offset()) for one in kept if one is not None]
        return held.last is model.weight, found

    @torch.no_grad()
    def change(number):
        calls[number - 1][0].mul_(2)
        model.weight.add_(0.5)
        model.total.add_(0.5)

    before = {number: lambda number=number: change(number) for number in range(1, 8)}
    return Play(step, [model, optimizer, held, layout, calls], before, calls)


case.rows({what: lambda give=give: keeps(give) for what, give in KEPT.items()}, least=4)


@case(least=8)
def each_tensor_of_a_dict_that_is_filled_anew_has_a_name_of_its_own():
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    anchors: dict[str, torch.Tensor] = {}

    def fill():
        anchors.update({name: p.detach().clone() for name, p in model.named_parameters()})

    def step(x, y):
        loss = mse_loss(model(x), y)
        for name, p in model.named_parameters():
            loss = loss + ((p - anchors[name]) ** 2).sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss

    fill()
    return Play(step, [model, optimizer, anchors], {5: fill, 10: fill}, pairs(16))


@case(says="was there before")
def a_conjugate_view_of_an_argument_is_kept_as_one():
    held = SimpleNamespace(last=None)

    def step(x):
        held.last = x.mH
        return x * 2

    calls = [(torch.randn(2, 3, dtype=torch.complex64),) for _ in range(6)]
    return Play(step, [held, lambda: held.last is None or held.last.is_conj()], calls=calls)


@case(says="was there before")
def a_view_that_torch_has_given_up_is_no_obstacle():
    """A view that was written under no_grad: to ask whether it is a leaf raises."""
    model, held = net(), SimpleNamespace(row=None)

    @torch.no_grad()
    def after():
        held.row = model[0].weight[0]
        held.row.div_(held.row.norm())

    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    return around_step(model, optimizer, after, number=6)


# --- tensors outside of modules -------------------------------------------------------------------


@case(least=3)
def two_that_swap_their_memory():
    one, other = torch.zeros(2), torch.ones(2)

    def step(x):
        one.data, other.data = other.data, one.data
        return x.sum() + one.sum()

    return Play(step, [one, other], calls=singles(8))


@case(served=0, says="shares memory with args")
def one_that_is_given_a_part_of_an_argument():
    last = torch.zeros(4)

    def step(x):
        last.data = x[0]
        return x.sum()

    return Play(step, [last], calls=singles(8))


@case(least=3)
def one_that_is_read_through_data_alone():
    """As averages of weights are: ``average.data.lerp_(w.data, 0.5)``."""
    average = torch.zeros(5, 4)

    def step(x):
        average.data.lerp_(x.data, 0.5)
        return x.sum()

    change = {5: lambda: setattr(average, "data", torch.full((5, 4), 7.0))}
    return Play(step, [average], change, singles(8))


@pytest.mark.parametrize("case", case)
def test_kept(case):
    case.check()


@pytest.fixture
def shallow():
    """Fewer frames until there are too many, each of which is read."""
    before = sys.getrecursionlimit()
    sys.setrecursionlimit(300)
    yield
    sys.setrecursionlimit(before)


@pytest.mark.usefixtures("shallow")
@pytest.mark.parametrize("how", ["settrace", "recursion"])
def test_a_step_that_takes_the_trace_function_away_runs_in_eager(how):
    held = SimpleNamespace(scale=1.0)

    def deep() -> Any:
        return deep()

    def step(x: torch.Tensor) -> torch.Tensor:
        if how == "settrace":
            sys.settrace(None)
        try:
            found = held.scale if how == "settrace" else deep()
        except RecursionError:
            found = held.scale
        return x * found

    graphed = tg.step(step)
    with pytest.warns(EagerWarning, match="trace function"):
        found = [graphed(torch.ones(2)) for _ in range(8)]
    held.scale = 3.0
    found += [graphed(torch.ones(2)) for _ in range(2)]
    assert [one[0].item() for one in found] == [1.0] * 8 + [3.0] * 2
