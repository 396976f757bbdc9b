"""The loops of docs/migrating.md do what they do in eager, and are run by programs."""

from __future__ import annotations

import types
from typing import Any

import pytest
import torch
from torch import nn

import torchgraph as tg
from tests.contract.loops import snapshot
from tests.test_docs import ROOT, python_blocks
from torchgraph.counters import counters

_BLOCKS = [block for block in python_blocks() if block.values[0].name == "migrating.md"]
_OWNERS = (nn.Module, torch.optim.Optimizer, torch.Tensor, torch.amp.GradScaler, list, int, float)


def left(code: str) -> dict[str, Any]:
    """All that a block has made or changed, by name."""
    torch.manual_seed(0)
    model = nn.Linear(3, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    given = types.ModuleType("block")
    vars(given).update(
        model=model,
        loss_fn=nn.MSELoss(),
        optimizer=optimizer,
        scheduler=torch.optim.lr_scheduler.StepLR(optimizer, 3),
        loader=[(torch.randn(4, 3), torch.randn(4, 1)) for _ in range(12)],
        torch=torch,
    )
    exec(compile(code, str(ROOT / "docs" / "migrating.md"), "exec"), vars(given))
    names = {name: value for name, value in vars(given).items() if not name.startswith("_")}
    held = {name: value for name, value in names.items() if isinstance(value, _OWNERS)}
    return {name: snapshot(value, with_grad=True) for name, value in held.items()}


@pytest.mark.parametrize(("page", "code"), _BLOCKS)
def test_the_loops_are_eagers(page, code, monkeypatch, capsys):
    before = counters.replays
    found = left(code)
    assert counters.replays - before >= 5
    with monkeypatch.context() as patched:
        patched.setattr(tg, "step", lambda function: function)
        if "load_state_dict(step" in code:
            code = code.replace("step.load_state_dict(step.state_dict())\n", "")
        expected = left(code)

    assert str(found) == str(expected)
    assert _exact(found, expected)


def _exact(left: Any, right: Any) -> bool:
    if isinstance(left, dict):
        return all(_exact(left[key], right[key]) for key in left)
    if isinstance(left, (list, tuple)):
        return all(_exact(*items) for items in zip(left, right, strict=True))
    return left.equal(right) if isinstance(left, torch.Tensor) else left == right
