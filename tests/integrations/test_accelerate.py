"""The loop that accelerate documents, as one `tg.step`, beside the same loop without it."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import torchgraph as tg

accelerate = pytest.importorskip("accelerate")
_state = pytest.importorskip("accelerate.state")

STEPS, BATCHES = 36, 9  # an epoch ends within an accumulation of 2


def _train(wrap, steps, precision, folder=None, load=None, start=0):
    """Losses and what is logged with them, all state afterwards, the step."""
    _state.AcceleratorState._reset_state(True)
    _state.GradientState._reset_state()
    torch.manual_seed(0)
    accelerator = accelerate.Accelerator(
        cpu=True, gradient_accumulation_steps=steps, mixed_precision=precision
    )
    x = torch.randn(BATCHES * 8, 16)
    model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Dropout(0.1), nn.Linear(32, 2))
    optimizer = torch.optim.AdamW(model.parameters(), 1e-2)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 40)
    loader = DataLoader(TensorDataset(x, (x[:, 0] > 0).long()), batch_size=8)
    model, optimizer, scheduler, loader = accelerator.prepare(model, optimizer, scheduler, loader)

    @wrap
    def step(x, y):
        norm = None
        with accelerator.accumulate(model):
            loss = F.cross_entropy(model(x), y)
            accelerator.backward(loss)
            if accelerator.sync_gradients:
                norm = accelerator.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad()
        return loss.detach(), norm

    if load is not None:
        accelerator.load_state(load)
    seen = []
    for epoch in range(start, STEPS // BATCHES):
        if folder is not None and epoch == 2:
            accelerator.save_state(folder)
        for batch in loader:
            loss, norm = step(*batch)
            rate = scheduler.get_last_lr()
            seen.append((loss, norm, accelerator.sync_gradients, accelerator.step, rate))
    state = model.state_dict(), optimizer.state_dict(), scheduler.state_dict()
    return seen, state, step


def _graph(function):
    step = tg.step(function)
    step.config.set_backend("aten")
    return step


def _assert_same(found, expected):
    torch.testing.assert_close(found, expected, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize(
    ("steps", "precision"),
    [(1, "no"), (2, "no"), pytest.param(2, "bf16", marks=pytest.mark.slow)],
)
def test_the_documented_body_is_one_program(steps, precision):
    expected, expected_state, _ = _train(lambda step: step, steps, precision)
    seen, state, step = _train(_graph, steps, precision)
    assert len(seen) == STEPS
    _assert_same(seen, expected)
    _assert_same(state, expected_state)
    calls = step.report().calls
    assert not calls.eager
    assert calls.programs >= STEPS * 2 // 3


def test_saved_and_loaded_state_goes_on_to_the_bit(tmp_path):
    expected, expected_state, _ = _train(lambda step: step, 2, "no")
    saved, _, _ = _train(_graph, 2, "no", folder=tmp_path / "state")
    _assert_same(saved, expected)
    seen, state, _ = _train(_graph, 2, "no", load=tmp_path / "state", start=2)
    _assert_same(seen, expected[2 * BATCHES :])
    _assert_same(state, expected_state)
