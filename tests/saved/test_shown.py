"""``torchgraph show``: what is in a directory, without running any of it."""

from __future__ import annotations

import itertools
import re
import subprocess
import sys

import pytest
import torch
from torch import nn

import torchgraph as tg
from tests.saved.cases import CASES
from torchgraph.cli import main


@pytest.fixture(scope="module")
def places(tmp_path_factory):
    folder = tmp_path_factory.mktemp("shown")
    for name in ("gpt", "structured", "accumulation"):
        graph, calls = CASES[name]()
        for args, kwargs in itertools.islice(calls, 6):
            graph(*args, **kwargs)
        tg.save(graph, folder / name)
    return folder


@pytest.fixture
def show(monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "80")

    def run(place, depth=None):
        options = [] if depth is None else ["--depth", str(depth)]
        status = main(["show", str(place), *options])
        return status, capsys.readouterr().out

    return run


def test_what_a_training_graph_takes_holds_and_computes(places, show):
    status, out = show(places / "gpt")
    assert status == 0
    lines = out.splitlines()
    assert max(map(len, lines)) <= 80
    assert "of class Text, trains" in lines[0]
    assert "6 steps" in lines[1]
    assert any(line.split() == ["takes", "args[0]:", "int64[2,", "9]"] for line in lines)
    assert any(line.split() == ["returns", "float32[]"] for line in lines)
    assert any("FLOPs" in line and "ops" in line for line in lines)
    model = next(line for line in lines if line[4:9] == "model")
    graph, _ = CASES["gpt"]()
    count = sum(parameter.numel() for parameter in graph.model.parameters())
    assert model.split()[2] == f"{count / 1000:.1f}K"
    assert int(model.split()[4]) > 0  # forward
    assert int(model.split()[5]) > 0  # backward
    assert int(model.split()[6]) > 0  # update


def test_modules_end_at_a_depth(places, show):
    shallow, deep = (show(places / "gpt", depth)[1] for depth in (0, 1))
    lengths = [out.count("\n") for out in (shallow, deep, show(places / "gpt")[1])]
    assert lengths == sorted(set(lengths))


def test_values_that_a_program_is_made_for(places, show):
    out = show(places / "structured")[1]
    assert "args[0]['x']: float32[6, 4]" in out
    assert "kwargs['mask']: float32[6, 1]" in out
    assert "found" in out


def test_a_call_is_of_the_whole_batch(places, show):
    assert "args[0]: float32[6, 4]" in show(places / "accumulation")[1]


def test_what_is_damaged_is_refused(places, show, tmp_path):
    status, out = show(tmp_path)
    assert (status, "no manifest.json" in " ".join(out.split())) == (1, True)
    status, out = show(tmp_path / "nothing")
    assert status == 1
    assert "torchgraph.save(graph, directory) has written" in " ".join(out.split())
    (tmp_path / "file").write_text("a state, say")
    assert "is a file" in " ".join(show(tmp_path / "file")[1].split())
    content = (places / "gpt" / "program.json").read_bytes()
    (places / "gpt" / "program.json").write_bytes(content[:-1])
    status, out = show(places / "gpt")
    (places / "gpt" / "program.json").write_bytes(content)
    assert (status, "program.json is not as it was written" in " ".join(out.split())) == (1, True)


class Marked(tg.Graph):
    """Texts of users that rich would take for markup, or an emoji."""

    def __init__(self) -> None:
        super().__init__()
        self.model = nn.Linear(4, 4)
        self.config.set_backend("aten")

    def build(self, x, mode="a"):
        return {f"out{mode}": self.model(x)}


@pytest.mark.parametrize("mode", ["[/b]", "[red]hi[/red]", "[/]", ":smile:", "é"])
def test_texts_of_users_are_texts(mode, show, tmp_path):
    graph = Marked()
    for _ in range(4):
        graph(torch.randn(2, 4), mode=mode)
    tg.save(graph, tmp_path / "saved")
    status, out = show(tmp_path / "saved")
    assert status == 0
    assert f"args[1] = {mode!r}" in out
    assert f"['out{mode}']: float32[2, 4]" in out
    assert "1 op, 64 FLOPs" in out
    assert all(line == line.rstrip() for line in out.splitlines())


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(1000, 8)
        self.head = nn.Linear(8, 1000, bias=False)
        self.head.weight = self.table.weight

    def forward(self, x):
        return self.head(self.table(x))


def test_a_tied_weight_is_where_it_is_used(show, tmp_path):
    graph = tg.train_step(
        model := Tied(), nn.CrossEntropyLoss(), torch.optim.SGD(model.parameters(), lr=0.1)
    )
    for _ in range(4):
        graph(torch.arange(40), torch.arange(40))
    tg.save(graph, tmp_path / "saved")
    out = show(tmp_path / "saved")[1]
    (head,) = [line for line in out.splitlines() if " head " in line]
    assert "uses model.table.weight" in head
    assert out.count("uses ") == 1
    assert re.search(r"\d[.\d]* MFLOPs, ", out)


def test_variants_say_what_they_are_for(show, tmp_path):
    class Branching(tg.Graph):
        def __init__(self) -> None:
            super().__init__()
            self.model = nn.Linear(4, 2)
            self.config.set_backend("aten")

        def build(self, x):
            return self.model(x) if x.sum() > 0 else -self.model(x)

    graph = Branching()
    for sign in (1, 1, -1, -1, 1, -1):
        graph(sign * torch.rand(3, 4))
    tg.save(graph, tmp_path / "saved")
    out = show(tmp_path / "saved")[1]
    assert len(re.findall(r"^where +(?:True|False) at test_shown\.py:\d+", out, re.MULTILINE)) == 2


def test_a_screen_that_knows_ascii_alone(monkeypatch):
    script = """
import rich, torch
import torchgraph as tg
class Größe(torch.nn.Linear): pass
model = Größe(2, 1)
graph = tg.train_step(model, torch.nn.MSELoss(), torch.optim.SGD(model.parameters(), 0.1))
for _ in range(3): graph(torch.ones(2, 2), torch.ones(2, 1))
profile = graph.profile(torch.ones(2, 2), torch.ones(2, 1))
for what in (graph.tree(), graph.report(), graph, profile):
    print(what)
    rich.print(what)
    print("=next=")
"""
    for name, value in (("PYTHONIOENCODING", "ascii"), ("LC_ALL", "C"), ("COLUMNS", "80")):
        monkeypatch.setenv(name, value)
    found = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=False
    )
    assert found.returncode == 0, found.stderr
    assert found.stdout.isascii()
    shown = found.stdout.split("=next=")[:4]
    assert ["TrainStep_0" in text for text in shown] == [True] * 4
