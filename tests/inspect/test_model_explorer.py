"""Programs for Model Explorer: its own classes take them, and every overlay fits the graph."""

from __future__ import annotations

import importlib
import importlib.util
import json
import sys
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support import settle
from torchgraph.errors import CheckpointFileError, InvalidOption

from .models import batch, trainer


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("explorer")
    graph = trainer()
    settle(graph, *batch())
    error = {"addmm_default": 0.25, "relu_default": 0.0}
    graph.profile(*batch()).save_model_explorer(folder / "step.json", {"error": error})
    return folder


def read(path: Path) -> Any:
    return json.loads(path.read_text(encoding="utf-8"))


def test_files(files):
    names = {one.name for one in files.iterdir()}
    overlays = ("bytes", "FLOPs", "time_ms", "error")
    assert names == {"step.json", *(f"step.{one}.json" for one in overlays)}


def test_namespaces_and_edges(files):
    (graph,) = read(files / "step.json")["graphs"]
    nodes = {node["id"]: node for node in graph["nodes"]}
    assert len(nodes) == len(graph["nodes"])
    fc = nodes["addmm_default"]
    assert (fc["label"], fc["namespace"]) == ("addmm", "forward/model/fc")
    attributes = {one["key"]: one["value"] for one in fc["attrs"]}
    assert attributes["module"] == "model.fc"
    assert "self.fc(x)" in attributes["line"]
    assert fc["outputsMetadata"][0]["attrs"] == [{"key": "shape", "value": "f32[3, 8]"}]
    sources = {edge["sourceNodeId"] for edge in fc["incomingEdges"]}
    assert "args_0" in sources
    for node in nodes.values():
        for edge in node["incomingEdges"]:
            assert edge["sourceNodeId"] in nodes
    assert nodes["args_0"]["label"] == "args[0]"
    assert {"backward/model/fc", "parameter", "outputs"} <= {n["namespace"] for n in nodes.values()}


def test_overlays_name_nodes(files):
    (graph,) = read(files / "step.json")["graphs"]
    nodes = {node["id"] for node in graph["nodes"]}
    found = {}
    for path in files.glob("step.*.json"):
        (overlay,) = read(path).values()
        found[overlay["name"]] = {k: v["value"] for k, v in overlay["results"].items()}
    assert set(found["bytes"]) <= nodes
    assert set(found["FLOPs"]) <= nodes
    assert found["error"] == {"addmm_default": 0.25, "relu_default": 0.0}
    assert found["FLOPs"]["addmm_default"] == 2 * 3 * 4 * 8
    assert all(value >= 0 for value in found["time (ms)"].values())
    assert len(set(found["time (ms)"]) & nodes) > 0.9 * len(found["time (ms)"])


def test_of_a_report(tmp_path):
    graph = trainer()
    graph(*batch())
    graph.report().save_model_explorer(tmp_path / "step.json")
    assert (tmp_path / "step.bytes.json").exists()
    assert not (tmp_path / "step.time_ms.json").exists()
    with pytest.raises(CheckpointFileError):
        graph.report().save_model_explorer(tmp_path / "nowhere" / "step.json")


@pytest.mark.parametrize(
    ("overlays", "words"),
    [
        (3, "takes a dict"),
        ({"error": 3}, r"overlays\['error'\] takes the numbers of nodes"),
        ({3: {}}, "takes the numbers of nodes"),
        ({"error": {"addmm_defautl": 1.0}}, "no such node(?s:.*)did you mean 'addmm_default'"),
        ({"error": {"addmm_default": "much"}}, "no viewer can draw"),
        ({"error": {"addmm_default": float("nan")}}, "no viewer can draw"),
        ({"error": {"addmm_default": True}}, "no viewer can draw"),
        ({"my error": {}, "my_error": {}}, "as another file is"),
        ({"%": {}}, "another name"),
    ],
)
def test_what_is_no_overlay_is_refused(tmp_path, overlays, words):
    graph = trainer()
    graph(*batch())
    with pytest.raises(InvalidOption, match=words):
        graph.report().save_model_explorer(tmp_path / "step.json", overlays)
    assert not list(tmp_path.iterdir())


def test_an_update_of_several_modules_is_in_none(tmp_path):
    graph = trainer()
    settle(graph, *batch())
    graph.report().save_model_explorer(tmp_path / "step.json")
    (found,) = read(tmp_path / "step.json")["graphs"]
    (update,) = [node for node in found["nodes"] if node["id"] == "adamw"]
    attributes = {one["key"]: one["value"] for one in update["attrs"]}
    assert update["namespace"] == "update"
    assert set(attributes["module"].split(", ")) == {"model.fc", "model.norm", "model.head"}


@pytest.fixture
def explorer(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Its classes of graphs and of overlays, without what it converts models with."""
    package = importlib.util.find_spec("model_explorer")
    if package is None:
        pytest.skip("Model Explorer is not installed: see the Makefile")
    alone = types.ModuleType("explorer_alone")
    alone.__path__ = list(package.submodule_search_locations or ())  # not its __init__
    monkeypatch.setitem(sys.modules, "explorer_alone", alone)
    yield lambda name: importlib.import_module(f"explorer_alone.{name}")
    for name in [one for one in sys.modules if one.startswith("explorer_alone.")]:
        del sys.modules[name]


def test_its_own_classes_take_it(files, explorer):
    dacite = pytest.importorskip("dacite")
    strict = dacite.Config(strict=True)  # a key that it does not know is an error
    collection = explorer("graph_builder").GraphCollection
    found = dacite.from_dict(collection, read(files / "step.json"), strict)
    (graph,) = found.graphs
    assert len(graph.nodes) > 50
    data = explorer("node_data_builder")
    for path in files.glob("step.*.json"):
        whole = data.ModelNodeData(
            {k: dacite.from_dict(data.GraphNodeData, v, strict) for k, v in read(path).items()}
        )
        assert set(whole.graphsData) == {graph.id}
        assert json.loads(whole.to_json_string())[graph.id]["results"]
