"""How long guards take: in the report, and in a warning where they outlast the program."""

from __future__ import annotations

import warnings
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn

import torchgraph as tg
from torchgraph import _extension
from torchgraph.errors import SlowGuardsWarning
from torchgraph.guards import GuardTimes, guards


@pytest.mark.parametrize(
    ("check", "call", "runs", "on_cpu", "outlast"),
    [
        (1e-3, 1e-3, 5e-4, True, True),
        (1e-3, 1e-3, 2e-3, True, False),
        (1e-4, 1e-4, 1e-5, True, False),  # too short to be worth a word
        (1e-3, 5e-3, 1e-4, False, False),  # a GPU computes, and the host does not wait
        (1e-3, 5e-4, 1e-4, False, True),
    ],
)
def test_when_they_outlast_the_program(check, call, runs, on_cpu, outlast, monkeypatch):
    clock, times = SimpleNamespace(now=1.0), GuardTimes()
    monkeypatch.setattr(guards, "perf_counter", lambda: clock.now)
    found = []
    for number in range(240):
        assert not times.is_due or number in (56, 112, 224)
        start = times.started()
        clock.now += check
        if start:
            times.ended(start)
        clock.now += call
        if times.is_due:
            found.append(times.outlast([runs] * 3, on_cpu=on_cpu))
    assert times.median == pytest.approx(check)
    assert found == [outlast] * 3


def training(scale):
    """A step that reads ``config.weights``, and its batch."""
    net = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    config = SimpleNamespace(weights=scale)

    @tg.step
    def step(x):
        optimizer.zero_grad()
        loss = net(x).mean() * float(config.weights[0])
        loss.backward()
        optimizer.step()
        return loss

    return step, torch.ones(2, 4)


def test_a_report_says_how_long_they_take():
    step, x = training((0.5,))
    for _ in range(12):
        step(x)
    report = step.report()
    assert report.guard_seconds is not None
    assert 0 < report.guard_seconds < 0.1
    assert "checked before each call, in " in str(report)


def test_one_warning_names_what_takes_longest():
    if _extension.guards() is None:
        pytest.skip("the guards are not compiled here")
    step, x = training(np.ones(1 << 21))  # 16 MiB, copied and compared before each call
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(140):
            step(x)
    found = [one for one in caught if issubclass(one.category, SlowGuardsWarning)]
    assert len(found) == 1
    said = str(found[0].message)
    assert "Most of it is config, which the step reads" in said
    assert "outside of the step" in said
    assert found[0].filename == __file__
