"""docs/effects.md: each row is run, and is what it says."""

import runpy
import warnings
from collections import deque
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

import torchgraph as tg
from torchgraph.reasons import Reason

GENERATOR = runpy.run_path(str(Path(__file__).parents[1] / "docs" / "generate_effects.py"))
ROWS = GENERATOR["ROWS"]
STEP = """
def step(x):
    loss = model(x).square().mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
    {lines}
    return loss
"""


def run(row, wrap):
    torch.manual_seed(0)
    kept, model = SimpleNamespace(), torch.nn.Linear(3, 1)
    names = {"kept": kept, "model": model, "deque": deque, "torch": torch}
    names |= {"SimpleNamespace": SimpleNamespace, "opt": torch.optim.SGD(model.parameters(), 0.1)}
    exec(row.start, names)
    exec(compile(STEP.format(lines=row.lines), "<row>", "exec"), names)
    step = wrap(names["step"])
    losses = [step(torch.randn(2, 3)).item() for _ in range(9)]
    kept.__dict__.pop("numbers", None)
    return (losses, model.weight.tolist(), repr(kept)), step


def wrapped(function):
    step = tg.step(function)
    step.config.set_backend("aten")
    step.config.set_fallback("eager")
    return step


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.what)
def test_a_row_is_what_it_says(row):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        (expected, _), (found, step) = run(row, lambda f: f), run(row, wrapped)
    assert found[:2] == expected[:2]
    clean = [text.replace(", grad_fn=<AliasBackward0>", "") for text in (found[2], expected[2])]
    assert clean[0] == clean[1]
    calls = step.report().calls
    assert bool(calls.programs) is row.served
    assert row.served or isinstance(calls.eager[0].reason, Reason)


def test_the_page_is_generated():
    assert GENERATOR["TARGET"].read_text(encoding="utf-8") == GENERATOR["page"](), (
        "run: python docs/generate_effects.py"
    )
