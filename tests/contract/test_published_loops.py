"""Loops in the manner of PyTorch's examples, of nanoGPT and of learning by rewards.

``tg.step`` is the one change. Bitwise on `aten`; thirty steps within rounding where `auto` has
gone over to Inductor.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.nn.utils import clip_grad_norm_

from tests.cases.plays import Play, net, pairs, singles
from tests.cases.table import Table
from tests.contract import learners
from tests.contract.loops import Batch, Loop, Make, assert_as_eager, mlp
from tests.parity.test_compiled import InThisProcess
from tests.support import replays, thinned
from torchgraph.lower.inductor import job
from torchgraph.replay import switch


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
        clip_grad_norm_(model.parameters(), 1.0)
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
        clip_grad_norm_(model.parameters(), 0.25)
        for parameter in model.parameters():
            parameter.data.add_(parameter.grad, alpha=-rate)
        return loss

    return Loop(step, [model, lambda: hidden])


def words(*size: int) -> torch.Tensor:
    return torch.randint(11, size)


# The loop, the batch of a call, how many calls are recorded, and programs.
LOOPS: dict[str, tuple[Make, Callable[[int], Batch], int, int]] = {
    "nanogpt": (nano_gpt, lambda number: (words(2, 3, 5), words(2, 3, 5)), 2, 1),
    "words": (word_language_model, lambda number: (words(4, 3), words(12)), 2, 1),
    "td3": (learners.td3, learners.td3_batch, 5, 2),
    "sac": (learners.sac, learners.sac_batch, 2, 1),
    "ppo": (learners.ppo, learners.ppo_batch, 2, 1),
}


@pytest.mark.parametrize("name", thinned(LOOPS, keep=["nanogpt", "td3"]))
def test_the_steps_are_eagers(name):
    make, batch, recorded, programs = LOOPS[name]

    graph = assert_as_eager(make, lambda: [batch(n) for n in range(9)], 9 - recorded)

    assert len(replays(graph)) == programs


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.skipif(job.cpp_compiler() is None, reason="there is no C++ compiler here")
@pytest.mark.filterwarnings("ignore:`torch.jit")  # Inductor's own
@pytest.mark.parametrize("name", LOOPS)
def test_thirty_steps_of_which_most_are_compiled(name, monkeypatch, tmp_path):
    """Eager's numbers, but for rounding, with ``backend="auto"`` that switches early."""
    monkeypatch.setattr(switch, "Compilation", InThisProcess)
    monkeypatch.setattr(InThisProcess, "root", tmp_path, raising=False)
    monkeypatch.setenv("TORCHINDUCTOR_DEBUG_COMPILE", "1")
    make, batch, recorded, _ = LOOPS[name]

    graph = assert_as_eager(
        make,
        lambda: [batch(number) for number in range(30)],
        30 - recorded,
        compare=close,
        configure=lambda graph: graph.config.set_backend("auto", switch_at=8),
    )

    assert graph.report().backend == "inductor"


def close(left: Any, right: Any) -> bool:
    if isinstance(left, torch.Tensor) and left.is_floating_point():
        return torch.allclose(left, right, rtol=1e-3, atol=1e-4, equal_nan=True)
    return left.equal(right) if isinstance(left, torch.Tensor) else bool(left == right)


case = Table(fallback="eager")


@functools.wraps(math.sqrt)
def root(x):
    return math.sqrt(x)


Tensor = torch.FloatTensor  # as GANs name it; its methods are wrapped around C's


@case(served=6)
def wrappers_around_functions_of_c():
    model = net()
    optimizer = torch.optim.Adam(model.parameters())

    def step(x):
        optimizer.zero_grad()
        found = model(x)
        loss = functional.mse_loss(found, Tensor(*found.shape).fill_(1.0)) * root(2.0)
        loss.backward()
        optimizer.step()
        return loss

    return Play(step, [model, optimizer], calls=singles(8))


@case(served=6, says=None)
def gradient_penalty_and_a_generator_every_third_step():
    generator, critic = mlp(3, 4), mlp(4, 1)
    generates = torch.optim.Adam(generator.parameters(), 1e-3)
    judges = torch.optim.Adam(critic.parameters(), 1e-3)

    def step(real, noise, generate):
        judges.zero_grad()
        fake = generator(noise)
        mix = torch.rand(real.size(0), 1)
        between = (mix * real + (1 - mix) * fake.detach()).requires_grad_(True)
        (slope,) = torch.autograd.grad(critic(between).sum(), between, create_graph=True)
        penalty = (slope.norm(2, dim=1) - 1).square().mean()
        loss = critic(fake.detach()).mean() - critic(real).mean() + 10 * penalty
        loss.backward()
        judges.step()
        if generate:
            generates.zero_grad()
            (-critic(generator(noise)).mean()).backward()
            generates.step()
        return loss

    calls = [(torch.randn(5, 4), torch.randn(5, 3), n % 3 == 2) for n in range(12)]
    return Play(step, [generator, critic, generates, judges], calls=calls)


def scaled(enabled: bool) -> Play:
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, growth_interval=3, enabled=enabled)

    def step(x, y):
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.bfloat16):
            loss = functional.mse_loss(model(x), y.to(torch.bfloat16))
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        return loss

    calls = pairs(10)
    calls[6][0].mul_(1e38 if enabled else 1.0)
    return Play(step, [model, optimizer, scaler], calls=calls)


# The step that is skipped, and the one with another gradient before it, are eager's.
case(lambda: scaled(True), name="a_grad_scaler_that_skips_a_step", served=7)
case(lambda: scaled(False), name="a_grad_scaler_that_does_nothing", served=8, slow=True)


@pytest.mark.parametrize("case", case)
def test_other_loops(case):
    case.check()
