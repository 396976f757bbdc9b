"""The tree in colour: what its figures are, and that it fits, folds and escapes."""

from __future__ import annotations

import html
import io
import re
from dataclasses import replace
from typing import Any

import pytest
import torch
from rich.cells import cell_len
from rich.console import Console
from rich.table import Table
from torch import nn, optim
from torch.nn import functional as F

import torchgraph as tg
from torchgraph.costs.activations import kept_by_node
from torchgraph.costs.op_calls import Work, work_by_node
from torchgraph.debug.branches import _ELEMENTS, _number
from torchgraph.debug.rich_tree import GraphTree
from torchgraph.debug.units import BYTES, COUNTS
from torchgraph.errors import EagerWarning, InvalidOption
from torchgraph.ir.program import Phase, provenance


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.up = nn.Sequential(nn.Linear(4, 64), nn.GELU())
        self.down = nn.Sequential(nn.LayerNorm(64), nn.Linear(64, 2))

    def forward(self, x):
        return self.down(self.up(x))


def trained(model: nn.Module | None = None, **options: Any) -> tg.Graph:
    torch.manual_seed(0)
    model = model or Net()
    graph = tg.train_step(model, F.mse_loss, optim.SGD(model.parameters(), lr=0.1))
    graph.config.set_backend("aten")
    for name, value in options.items():
        given = value if isinstance(value, dict) else {}
        getattr(graph.config, name)(*([] if given else [value]), **given)
    for _ in range(3):
        graph(torch.randn(6, 4), torch.randn(6, 2))
    return graph


@pytest.fixture(scope="module")
def graph() -> tg.Graph:
    return trained()


def figures(shown: str) -> dict[str, dict[str, dict[str, str]]]:
    """By the first word of a branch, then by phase, the figures by column."""
    lines = shown.splitlines()
    columns = re.findall(r"\S+", lines[0])
    columns = columns[next(i for i, c in enumerate(columns) if c in ("own", "params")) :]
    found: dict[str, dict[str, dict[str, str]]] = {}
    name = ""
    for line in lines[1:]:
        words = line.split()
        plain = [word for word in words if not set(word) <= set("│├└─")]
        if any(set(word) & set("├└") for word in words):
            name = plain[0]
        for phase in ("fwd", "bwd", "upd"):
            if phase in words:
                cells = words[words.index(phase) + 1 :]
                given = [c for c in columns if c not in ("own", "params")]
                found.setdefault(name, {})[phase] = dict(zip(given, cells, strict=True))
    return found


def test_the_whole_is_what_the_program_takes(graph):
    program = graph.program
    shown = figures(graph.tree().plain())[""]
    for phase, name in zip(Phase, ("fwd", "bwd", "upd"), strict=True):
        nodes = work_by_node(program).items()
        works = [work for node, work in nodes if provenance(node).phase is phase]
        whole = sum(works, Work())
        assert shown[name]["ops"] == _number(whole.launches, _ELEMENTS)
        assert shown[name]["FLOPs"] == _number(whole.flops, COUNTS)
        assert shown[name]["moved"] == _number(whole.bytes, BYTES)
    assert shown["fwd"]["kept"] == _number(sum(kept_by_node(program).values()), BYTES)


def test_the_figures_of_a_layer(graph):
    shown = figures(graph.tree().plain())
    linear = shown["0"]  # the last of that name: the norm of `down`
    assert linear["fwd"]["FLOPs"] == "-"
    assert shown["1"]["fwd"]["FLOPs"] == _number(2 * 6 * 64 * 2, COUNTS)  # down.1
    assert shown["1"]["bwd"]["FLOPs"] == _number(4 * 6 * 64 * 2, COUNTS)
    moved = 4 * (6 * 64 + 64 * 2 + 2 + 6 * 2)
    assert shown["1"]["fwd"]["moved"] == _number(moved, BYTES)
    assert shown["1"]["upd"]["moved"] == _number(3 * 4 * (64 * 2 + 2), BYTES)


def test_micro_batches_are_counted():
    one = figures(trained().tree().plain())
    graph = trained(set_gradient_accumulation_steps=3)
    three = figures(graph.tree().plain())
    assert "3 micro-batches" in graph.tree().plain()
    assert three["model"]["fwd"]["FLOPs"] == one["model"]["fwd"]["FLOPs"]  # a third, three times
    assert int(three["model"]["fwd"]["ops"]) == 3 * int(one["model"]["fwd"]["ops"])
    assert three["model"]["upd"] == one["model"]["upd"]


def test_what_a_pass_made_is_at_its_module():
    graph = trained(allow_fuse_model_update_ops=True)
    shown = graph.tree().plain()
    assert "fuse_model_update: 8 edits" in shown
    up = shown[shown.index("up Sequential") : shown.index("1 GELU")]
    assert "fuse_model_update:" in up
    assert "torchgraph.sgd_update x2" in up
    assert "fuse_model_update" not in shown[shown.index("1 GELU") : shown.index("down Seq")]
    assert "torchgraph.sgd_update x6" in graph.tree(1).plain()


def test_how_many_nodes_the_passes_left():
    class Twice(nn.Module):
        def forward(self, x):
            return (x + 1) * (x + 1)

    graph = trained(nn.Sequential(nn.Linear(4, 2), Twice()))
    assert "cse: 2 edits" in graph.tree(0).plain()
    (part,) = re.findall(r"1 Twice.*?\((\d+) nodes, now (\d+)\)", graph.tree().plain(), re.DOTALL)
    assert int(part[0]) == int(part[1]) + 2


def test_before_the_first_call_there_are_no_figures():
    model = Net()
    graph = tg.train_step(model, F.mse_loss, optim.SGD(model.parameters(), lr=0.1))
    shown = graph.tree().plain()
    assert shown.splitlines()[0].split() == ["TrainStep", "own", "params"] or "own" in shown
    assert "FLOPs" not in shown
    assert "fwd" not in shown


def test_a_step_in_eager_says_why():
    class Odd(tg.Graph):
        def __init__(self):
            super().__init__()
            self.config.set_fallback("eager")

        def build(self, x):
            return x.numpy().sum()

    graph = Odd()
    assert "eager:" not in graph.tree().plain()
    with pytest.warns(EagerWarning):
        graph(torch.ones(2))
    words = " ".join(graph.tree().plain().replace("│", "").split())
    assert "runs in eager: the step calls .numpy() on a tensor" in words
    assert f"[WARNING](GRAPH:{graph.name}:Odd) runs in eager: the step calls" in str(graph)


# --- time -----------------------------------------------------------------------------------------


def test_time_is_shown_when_it_was_measured(graph):
    assert "time" not in graph.tree().plain(120)
    source = graph._tree()
    nodes = [node for node in source.program.nodes if node.op == "call_function"]
    seconds = {node.name: 1e-3 for node in nodes}
    seconds[nodes[0].name] += 1e-3 * len(nodes)
    tree = GraphTree(replace(source, seconds=seconds))
    assert f"{1e3 * sum(seconds.values()):.3g} ms measured" in tree.plain()
    shown = figures(tree.plain())
    share = {phase: float(cells["time"].rstrip("%")) for phase, cells in shown[""].items()}
    assert sum(share.values()) == pytest.approx(100, abs=0.2)
    assert share["fwd"] > 50
    module = provenance(nodes[0]).module.split(".")[0]
    assert float(shown[module]["fwd"]["time"].rstrip("%")) > 50


# --- folding --------------------------------------------------------------------------------------


@pytest.mark.parametrize("depth", [0, 1, 2, 3, 9])
def test_it_folds_to_a_depth(graph, depth):
    shown = graph.tree(depth).plain()
    whole = figures(graph.tree().plain())
    folded = figures(shown)
    assert ("model Net" in shown) == (depth >= 0)
    assert ("up Sequential" in shown) == (depth >= 2)
    assert ("GELU" in shown) == (depth >= 3)
    for name in ("", "model", "up", "down"):
        if name in folded:
            assert folded[name] == whole[name]
    assert ("modules in it" in shown) == (depth in (0, 1, 2))


@pytest.mark.parametrize("depth", [-1, 1.5, "2", True])
def test_a_depth_is_a_number_of_levels(graph, depth):
    with pytest.raises(InvalidOption, match="tree takes"):
        graph.tree(depth)


def test_without_a_depth_all_is_shown(graph):
    assert str(graph.tree()) == str(graph.tree(9)) == graph.__rich__().plain()


# --- width ----------------------------------------------------------------------------------------


def widest(shown: str) -> int:
    return max(map(cell_len, shown.splitlines()))


def lines_at(tree: Any, width: int, **options: Any) -> str:
    screen = Console(file=io.StringIO(), width=width, _environ={}, **options)
    screen.print(tree)
    return screen.file.getvalue()


class 模型(nn.Module):
    def __init__(self):
        super().__init__()
        self.层的名字很长很长很长很长 = nn.Linear(4, 2)

    def forward(self, x):
        return self.层的名字很长很长很长很长(x)


def nested(levels: int) -> nn.Module:
    model: nn.Module = nn.Linear(4, 2)
    for _ in range(levels):
        model = nn.Sequential(model)
    return model


@pytest.mark.parametrize("model", [Net, 模型, lambda: nested(30)], ids=["net", "wide", "deep"])
def test_it_fits(model):
    tree = trained(model()).tree()
    for width in (20, 21, 30, 40, 59, 60, 79, 80, 81, 100, 132, 200):
        shown = lines_at(tree, width)
        assert widest(shown) <= width
        assert shown.count("\n") == len(shown.splitlines())
        names = [line.split()[-1] for line in shown.splitlines()[:1]]
        assert names[0] in ("params", "ops", "FLOPs", "moved", "kept")


def test_columns_go_before_words(graph):
    heads = {
        width: lines_at(graph.tree(), width).splitlines()[0].split()[2:]
        for width in (30, 50, 60, 80, 120)
    }
    assert heads[80] == ["params", "ops", "FLOPs", "moved", "kept"]
    assert heads[120] == ["own", *heads[80]]
    assert heads[30] == ["params"]
    assert [name for name in heads[80] if name in heads[50]] == heads[50]
    assert [name for name in heads[80] if name in heads[60]] == heads[60]
    assert len(heads[30]) < len(heads[50]) <= len(heads[60]) < len(heads[80])


def test_it_fits_where_it_is_put(graph):
    table = Table("left", "tree")
    table.add_row("x", graph.tree())
    assert widest(lines_at(table, 80)) <= 80


# --- colour ---------------------------------------------------------------------------------------


def test_it_reads_the_same_without_colour(graph):
    coloured = lines_at(graph.tree(), 80, force_terminal=True, color_system="truecolor")
    plain = lines_at(graph.tree(), 80, color_system=None)
    assert "\x1b[" in coloured
    assert "\x1b" not in plain
    assert re.sub(r"\x1b\[[\d;]*m", "", coloured) == plain


def test_a_screen_that_knows_ascii_alone(graph):
    class Ascii(io.TextIOWrapper):
        pass

    raw = io.BytesIO()
    screen = Console(file=Ascii(raw, encoding="ascii"), width=80, _environ={})
    screen.print(graph.tree(2))
    screen.print(GraphTree(graph._tree(), 1))
    screen.file.flush()
    text = raw.getvalue().decode("ascii")
    assert "+-- model Net" in text
    assert "... 2 modules in it" in text


# --- what comes from users ------------------------------------------------------------------------


class Hostile(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 2)

    def forward(self, x):
        return self.layer(x)

    def extra_repr(self):
        return "[red]x[/red] <script>alert(1)</script> \x1b[31m\x07\r\n & \u202e \ud800"


def test_names_of_users_are_text():
    model = Hostile()
    model.__class__.__name__ = "<b>Hostile</b>"
    try:
        shown = lines_at(trained(model).tree(), 160, force_terminal=True, color_system=None)
        page = trained(model)._repr_html_()
    finally:
        Hostile.__name__ = "Hostile"
    assert "[red]x[/red] <script>alert(1)</script> \\x1b[31m\\x07" in shown
    assert not set(shown) & {"\x1b", "\x07", "\r", "\u202e", "\ud800"}
    assert "<script" not in page
    assert "<b>" not in page
    assert "&lt;script&gt;" in page
    page.encode("utf-8")


def test_a_notebook_shows_the_same(graph):
    page = graph._repr_html_()
    assert page.startswith("<pre ")
    assert page.rstrip().endswith("</pre>")
    text = html.unescape(re.sub(r"<[^>]+>", "", page))
    lines = [line.rstrip() for line in text.rstrip().splitlines()]
    assert lines == graph.tree().plain(100).splitlines()
    assert graph.tree(1)._repr_mimebundle_() == {
        "text/plain": graph.tree(1).plain(),
        "text/html": graph.tree(1)._repr_html_(),
    }
    assert not re.findall(r"(?:src|href)=|url\(", page)  # nothing is fetched


def test_the_environment_changes_nothing(graph, monkeypatch):
    before = graph._repr_html_(), graph.tree().plain()
    for name, value in (("COLUMNS", "20"), ("FORCE_COLOR", "1"), ("NO_COLOR", "1")):
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("TERM", "dumb")
    assert (graph._repr_html_(), graph.tree().plain()) == before


@pytest.mark.parametrize(
    ("count", "units", "text"),
    [
        (0, _ELEMENTS, "-"),
        (99_999, _ELEMENTS, "99,999"),
        (100_000, _ELEMENTS, "100K"),
        (1_500_000_000, _ELEMENTS, "1.50B"),
        (999, COUNTS, "999"),
        (999_600, COUNTS, "1.00M"),
        (12_340_000_000, COUNTS, "12.3G"),
        (1023, BYTES, "1023B"),
        (2**20, BYTES, "1.00MiB"),
        (1023 * 2**30, BYTES, "1023GiB"),
    ],
)
def test_numbers(count, units, text):
    assert _number(count, units) == text
