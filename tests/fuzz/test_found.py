"""What the fuzzer has found, made small: each leaves what eager leaves, and is a program."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

import torchgraph as tg

from .looking import verdict


def graph_of(step, graphed):
    return tg.step(step) if graphed else step


def lstm_without_grad(graphed, look):
    lstm = nn.LSTM(2, 2)

    def evaluate(x):
        with torch.no_grad():
            return lstm(x)[0]

    evaluate = graph_of(evaluate, graphed)
    for _ in range(30):
        look(found=evaluate(torch.randn(2, 1, 2)))


def lstm_dropout_under_inference_mode(graphed, look):
    lstm = nn.LSTM(2, 1, num_layers=2, dropout=0.2)

    def evaluate(x):
        with torch.inference_mode():
            return lstm(x)[0]

    evaluate = graph_of(evaluate, graphed)
    for _ in range(8):
        look(found=evaluate(torch.randn(4, 4, 2)))


def total_that_starts_again(graphed, look):
    total = torch.zeros(())

    def step(x):
        nonlocal total
        total += x.mean()

    step = graph_of(step, graphed)
    for call in range(10):
        if call == 6:
            total = torch.zeros(())
        step(torch.ones(4))
        look(total=total)


def rrelu_of_a_transposed_input(graphed, look):
    model = nn.Sequential(nn.RReLU(), nn.Linear(8, 8))

    def step(x):
        model(x).square().mean().backward()
        with torch.no_grad():
            for p in model.parameters():
                p -= p.grad
                p.grad = None

    step = graph_of(step, graphed)
    for _ in range(8):
        step(torch.randn(8, 4).t())
        look(model=model)


def bilinear_under_autocast(graphed, look):
    model = nn.Bilinear(8, 8, 8)

    def step(x):
        with torch.autocast("cpu", torch.bfloat16):
            return model(x, x.flip(1))

    step = graph_of(step, graphed)
    for _ in range(8):
        look(found=step(torch.randn(4, 8)))


def alpha_dropout_in_a_checkpoint(graphed, look):
    model = nn.Sequential(nn.Linear(8, 8), nn.AlphaDropout(0.2))

    def step(x):
        model.zero_grad()
        loss = checkpoint(model, x, use_reentrant=False).sum()
        loss.backward()
        return loss

    step = graph_of(step, graphed)
    for _ in range(8):
        look(found=step(torch.randn(4, 8)), model=model)


def ctc_loss_with_checkpointing(graphed, look):
    model = nn.Sequential(nn.Linear(8, 8), nn.Tanh())
    targets = torch.ones(1, 1, dtype=torch.long)

    def step(x):
        model.zero_grad()
        loss = F.ctc_loss(model(x)[:, None].log_softmax(2), targets, [4], [1])
        loss.backward()
        return loss

    step = graph_of(step, graphed)
    if graphed:
        step.config.set_activation_checkpointing("matmuls")
    for _ in range(8):
        look(found=step(torch.randn(4, 8)), model=model)


def gradient_before_a_scaled_call(graphed, look):
    model = nn.Linear(8, 8)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0)

    def step(x):
        loss = model(x).square().mean()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        return loss

    if graphed:
        step = tg.train_step(model, lambda z, _: z.square().mean(), optimizer)
        step.set_grad_scaler(scaler)
    for call in range(8):
        if call == 3:
            model(torch.ones(1, 8)).sum().backward()
        x = torch.randn(4, 8)
        look(found=step(x, x) if graphed else step(x), model=model, scaler=scaler)


def no_program_late(graphed, look):
    """Each first call of a signature goes on in eager; the second comes when others have served."""

    def step(x, y):
        x.mul_(0.5)
        return x.sum() if y is None else (x * y).sum()

    step = graph_of(step, graphed)
    for call in range(12):
        x = torch.randn(4, 8)
        look(found=step(x, x if call in (0, 8) else None), x=x)


class Mean(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("mean", torch.zeros(8))

    def forward(self, x):
        self.mean = 0.9 * self.mean + 0.1 * x.mean(0)
        return x - self.mean


def buffer_under_inference_mode(graphed, look):
    model = Mean()

    def evaluate(x):
        with torch.inference_mode():
            return model(x)

    evaluate = graph_of(evaluate, graphed)
    if graphed:
        evaluate.config.set_fallback("eager")
    for _ in range(8):
        look(found=evaluate(torch.randn(4, 8)), model=model)


@pytest.mark.filterwarnings("ignore::torchgraph.errors.EagerWarning")
@pytest.mark.parametrize(
    "run",
    [
        lstm_without_grad,
        lstm_dropout_under_inference_mode,
        buffer_under_inference_mode,
        total_that_starts_again,
        rrelu_of_a_transposed_input,
        bilinear_under_autocast,
        alpha_dropout_in_a_checkpoint,
        ctc_loss_with_checkpointing,
        gradient_before_a_scaled_call,
        no_program_late,
    ],
    ids=lambda run: run.__name__,
)
def test_found(run):
    found = verdict(run)
    assert found.startswith(("same:", "same, in eager")), found
    assert "PassFailed" not in found
