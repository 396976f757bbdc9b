"""What a step reads that no name leads to, beside `stack_worlds`."""

from __future__ import annotations

import logging
from typing import Any

import pytest
import torch
from torch import nn

import torchgraph as tg
from tests.contract.models import Function

# --- what schedulers set -------------------------------------------------------------------------


def trained(scheduled, read, calls=14):
    """What each call returns, the weights, and the step; in eager and recorded."""
    found = []
    for wrap in (lambda step: step, tg.step):
        torch.manual_seed(0)
        model = nn.Linear(3, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        scheduler = scheduled(optimizer)

        def body(x, model=model, optimizer=optimizer, scheduler=scheduler):
            optimizer.zero_grad()
            loss = model(x).square().mean()
            loss.backward()
            optimizer.step()
            return read(optimizer, scheduler, loss)

        step = wrap(body)
        if step is not body:
            step.config.set_backend("aten")
        returned = [step(torch.randn(4, 3)) for _ in range(calls)]
        found.append((returned, model.weight.detach().clone(), step))
    return found


def step_lr(optimizer):
    return torch.optim.lr_scheduler.StepLR(optimizer, 4, 0.5)


def plateau(optimizer):
    return torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=1, factor=0.5)


def last_lr(optimizer, scheduler, loss):
    scheduler.step()
    return scheduler.get_last_lr()[0]


def lr_of_the_group(optimizer, scheduler, loss):
    scheduler.step()
    return optimizer.param_groups[0]["lr"]


def state_of_the_scheduler(optimizer, scheduler, loss):
    scheduler.step()
    return scheduler.state_dict()["last_epoch"]


def bad_epochs(optimizer, scheduler, loss):
    scheduler.step(loss.detach())
    return scheduler.num_bad_epochs


@pytest.mark.parametrize(
    ("scheduled", "read"),
    [
        (step_lr, last_lr),
        (step_lr, lr_of_the_group),
        (step_lr, state_of_the_scheduler),
        (plateau, bad_epochs),
    ],
)
def test_what_a_scheduler_has_set_is_read_in_eager(scheduled, read):
    with pytest.warns(tg.errors.EagerWarning, match=r"after scheduler\.step\(\) has set it"):
        (expected, weight, _), (returned, found, _) = trained(scheduled, read)
    assert returned == expected
    assert torch.equal(found, weight)


def test_what_is_read_before_the_scheduler_steps_has_a_program():
    def read(optimizer, scheduler, loss):
        found = scheduler.get_last_lr()[0]
        scheduler.step()
        return found

    (expected, weight, _), (returned, found, step) = trained(step_lr, read)
    assert returned == expected
    assert torch.equal(found, weight)
    assert step.report().calls.programs


# --- other readers --------------------------------------------------------------------------------


def test_the_level_of_a_logger():
    logger = logging.getLogger(__name__)
    logger.setLevel(logging.INFO)

    def build(x):
        return x * (2.0 if logger.isEnabledFor(logging.DEBUG) else 0.5)

    graph = Function(build)
    for level in (logging.INFO, logging.DEBUG, logging.INFO):
        logger.setLevel(level)
        for _ in range(4):
            x = torch.randn(4)
            assert torch.equal(graph(x), build(x))
    assert graph.report().calls.programs


# --- arguments ------------------------------------------------------------------------------------


def test_the_order_of_other_keywords_counts():
    def build(**batch: torch.Tensor) -> Any:
        total = 0.0
        for value in batch.values():
            total = total * 0.5 + value
        return total

    graph = Function(build)
    for names in ("ab", "ab", "ab", "ba", "ba", "ba", "ab"):
        batch = {name: torch.randn(3) for name in names}
        assert torch.equal(graph(**batch), build(**batch))
    assert graph.report().calls.programs == 3


def test_an_argument_with_a_gradient_or_a_hook():
    def run(wrap):
        torch.manual_seed(0)
        step = wrap(lambda x: x.square().sum().backward())
        found = []
        for call in range(10):
            x = torch.randn(3, requires_grad=True)
            if call > 5:
                x.grad = torch.ones(3)
            if call > 7:
                x.register_hook(lambda gradient: gradient * 2)
            step(x)
            found.append(x.grad.tolist())
        return found

    with pytest.warns(tg.errors.EagerWarning):
        assert run(tg.step) == run(lambda step: step)


def test_an_inference_tensor_raises_what_eager_raises():
    model = nn.Linear(3, 1)

    def build(x):
        model(x).sum().backward()

    step = tg.step(build)
    for _ in range(4):
        step(torch.randn(2, 3))
    with torch.inference_mode():
        x = torch.randn(2, 3)
    with pytest.raises(RuntimeError, match="Inference tensors cannot be saved"):
        step(x)


def test_an_object_that_has_every_attribute():
    class Flags:
        def __getattr__(self, name):
            return 0.5

        def __call__(self):
            return 1.0

    flags = Flags()
    step = tg.step(lambda x: x * flags.scale)
    for _ in range(4):
        x = torch.randn(3)
        assert torch.equal(step(x), x * 0.5)
