"""Excerpts of OneFlow's scripts train by a Graph as they do in eager."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from . import synthetic
from .running import run

SCRIPTS = Path(__file__).parent / "scripts"
STEPS = 20

CASES: dict[str, Callable[[Path], Path] | None] = {
    "resnet50": synthetic.image_records,
    "alexnet": synthetic.image_records,
    "bert": synthetic.bert_records,
    "gpt": synthetic.indexed_tokens,
    "wide_and_deep": synthetic.click_records,
    "dcgan": None,
    "fast_neural_style": synthetic.photographs,
}


def told(out: str) -> dict[str, dict[str, Any]]:
    """What a script told, by the way in which it trained."""
    lines = [json.loads(line) for line in out.splitlines() if line.startswith("{")]
    return {line.pop("way"): line for line in lines}


@pytest.mark.parametrize("name", CASES)
def test_a_script_trains(name, tmp_path):
    write = CASES[name]
    arguments = [str(write(tmp_path / "data"))] if write else []
    if name == "alexnet":
        arguments.insert(0, "--ofrecord_path")

    both = told(run(SCRIPTS / f"{name}.py", *arguments, cwd=tmp_path))

    eager, graph = both["eager"], both["graph"]
    losses = graph["losses"]
    assert len(losses) == STEPS
    assert all(math.isfinite(loss) for loss in losses)
    assert sum(losses[-5:]) < 0.9 * sum(losses[:5])
    for ran in graph.pop("ran"):
        assert ran["backend"] == "aten"
        assert ran["eager"] == []
        assert ran["programs"] > 0
    assert eager.pop("ran") == []
    assert graph == eager
