"""What people see of a linear layer, MobileNetV2 and a GPT, word for word and in its place.

`build` and hooks say where the step is: a line that came later, or not at all, is another text.
"""

from __future__ import annotations

import io
import re
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console
from torch import nn, optim
from torch.nn import functional as F

import torchgraph as tg
from examples.models import GPT, MobileNetV2
from tests.support import assert_golden
from torchgraph.nn.graph import GraphModule

pytestmark = [
    pytest.mark.usefixtures("without_looks"),
    pytest.mark.filterwarnings("ignore:Replays of the step do not repeat"),
]

ROOT = str(Path(__file__).parents[2])


def say(line: str) -> None:
    sys.stdout.write(f"--- {line}\n")


class LinearGraph(tg.Graph):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(3, 8, bias=False)
        self.add_optimizer(optim.SGD(self.linear.parameters(), lr=0.1))
        self.config.set_backend("aten")

    def build(self, x):
        say("build begins")
        loss = self.linear(x).square().mean()
        say("backward")
        loss.backward()
        say("build ends")
        return loss


class Train(tg.Graph):
    def __init__(self, model: nn.Module):
        super().__init__()
        self.model = model
        self.add_optimizer(optim.SGD(model.parameters(), lr=0.1, momentum=0.9))
        self.config.set_backend("aten")

    def build(self, x, y):
        say("build begins")
        logits = self.model(x)
        say("backward")
        loss = F.cross_entropy(logits.flatten(0, -2), y.flatten())
        loss.backward()
        say("build ends")
        return loss


@pytest.fixture(autouse=True)
def same_names(monkeypatch):
    """Graphs are counted anew; norms read the same in every release of torch."""
    monkeypatch.setattr(tg.Graph, "_instances", Counter())
    monkeypatch.setattr(
        nn.LayerNorm, "extra_repr", lambda norm: f"{norm.normalized_shape}, eps={norm.eps}"
    )
    monkeypatch.setattr(
        nn.modules.batchnorm._NormBase,
        "extra_repr",
        lambda norm: f"{norm.num_features}, eps={norm.eps}",
    )
    torch.manual_seed(0)


def gpt() -> tuple[tg.Graph, tuple[torch.Tensor, ...]]:
    model = GPT(20, block_size=8, layers=1, width=8, heads=2, dropout=0.0)
    model.blocks[0].mlp[1].register_forward_hook(lambda *_: say("GELU has run"))
    ids = torch.randint(20, (2, 9))
    return Train(model), (ids[:, :-1], ids[:, 1:])


def mobilenet() -> tuple[tg.Graph, tuple[torch.Tensor, ...]]:
    model = MobileNetV2(10, width=0.35, stem_strides=(2, 1))
    model.features[1].register_forward_hook(lambda *_: say("features.1 has run"))
    return Train(model), (torch.randn(2, 3, 16, 16), torch.randint(10, (2,)))


class Page:
    """What is printed, in order."""

    def __init__(self, capsys: Any) -> None:
        self._capsys = capsys
        self._parts: list[str] = []
        capsys.readouterr()

    def called(self, graph: tg.Graph, *args: torch.Tensor) -> None:
        """What a call prints."""
        graph(*args)
        out, err = self._capsys.readouterr()
        assert err == ""
        self.show("call", out)

    def show(self, title: str, text: str) -> None:
        self._parts.append(f"##### {title}\n{text.rstrip()}\n")

    def __str__(self) -> str:
        text = "\n".join(self._parts).replace(ROOT, "")
        text = re.sub(r"Cost time: \d+\.\d\ds", "Cost time: 0.00s", text)
        text = re.sub(r"': line \d+;", "': line 0;", text)
        # What torch 2.15 makes of a linear layer of three dimensions.
        return re.sub(r"(model[\w.]*)-_unsafe_view-", r"\1-view-", text)


def rich(shown: Any) -> str:
    screen = Console(file=io.StringIO(), width=80)
    screen.print(shown)
    lines = screen.file.getvalue().splitlines()
    assert max(map(len, lines)) <= 80
    return "\n".join(line.rstrip() for line in lines)


def test_a_linear_graph(capsys):
    page, graph, x = Page(capsys), LinearGraph(), torch.ones(4, 3)
    page.show("print(graph)", str(graph))
    page.show("print(graph.linear)", str(graph.linear))
    page.show("rich.print(graph)", rich(graph))
    graph.debug(3, 0, 2, True, True)
    for _ in range(3):
        page.called(graph, x)
    page.show("print(graph)", str(graph))
    page.show("print(graph.linear)", str(graph.linear))
    page.show("rich.print(graph)", rich(graph))
    assert_golden("debug_linear", str(page))


def test_a_gpt(capsys):
    page, (graph, arguments) = Page(capsys), gpt()
    page.show("print(graph)", str(graph))
    graph.debug(1)
    for _ in range(3):
        page.called(graph, *arguments)
    page.show("print(graph.model.blocks[0].mlp)", str(graph.model.blocks[0].mlp))
    page.show("rich.print(graph)", rich(graph))
    page.show("rich.print(graph.tree(2))", rich(graph.tree(2)))
    assert_golden("debug_gpt", str(page))


def test_mobilenet_v2(capsys):
    page, (graph, arguments) = Page(capsys), mobilenet()
    page.show("rich.print(graph.tree(2))", rich(graph.tree(2)))
    graph.debug(0)
    graph.model.features[1].layers[0].to(GraphModule).debug(2)
    for _ in range(3):
        page.called(graph, *arguments)
    page.show("print(graph.model.features[1])", str(graph.model.features[1]))
    page.show("rich.print(graph.tree(4))", rich(graph.tree(4)))
    assert_golden("debug_mobilenet_v2", str(page))


def deep(layers: int) -> tg.Graph:
    parts = [nn.Sequential(nn.Linear(4, 4), nn.LayerNorm(4), nn.ReLU()) for _ in range(layers)]
    model = nn.Sequential(*parts)
    graph = tg.train_step(model, F.mse_loss, optim.SGD(model.parameters(), lr=0.1))
    graph.config.set_backend("aten")
    for _ in range(3):
        graph(torch.randn(3, 4), torch.randn(3, 4))
    return graph


def seconds(look: Callable[[tg.Graph], str], graph: tg.Graph) -> float:
    took = []
    for _ in range(5):
        start = time.process_time()
        assert len(look(graph)) > 10_000
        took.append(time.process_time() - start)
    return min(took)


@pytest.mark.slow
def test_print_and_tree_take_time_in_proportion_to_the_nodes():
    small, large = deep(50), deep(200)
    assert len(list(large.program.nodes)) >= 5000
    for look in (str, tg.Graph.full_text, rich, tg.Graph._repr_html_):
        assert seconds(look, large) <= 9 * seconds(look, small), look  # 4 times the nodes
