"""``tg.step``: what a loop keeps from call to call in closures, attributes and containers."""

from __future__ import annotations

from collections import deque
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.nn.utils import clip_grad_norm_

import torchgraph as tg
from tests.contract.loops import Loop, assert_as_eager, mlp, pairs
from torchgraph.errors import NoProgram


def words(count: int) -> Any:
    """Batches of a language model: four steps of time, three rows."""
    return lambda: [(torch.randint(11, (4, 3)), torch.randint(11, (12,))) for _ in range(count)]


class Language(nn.Module):
    """An LSTM over words."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(11, 6)
        self.lstm = nn.LSTM(6, 5, 2, dropout=0.2)
        self.drop = nn.Dropout(0.2)
        self.decode = nn.Linear(5, 11)

    def forward(self, words: torch.Tensor, hidden: Any) -> Any:
        found, hidden = self.lstm(self.drop(self.embed(words)), hidden)
        return self.decode(self.drop(found)).view(-1, 11), hidden


def start() -> tuple[torch.Tensor, torch.Tensor]:
    return torch.zeros(2, 3, 5), torch.zeros(2, 3, 5)


def test_a_hidden_state_in_a_closure():
    def make():
        model, hidden = Language(), start()

        def step(x, y):
            nonlocal hidden
            model.zero_grad()
            found, hidden = model(x, tuple(state.detach() for state in hidden))
            loss = functional.cross_entropy(found, y)
            loss.backward()
            clip_grad_norm_(model.parameters(), 0.25)
            for parameter in model.parameters():
                parameter.data.add_(parameter.grad, alpha=-0.5)
            return loss

        return Loop(step, [model, lambda: hidden])

    assert_as_eager(make, words(8), replayed=6)


@pytest.mark.parametrize("kind", [list, deque, dict])
def test_a_hidden_state_in_a_container(kind):
    def make():
        model = Language()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
        kept = {0: start()} if kind is dict else kind([start()])

        def step(x, y):
            optimizer.zero_grad()
            found, hidden = model(x, kept[0])
            kept[0] = tuple(state.detach() for state in hidden)
            loss = functional.cross_entropy(found, y)
            loss.backward()
            optimizer.step()
            return loss

        return Loop(step, [model, optimizer, kept])

    assert_as_eager(make, words(8), replayed=6)


hidden_state: Any = None


def test_a_hidden_state_in_a_global():
    def make():
        global hidden_state
        model, hidden_state = Language(), start()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.5)

        def step(x, y):
            global hidden_state
            optimizer.zero_grad()
            found, hidden_state = model(x, tuple(state.detach() for state in hidden_state))
            loss = functional.cross_entropy(found, y)
            loss.backward()
            optimizer.step()
            return loss

        return Loop(step, [model, optimizer, lambda: hidden_state])

    assert_as_eager(make, words(8), replayed=6)


class Trainer:
    """An object that keeps a state, a loss and a number of calls."""

    def __init__(self) -> None:
        self.model = mlp()
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=1e-2)
        self.hidden: torch.Tensor | None = None
        self.loss: torch.Tensor | None = None
        self.settings = {"weight": 0.5}

    def step(self, x, y):
        hidden = torch.zeros(3, 8) if self.hidden is None else self.hidden
        found = self.model[0](x) + hidden
        self.hidden = found.detach()
        loss = functional.mse_loss(self.model[2](found.relu()), y) * self.settings["weight"]
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        self.loss = loss.detach()
        return loss


def test_a_hidden_state_and_a_loss_in_attributes():
    def make():
        trainer = Trainer()
        return Loop(trainer.step, [trainer.model, trainer.optimizer, lambda: vars(trainer)])

    assert_as_eager(make, pairs(8), replayed=5)


def test_a_hidden_state_that_is_reset_between_epochs():
    def make():
        trainer = Trainer()

        def reset():
            trainer.hidden = torch.zeros(3, 8)

        owners = [trainer.model, trainer.optimizer, lambda: trainer.hidden]
        return Loop(trainer.step, owners, {5: reset, 8: reset})

    assert_as_eager(make, pairs(10), replayed=7)


def test_a_hidden_state_set_to_none_between_epochs():
    def make():
        trainer = Trainer()

        def reset():
            trainer.hidden = None

        owners = [trainer.model, trainer.optimizer, lambda: trainer.hidden]
        return Loop(trainer.step, owners, {5: reset, 8: reset, 11: reset, 14: reset})

    # From the third epoch on a program serves its first call, too.
    assert_as_eager(make, pairs(17), replayed=12)


def test_a_counter_that_nothing_reads():
    class Counting(Trainer):
        calls = 0

        def step(self, x, y):
            self.calls += 1
            return super().step(x, y)

    def make():
        trainer = Counting()
        return Loop(trainer.step, [trainer.model, trainer.optimizer, lambda: trainer.calls])

    assert_as_eager(make, pairs(8), replayed=5)


def test_what_is_appended_to_lists():
    """Once the deque is full an append drops another: that is a program of its own."""

    def make():
        model = mlp()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        losses: list[torch.Tensor] = []
        recent: deque[tuple[torch.Tensor, torch.Tensor]] = deque(maxlen=5)
        last = {"loss": torch.zeros(())}

        def step(x, y):
            optimizer.zero_grad()
            loss = functional.mse_loss(model(x), y)
            loss.backward()
            optimizer.step()
            losses.append(loss.detach())
            recent.append((loss.detach(), loss.detach() * 2))
            last["loss"] = loss.detach()
            return loss

        return Loop(step, [model, optimizer, losses, recent, last])

    assert_as_eager(make, pairs(80), replayed=76)


def test_a_running_average_in_a_dict():
    def make():
        model = mlp()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        averages = {"loss": torch.zeros(())}

        def step(x, y):
            optimizer.zero_grad()
            loss = functional.mse_loss(model(x), y)
            loss.backward()
            optimizer.step()
            averages["loss"] = 0.9 * averages["loss"] + 0.1 * loss.detach()

        return Loop(step, [model, optimizer, averages])

    assert_as_eager(make, pairs(8), replayed=6)


def test_a_total_kept_in_place():
    def make():
        model = mlp()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        total = torch.zeros(())

        def step(x, y):
            optimizer.zero_grad()
            loss = functional.mse_loss(model(x), y)
            loss.backward()
            optimizer.step()
            total.add_(loss.detach())

        return Loop(step, [model, optimizer, total])

    assert_as_eager(make, pairs(8), replayed=6)


def test_a_queue_that_moves_on():
    # As of MoCo: the step reads the queue, and writes what it has made at the front.
    def make():
        model = mlp(4, 3)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        queue = [torch.randn(3, 3) for _ in range(2)]

        def step(x, _):
            optimizer.zero_grad()
            found = model(x)
            loss = sum((found @ old.T).logsumexp(1).mean() for old in queue)
            loss.backward()
            optimizer.step()
            queue.pop(0)
            queue.append(found.detach())
            return loss

        return Loop(step, [model, optimizer, queue])

    assert_as_eager(make, pairs(8), replayed=6)


def test_a_loss_summed_up_in_python_is_served():
    def make():
        model = mlp()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        total = 0.0

        def step(x, y):
            nonlocal total
            optimizer.zero_grad()
            loss = functional.mse_loss(model(x), y)
            loss.backward()
            optimizer.step()
            total += loss.item()

        return Loop(step, [model, optimizer, lambda: total])

    assert_as_eager(make, pairs(10), replayed=7)


def test_a_value_that_is_returned_is_served():
    def make():
        model = mlp()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

        def step(x, y):
            optimizer.zero_grad()
            loss = functional.mse_loss(model(x), y)
            loss.backward()
            optimizer.step()
            return loss.item()

        return Loop(step, [model, optimizer])

    assert_as_eager(make, pairs(10), replayed=7)


PARTS = {
    "apart": (slice(0, 5), slice(5, 8)),
    "inside": (slice(0, 6), slice(2, 4)),
    "over each other": (slice(0, 5), slice(3, 8)),
    "between each other": (slice(0, 8, 2), slice(1, 8, 2)),
}


@pytest.mark.parametrize("name", PARTS)
def test_parts_of_one_tensor_are_written(name):
    def make():
        whole = torch.ones(8)
        left, right = (whole[part] for part in PARTS[name])

        def step(x, y):
            left.add_(x.sum())
            right.mul_(y.mean())
            return left.mean() + right.mean()

        return Loop(step, [whole])

    if name in ("apart", "inside"):
        assert_as_eager(make, pairs(6), replayed=4)
        return
    with pytest.raises(NoProgram, match="overlap"):
        tg.step(make().step)(*pairs(1)()[0])
