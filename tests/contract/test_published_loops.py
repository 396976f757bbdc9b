"""Loops in the manner of PyTorch's examples and of nanoGPT, with ``tg.step`` as the one change.

Thirty steps each: bitwise on `aten`, within rounding where `auto` has gone over to Inductor.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import nn
from torch.distributions import Categorical
from torch.nn import functional

from tests.contract.loops import Batch, Loop, Make, assert_as_eager, in_eager, mlp
from tests.parity.test_compiled import InThisProcess
from torchgraph.errors import EagerWarning
from torchgraph.lower.inductor import job
from torchgraph.replay import switch

_STEPS = 30


def dcgan() -> Loop:
    generator = nn.Sequential(
        nn.ConvTranspose2d(3, 4, 4, bias=False), nn.BatchNorm2d(4), nn.ReLU(), nn.Conv2d(4, 1, 1)
    )
    critic = nn.Sequential(nn.Conv2d(1, 4, 3), nn.LeakyReLU(0.2), nn.Conv2d(4, 1, 2), nn.Flatten(0))
    criterion = nn.BCEWithLogitsLoss()
    judges = torch.optim.Adam(critic.parameters(), lr=2e-4, betas=(0.5, 0.999))
    generates = torch.optim.Adam(generator.parameters(), lr=2e-4, betas=(0.5, 0.999))

    def step(real, noise):
        critic.zero_grad()
        on_real = criterion(critic(real), torch.full((16,), 1.0))
        on_real.backward()
        fake = generator(noise)
        on_fake = criterion(critic(fake.detach()), torch.full((16,), 0.0))
        on_fake.backward()
        judges.step()
        generator.zero_grad()
        loss = criterion(critic(fake), torch.full((16,), 1.0))
        loss.backward()
        generates.step()
        return on_real + on_fake, loss

    return Loop(step, [generator, critic, judges, generates])


class Vae(nn.Module):
    """Draws its code."""

    def __init__(self) -> None:
        super().__init__()
        self.encode, self.decode = mlp(6, 4), mlp(2, 6)

    def forward(self, x: torch.Tensor) -> Any:
        mean, spread = self.encode(x).chunk(2, 1)
        code = mean + torch.randn_like(spread) * (0.5 * spread).exp()
        return self.decode(code).sigmoid(), mean, spread


def vae() -> Loop:
    model = Vae()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)

    def step(x):
        optimizer.zero_grad()
        found, mean, spread = model(x)
        loss = functional.binary_cross_entropy(found, x, reduction="sum")
        loss = loss - 0.5 * torch.sum(1 + spread - mean.pow(2) - spread.exp())
        loss.backward()
        optimizer.step()
        return loss

    return Loop(step, [model, optimizer])


class Transformer(nn.Module):
    """A language model with a causal mask, dropout, tied weights."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.place = nn.Embedding(11, 8), nn.Embedding(5, 8)
        # The gradient of a key's bias is rounding alone, of which AdamW makes a whole step.
        self.layer = nn.TransformerEncoderLayer(8, 2, 16, 0.1, batch_first=True, bias=False)
        self.head = nn.Linear(8, 11, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        size = words.size(1)
        mask = nn.Transformer.generate_square_subsequent_mask(size)
        found = self.layer(self.embed(words) + self.place(torch.arange(size)), src_mask=mask)
        return self.head(found)


def nano_gpt() -> Loop:
    model = Transformer()
    weights = [p for p in model.parameters() if p.dim() > 1]
    rest = [p for p in model.parameters() if p.dim() < 2]
    groups = [{"params": weights, "weight_decay": 0.1}, {"params": rest, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=1e-3, betas=(0.9, 0.95))
    scaler = torch.amp.GradScaler("cpu", enabled=False)

    def step(x, y):
        for words, targets in zip(x, y, strict=True):
            logits = model(words)
            loss = functional.cross_entropy(logits.flatten(0, 1), targets.flatten()) / 2
            scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad(set_to_none=True)
        return loss

    return Loop(step, [model, optimizer])


class Words(nn.Module):
    """An LSTM over words."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.drop = nn.Embedding(11, 6), nn.Dropout(0.2)
        self.lstm, self.decode = nn.LSTM(6, 5, 2, dropout=0.2), nn.Linear(5, 11)

    def forward(self, words: torch.Tensor, hidden: Any) -> Any:
        found, hidden = self.lstm(self.drop(self.embed(words)), hidden)
        return self.decode(self.drop(found)).view(-1, 11), hidden


def word_language_model() -> Loop:
    model, rate = Words(), 0.5
    hidden = torch.zeros(2, 3, 5), torch.zeros(2, 3, 5)

    def step(x, y):
        nonlocal hidden
        model.zero_grad()
        hidden = tuple(state.detach() for state in hidden)
        found, hidden = model(x, hidden)
        loss = functional.cross_entropy(found, y)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 0.25)
        for parameter in model.parameters():
            parameter.data.add_(parameter.grad, alpha=-rate)
        return loss

    return Loop(step, [model, lambda: hidden])


def siamese() -> Loop:
    model, head = mlp(6, 4), nn.Linear(8, 1)
    both = [*model.parameters(), *head.parameters()]
    optimizer = torch.optim.Adadelta(both, lr=1.0)
    criterion = nn.BCELoss()

    def step(first, second, same):
        optimizer.zero_grad()
        found = head(torch.cat([model(first), model(second)], 1)).sigmoid().squeeze()
        loss = criterion(found, same)
        loss.backward()
        optimizer.step()
        return loss

    return Loop(step, [model, head, optimizer])


def graph_attention() -> Loop:
    model, score = nn.Linear(4, 3, bias=False), nn.Linear(6, 1, bias=False)
    adjacency = torch.eye(5) + torch.eye(5).roll(1, 0)
    optimizer = torch.optim.Adam([*model.parameters(), *score.parameters()], 5e-3, weight_decay=0.1)

    def step(x, y):
        optimizer.zero_grad()
        found = model(x)
        pairs = torch.cat([found[:, None].expand(5, 5, 3), found[None].expand(5, 5, 3)], 2)
        weights = functional.leaky_relu(score(pairs).squeeze(2), 0.2)
        weights = torch.where(adjacency > 0, weights, torch.full_like(weights, -9e15)).softmax(1)
        weights = functional.dropout(weights, 0.3)
        loss = functional.nll_loss((weights @ found).log_softmax(1), y)
        loss.backward()
        optimizer.step()
        return loss

    return Loop(step, [model, score, optimizer])


def actor_critic() -> Loop:
    body, policy, value = mlp(4, 8), nn.Linear(8, 2), nn.Linear(8, 1)
    model = nn.ModuleList([body, policy, value])
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-2)

    def step(seen, action, returns):
        found = body(seen).relu()
        gains = (returns - returns.mean()) / (returns.std() + 1e-6)
        values = value(found).squeeze(1)
        density = Categorical(logits=policy(found)).log_prob(action)
        optimizer.zero_grad()
        loss = (-density * (gains - values.detach())).sum()
        loss = loss + functional.smooth_l1_loss(values, gains, reduction="sum")
        loss.backward()
        optimizer.step()
        return loss

    return Loop(step, [model, optimizer])


def time_sequence() -> Loop:
    """Two LSTM cells that go on with a wave; LBFGS asks for the loss as often as it likes."""
    first, second, linear = nn.LSTMCell(1, 5), nn.LSTMCell(5, 5), nn.Linear(5, 1)
    model = nn.ModuleList([first, second, linear])
    optimizer = torch.optim.LBFGS(model.parameters(), lr=0.8, max_iter=3)
    criterion = nn.MSELoss()

    def step(x, y):
        def closure():
            optimizer.zero_grad()
            upper, lower, found = None, None, []
            for column in x.split(1, dim=1):
                upper = first(column, upper)
                lower = second(upper[0], lower)
                found.append(linear(lower[0]))
            loss = criterion(torch.cat(found, dim=1), y)
            loss.backward()
            return loss

        return optimizer.step(closure)

    return Loop(step, [model, optimizer])


def words(*size: int) -> torch.Tensor:
    return torch.randint(11, size)


LOOPS: dict[str, tuple[Make, Callable[[], Batch], int]] = {
    "dcgan": (dcgan, lambda: (torch.randn(16, 1, 4, 4), torch.randn(16, 3, 1, 1)), 28),
    "vae": (vae, lambda: (torch.rand(5, 6),), 28),
    "nanogpt": (nano_gpt, lambda: (words(2, 3, 5), words(2, 3, 5)), 28),
    "words": (word_language_model, lambda: (words(4, 3), words(12)), 28),
    "siamese": (
        siamese,
        lambda: (torch.randn(5, 6), torch.randn(5, 6), torch.randint(2, (5,)).float()),
        28,
    ),
    "gat": (graph_attention, lambda: (torch.randn(5, 4), torch.randint(3, (5,))), 28),
    "actor critic": (
        actor_critic,
        lambda: (torch.randn(6, 4), torch.randint(2, (6,)), torch.rand(6)),
        28,
    ),
}


@pytest.mark.parametrize("name", LOOPS)
def test_thirty_steps_are_eagers(name):
    make, batch, replayed = LOOPS[name]

    assert_as_eager(make, lambda: [batch() for _ in range(_STEPS)], replayed)


def test_thirty_steps_of_lbfgs_in_eager():
    def waves() -> list[Batch]:
        waves = [torch.sin(torch.linspace(0, 3, 7) + torch.rand(4, 1)) for _ in range(_STEPS)]
        return [(wave[:, :-1], wave[:, 1:]) for wave in waves]

    with pytest.warns(EagerWarning, match="LBFGS"):
        assert_as_eager(time_sequence, waves, replayed=0, configure=in_eager)


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.skipif(job.cpp_compiler() is None, reason="there is no C++ compiler here")
@pytest.mark.filterwarnings("ignore:`torch.jit")  # Inductor's own
@pytest.mark.parametrize("name", LOOPS)
def test_thirty_steps_of_which_most_are_compiled(name, monkeypatch, tmp_path):
    make, batch, replayed = LOOPS[name]

    in_this_process(monkeypatch, tmp_path)
    assert_mostly_compiled(make, lambda: [batch() for _ in range(_STEPS)], replayed)


def in_this_process(monkeypatch: Any, tmp_path: Any) -> None:
    """Let Inductor compile here, into a folder of its own, quickly."""
    monkeypatch.setattr(switch, "Compilation", InThisProcess)
    monkeypatch.setattr(InThisProcess, "root", tmp_path, raising=False)
    monkeypatch.setenv("TORCHINDUCTOR_DEBUG_COMPILE", "1")


def assert_mostly_compiled(
    make: Make, batches: Callable[[], Sequence[Batch]], replayed: int
) -> None:
    """Eager's numbers, but for rounding, with ``backend="auto"`` that switches early."""
    graph = assert_as_eager(
        make,
        batches,
        replayed,
        compare=close,
        configure=lambda graph: graph.config.set_backend("auto", switch_at=8),
    )
    assert graph.report().backend == "inductor"


def close(left: Any, right: Any) -> bool:
    if isinstance(left, torch.Tensor) and left.is_floating_point():
        return torch.allclose(left, right, rtol=1e-3, atol=1e-4, equal_nan=True)
    return left.equal(right) if isinstance(left, torch.Tensor) else bool(left == right)


@functools.wraps(math.sqrt)
def root(x):
    return math.sqrt(x)


Tensor = torch.FloatTensor  # as GANs name it; its methods are wrapped around C's


def test_wrappers_around_functions_of_c() -> None:
    def make() -> Loop:
        model = mlp()
        optimizer = torch.optim.Adam(model.parameters())

        def step(x):
            optimizer.zero_grad()
            found = model(x)
            loss = functional.mse_loss(found, Tensor(*found.shape).fill_(1.0)) * root(2.0)
            loss.backward()
            optimizer.step()
            return loss

        return Loop(step, [model, optimizer])

    assert_as_eager(make, lambda: [(torch.randn(5, 4),) for _ in range(8)], replayed=6)
