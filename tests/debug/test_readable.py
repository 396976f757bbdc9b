"""What reads well in the tree without colour: buffers, passes, None, dataclasses, AMP, eager."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch
from torch import nn

import torchgraph as tg
from torchgraph.errors import EagerWarning

from .test_rich_tree import trained

pytestmark = [
    pytest.mark.usefixtures("without_looks"),
    pytest.mark.filterwarnings("ignore:Replays of the step do not repeat"),
]


def test_what_is_meant_reads_without_colour():
    """Buffers are called so; what passes made begins a line, and goes on indented."""

    class Many(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.ones(4))
            for number in range(4):
                self.register_buffer(f"statistics_{number}", torch.ones(4))

        def forward(self, x):
            return x * self.weight + self.statistics_0

    shown = trained(nn.Sequential(nn.Linear(4, 4), Many(), nn.Linear(4, 2))).tree().plain()
    part = shown[shown.index("1 Many") : shown.index("2 Linear")].splitlines()[1:-1]
    lines = [line[:40].replace("│", " ") for line in part]
    words = [line.strip() for line in lines]
    first = next(n for n, line in enumerate(words) if line.startswith("buffers: statistics_0[4]"))
    assert words[first - 1].endswith("weight[4]")
    assert words[first + 1].startswith("statistics_")
    left = [len(line) - len(line.lstrip()) for line in lines]
    assert left[first + 1] == left[first] + 2 == left[0] + 2


def test_what_passes_made_begins_a_line():
    shown = trained(allow_fuse_model_update_ops=True).tree().plain()
    lines = [line[:40].strip("│ ") for line in shown.splitlines()]
    made = [n for n, line in enumerate(lines) if "fuse_model_update:" in line]
    assert len(made) == 4
    assert all(lines[n].startswith("fuse_model_update:") for n in made)
    assert lines[made[1] + 1].startswith("torchgraph.sgd_update x2")


def test_none_is_called_none_and_left_out_at_the_end():
    class Picky(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(4, 2)

        def forward(self, a, x, b=None, c=None):
            return self.layer(x), b

    class Step(tg.Graph):
        def __init__(self):
            super().__init__()
            self.model = Picky()

        def build(self, x, mask=None):
            return self.model(None, x, mask, None)

    graph = Step()
    for _ in range(3):
        graph(torch.ones(3, 4), None)
    shown = graph.tree().plain()
    assert "NoneType" not in shown
    assert "None [3,4] -> [3,2] None" in shown
    assert "in [3,4]\n" in shown
    assert "NoneType" in str(graph), "OneFlow's text is as it was"


@dataclass
class Batch:
    x: torch.Tensor
    scale: float = 1.0


@dataclass
class Plain:
    scale: float = 2.0


def test_the_tensors_of_a_dataclass_are_shown():
    class Step(tg.Graph):
        def __init__(self):
            super().__init__()
            self.model = nn.Linear(4, 2)

        def build(self, batch, plain):
            return Batch(self.model(batch.x) * plain.scale)

    graph = Step()
    for _ in range(3):
        graph(Batch(torch.ones(3, 4)), Plain())
    shown = graph.tree().plain()
    assert "in [3,4] float Plain" in shown
    assert "out [3,2] float" in shown


def test_mixed_precision_is_said():
    assert "amp" not in trained().tree().plain()
    assert "amp in bfloat16" in trained(enable_amp={"dtype": torch.bfloat16}).tree().plain()


def test_eager_begins_a_line():
    class Odd(tg.Graph):
        def build(self, x):
            return x.numpy().sum()

    graph = Odd()
    graph.config.set_fallback("eager")
    with pytest.warns(EagerWarning):
        graph(torch.ones(2))
    lines = [line.strip("│ ") for line in graph.tree().plain().splitlines()]
    assert any(line.startswith("float32 on cpu unless said") for line in lines)
    assert any(line.startswith("runs in eager:") for line in lines)
