"""The files that a page and its plots are."""

from __future__ import annotations

import gc
import html.parser
import json
import re
import sys
import weakref

import pytest
import torch

from torchgraph.errors import CheckpointFileError, InvalidOption, NoProgram, NotSupported
from torchgraph.inspect.page import convert
from torchgraph.inspect.page.charts import PLOTS
from torchgraph.inspect.report import Report

from .models import Evaluate, Net
from .pages import HOSTILE, data_of, hostile, in_eager, trained


@pytest.fixture(scope="module")
def report() -> Report:
    return trained().report()


class Outside(html.parser.HTMLParser):
    """What a page would fetch, and its scripts."""

    def __init__(self) -> None:
        super().__init__()
        self.fetched: list[str] = []
        self.tags: list[str] = []

    def handle_starttag(self, tag, attrs) -> None:
        self.tags.append(tag)
        wanted = [v for name, v in attrs if name in ("src", "href", "srcset", "data", "action")]
        self.fetched += [value for value in wanted if not value.startswith("data:")]


def test_the_page_is_one_file_that_fetches_nothing(report, tmp_path):
    path = tmp_path / "page.html"
    report.save_html(path)
    page = path.read_text(encoding="utf-8")
    outside = Outside()
    outside.feed(page)

    assert [one.name for one in tmp_path.iterdir()] == ["page.html"]
    assert outside.fetched == []
    assert outside.tags.count("script") == 3
    assert "default-src 'none'" in page
    assert len(page.encode()) < 5_000_000


def test_names_of_the_users_are_no_markup(tmp_path):
    path = tmp_path / "page.html"
    report = hostile()
    report.save_html(path)
    page = path.read_text(encoding="utf-8")
    outside = Outside()
    outside.feed(page)
    block = re.search(r'<script type="application/json" id="data">(.*?)</script>', page, re.DOTALL)

    assert outside.tags.count("script") == 3
    assert not {"img", "b"} & set(outside.tags)
    data = json.loads(block[1])
    assert data["name"] == report.name
    assert HOSTILE in report.name
    assert f"model.{HOSTILE}" in data["modules"]["path"]
    assert data["modules"]["text"][0].endswith("\ud800)")


def test_a_graph_in_eager_says_why(tmp_path):
    report = in_eager()
    data = data_of(report)
    report.save_html(tmp_path / "page.html")

    assert data["said"][0] == "No program holds this step: it runs in eager."
    assert "calls .numpy()" in data["said"][1]
    assert data["modules"]["path"] == ["model", "model.0", "model.1"]
    assert "ops" not in data
    assert "plots" not in data
    for save in (report.save_svg, report.save_png):
        with pytest.raises(NoProgram, match=r"InEager_.* stays in eager"):
            save(tmp_path / "plot")


def test_an_evaluation_has_a_page(tmp_path):
    graph = Evaluate(Net().eval())
    for _ in range(3):
        graph(torch.randn(3, 4))
    graph.report().save_html(tmp_path / "page.html")
    phases = data_of(graph.report())["plots"]["phases"]["data"]["values"]
    assert [row["phase"] for row in phases] == ["forward"]


@pytest.mark.parametrize("plot", PLOTS)
def test_plots_are_pictures(report, tmp_path, plot):
    report.save_svg(tmp_path / "plot.svg", plot)
    report.save_png(str(tmp_path / "plot.png"), plot=plot)
    svg = (tmp_path / "plot.svg").read_text()

    assert svg.startswith("<svg")
    titles = {"memory": "as planned", "stages": "Compilation"}
    assert titles.get(plot, "estimated") in svg
    assert (tmp_path / "plot.png").read_bytes().startswith(b"\x89PNG\r\n")


def test_a_plot_has_the_names_as_text(tmp_path):
    hostile().save_svg(tmp_path / "plot.svg", "modules")
    svg = (tmp_path / "plot.svg").read_text()
    assert "<script" not in svg
    assert "&lt;script&gt;hacked=1" in svg


def test_a_plot_that_nobody_knows(report, tmp_path):
    with pytest.raises(InvalidOption, match="No plot is called 'memori'") as found:
        report.save_png(tmp_path / "plot.png", "memori")
    assert "did you mean 'memory'?" in str(found.value)


@pytest.mark.parametrize("save", ["save_html", "save_svg", "save_png"])
def test_without_what_draws_the_error_says_how_to_install_it(report, tmp_path, monkeypatch, save):
    monkeypatch.setitem(sys.modules, "vl_convert", None)
    convert.javascript.cache_clear()
    path = tmp_path / "page"
    path.write_text("as it was")
    with pytest.raises(NotSupported, match=re.escape("pip install 'torch-nn-graph[page]'")):
        getattr(report, save)(path)
    assert path.read_text() == "as it was"


def test_a_page_of_a_graph_in_eager_needs_nothing_installed(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "vl_convert", None)
    in_eager().save_html(tmp_path / "page.html")
    assert (tmp_path / "page.html").stat().st_size > 1000


@pytest.mark.parametrize("save", ["save_html", "save_svg", "save_png"])
def test_a_path_that_cannot_be_written(report, tmp_path, save):
    with pytest.raises(CheckpointFileError, match="cannot be written"):
        getattr(report, save)(tmp_path / "no" / "page")


def test_a_report_keeps_no_tensor_alive(tmp_path):
    graph = trained()
    report = graph.report()
    held = [weakref.ref(one) for one in (*graph.model.parameters(), *graph.model.buffers())]
    held += [weakref.ref(graph.model), weakref.ref(graph)]
    del graph
    gc.collect()

    assert [one() for one in held if one() is not None] == []
    report.save_html(tmp_path / "page.html")


@pytest.mark.parametrize(
    ("save", "name", "words"),
    [
        ("save_svg", "memory.png", "call save_png"),
        ("save_svg", "memory.html", "call save_html"),
        ("save_png", "memory.SVG", "call save_svg"),
        ("save_png", "memory.jpg", r"name it with \.png\.$"),
        ("save_html", "page.svg", "call save_svg"),
    ],
)
def test_a_name_of_another_form_is_refused(report, tmp_path, save, name, words):
    with pytest.raises(InvalidOption, match=words):
        getattr(report, save)(tmp_path / name)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("name", ["plot", "plot.v2", "plot.SVG"])
def test_other_names_are_taken(report, tmp_path, name):
    report.save_svg(tmp_path / name)
    assert b"<svg" in (tmp_path / name).read_bytes()


def test_a_folder_is_no_file(report, tmp_path):
    with pytest.raises(CheckpointFileError, match="name a file in that folder"):
        report.save_html(tmp_path)
