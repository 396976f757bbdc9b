"""Excerpts of OneFlow's scripts train by a Graph as they do in eager."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.support import thinned
from torchgraph.oneflow._port.nn.losses import CrossEntropyLoss
from torchgraph.oneflow._port.optim.schedules.base import LrScheduler
from torchgraph.oneflow._port.optim.schedules.warmup import WarmupLR
from torchgraph.oneflow._port.optim.sgd import SGD
from torchgraph.oneflow._port.tensors.factories import tensor

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

FUSES = ("resnet50", "bert", "gpt")
"""They allow one update of all parameters, whose sums are rounded in another order."""


def told(out: str) -> dict[str, dict[str, Any]]:
    """What a script told, by the way in which it trained."""
    lines = [json.loads(line) for line in out.splitlines() if line.startswith("{")]
    return {line.pop("way"): line for line in lines}


@pytest.mark.parametrize("name", thinned(CASES, keep=["wide_and_deep", "dcgan"]))
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
    if name != "dcgan":  # two networks against each other
        assert sum(losses[-5:]) < 0.9 * sum(losses[:5])
    ran = graph.pop("ran")
    assert [(one["backend"], one["eager"]) for one in ran] == [("aten", [])] * len(ran)
    assert ran[0]["programs"] >= STEPS - 3  # the first calls are recorded
    assert {"forward", "backward", "update"} <= ran[0]["nodes"].keys()
    assert eager.pop("ran") == []
    if name in FUSES:
        assert losses == pytest.approx(eager["losses"], rel=1e-4)
        eager["losses"] = losses
    assert graph == eager


def test_a_schedule_of_the_older_protocol_warms_up():
    optimizer = SGD([torch.nn.Parameter(torch.zeros(1))], lr=2.0)
    schedule = WarmupLR(Halving(optimizer), warmup_factor=0.0, warmup_iters=2)
    rates = [optimizer.param_groups[0]["lr"]]
    for _ in range(3):
        schedule.step()
        rates.append(optimizer.param_groups[0]["lr"])

    assert rates == [0.0, 0.25, 0.5, 0.25]  # up to what it says of step 2, then on from there


class Halving(LrScheduler):
    """As scripts before OneFlow 0.7 have it."""

    def get_lr(self):
        return [base_lr / 2**self.last_step for base_lr in self.base_lrs]


@pytest.mark.parametrize("shape", [(4,), (4, 1), (2, 2), (1, 4)])
def test_labels_may_have_another_shape(shape):
    logits = [[0.5, -1.25, 0.75], [1.5, 0.25, -0.5], [0.0, 2.0, 1.0], [-1.0, 1.0, 0.5]]
    labels = torch.tensor([0, 2, 1, 1], dtype=torch.int32).reshape(shape)

    each = CrossEntropyLoss(reduction="none")(torch.tensor(logits), labels)

    of_oneflow = [0.8992664217948914, 2.351954698562622, 0.40760383009910583, 0.5549558997154236]
    assert each.shape == shape
    assert each.ravel().tolist() == pytest.approx(of_oneflow, rel=1e-5)


@pytest.mark.parametrize(
    ("data", "dtype"),
    [
        ([np.array(1.5), np.array(2.0)], torch.float32),
        ([np.array(1, np.int32)], torch.int32),
        ([[np.array(1)], [np.array(2)]], torch.int64),
        ((np.array(1), 3), torch.int64),
    ],
)
def test_a_tensor_of_arrays_that_are_numbers(data, dtype):
    assert tensor(data).dtype == dtype
    assert tensor(data).tolist() == np.array(data).tolist()
