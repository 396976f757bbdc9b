"""``torchgraph show``: what is in a directory, without running any of it."""

from __future__ import annotations

import itertools

import pytest

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
    assert show(tmp_path / "nothing")[0] == 1
    (tmp_path / "file").write_text("a state, say")
    assert "is a file" in " ".join(show(tmp_path / "file")[1].split())
    content = (places / "gpt" / "program.json").read_bytes()
    (places / "gpt" / "program.json").write_bytes(content[:-1])
    status, out = show(places / "gpt")
    (places / "gpt" / "program.json").write_bytes(content)
    assert (status, "program.json is not as it was written" in " ".join(out.split())) == (1, True)
