"""The update of timm's `train.py`: scaler, clipping, moving average, Mixup, schedule."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
from torch import nn

import torchgraph as tg

data, losses, optim, schedules, utils = (
    pytest.importorskip(f"timm.{name}") for name in ("data", "loss", "optim", "scheduler", "utils")
)

STEPS = 32


def _train(wrap, scaled, mixed):
    torch.manual_seed(0)
    np.random.seed(0)
    model = nn.Sequential(
        nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(),
        nn.Dropout(0.1), nn.Linear(8, 10),
    )  # fmt: skip
    optimizer = optim.create_optimizer_v2(model, opt="adamw", lr=1e-2, weight_decay=0.05)
    scheduler = schedules.CosineLRScheduler(optimizer, t_initial=30, t_in_epochs=False, warmup_t=4)
    average, scaler = utils.ModelEmaV3(model, decay=0.9), utils.NativeScaler(device="cpu")
    mixup = data.Mixup(mixup_alpha=0.8, cutmix_alpha=1.0, num_classes=10)
    criterion = losses.SoftTargetCrossEntropy() if mixed else nn.CrossEntropyLoss()
    parameters, clip = list(model.parameters()), 1.0 if mixed else None

    @wrap
    def step(x, y):
        loss = criterion(model(x), y)
        if scaled:
            scaler(loss, optimizer, clip_grad=clip, parameters=parameters)
        else:
            loss.backward()
            if clip is not None:
                utils.dispatch_clip_grad(parameters, clip)
            optimizer.step()
        optimizer.zero_grad()
        average.update(model)
        return loss.detach()

    seen = []
    for number in range(STEPS):
        x, y = torch.randn(8, 3, 32, 32), torch.randint(0, 10, (8,))
        if mixed:
            x, y = mixup(x, y)
        seen.append(step(x, y).item())
        scheduler.step_update(number + 1)
    states = [model.state_dict(), optimizer.state_dict(), average.module.state_dict()]
    return (seen, copy.deepcopy(states), scaler.state_dict()), step


def _graph(function):
    step = tg.step(function)
    step.config.set_backend("aten")
    return step


@pytest.mark.slow
@pytest.mark.parametrize("scaled", [False, True])
@pytest.mark.parametrize("mixed", [False, True])
def test_the_update_of_timm_is_one_program(scaled, mixed):
    expected, _ = _train(lambda step: step, scaled, mixed)
    found, step = _train(_graph, scaled, mixed)
    torch.testing.assert_close(found, expected, rtol=0, atol=0)
    assert step.report().calls.programs >= STEPS - 4
    assert not step.report().calls.eager
