"""``tg.step``: what a loop keeps from call to call in closures, attributes and containers."""

from __future__ import annotations

from collections import deque
from typing import Any

import pytest
import torch
from torch.nn import functional

import torchgraph as tg
from tests.contract.loops import Batch, Loop, assert_as_eager, mlp, pairs, supervised
from tests.contract.test_published_loops import Words, words
from torchgraph.errors import NoProgram


def batches() -> list[Batch]:
    return [(words(4, 3), words(12)) for _ in range(6)]


def start() -> tuple[torch.Tensor, torch.Tensor]:
    return torch.zeros(2, 3, 5), torch.zeros(2, 3, 5)


@pytest.mark.parametrize("kind", [list, dict])
def test_a_hidden_state_in_a_container(kind):
    def make():
        model = Words()
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

    assert_as_eager(make, batches, replayed=4)


hidden_state: Any = None


def test_a_hidden_state_in_a_global():
    def make():
        global hidden_state
        model, hidden_state = Words(), start()
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

    assert_as_eager(make, batches, replayed=4)


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


# From the third epoch that begins with none on a program serves its first call, too.
@pytest.mark.parametrize(("first", "replayed"), [(torch.zeros(3, 8), 14), (None, 12)])
def test_a_hidden_state_that_is_reset_between_epochs(first, replayed):
    def make():
        trainer = Trainer()

        def reset():
            trainer.hidden = None if first is None else first.clone()

        owners = [trainer.model, trainer.optimizer, lambda: vars(trainer)]
        return Loop(trainer.step, owners, dict.fromkeys((5, 8, 11, 14), reset))

    assert_as_eager(make, pairs(17), replayed)


def test_what_is_appended_to_lists():
    """Once the deque is full an append drops another: that is a program of its own."""

    def make():
        losses: list[torch.Tensor] = []
        recent: deque[tuple[torch.Tensor, torch.Tensor]] = deque(maxlen=5)
        last = {"loss": torch.zeros(())}

        def then(_, loss):
            losses.append(loss.detach())
            recent.append((loss.detach(), loss.detach() * 2))
            last["loss"] = 0.9 * last["loss"] + 0.1 * loss.detach()

        return supervised(then=then, owners=[losses, recent, last])

    assert_as_eager(make, pairs(70), replayed=66)


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
