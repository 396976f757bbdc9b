"""Programs of somebody who can write a manifest: nothing of them runs but ops on tensors."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import torchgraph as tg
from tests.saved.cases import CASES, ran
from tests.saved.test_damaged import refused, resigned

TEXT = "__import__('os').abort()"
NOT_CALLED = (
    *("aten::from_file", "aten::from_file.default", "aten::from_file.out"),
    *("aten::save", "aten::warn", "aten::set_data", "aten::_cufft_clear_plan_cache"),
)


@pytest.fixture(scope="module")
def momentum(tmp_path_factory) -> Path:
    """A step whose program has rows, a scaler's flag, and a guard."""
    path = tmp_path_factory.mktemp("forged") / "graph"
    tg.save(ran(*CASES["optimizer_sgd"]()), path)
    tg.load(path)  # what torch imports for it runs once
    return path


@pytest.fixture
def forged(momentum, tmp_path) -> Path:
    """A copy to be forged."""
    return Path(shutil.copytree(momentum, tmp_path / "graph"))


class Written:
    """``program.json``, to be changed."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.content = json.loads((path / "program.json").read_text(encoding="utf-8"))
        self.one = self.content["programs"][0]

    def nodes(self) -> list[Any]:
        """Those of the program that runs."""
        return dict(self._runs()["dict"])["nodes"]

    def guard(self) -> list[Any]:
        return dict(self.one["guard"]["dict"])["nodes"]

    def each(self) -> dict[str, Any]:
        """What a node over rows is made of, by its entries."""
        targets = (node["tuple"][2] for node in self.nodes())
        (found, *_) = (one["each"] for one in targets if isinstance(one, dict) and "each" in one)
        return {pair[0]: pair for pair in found["dict"]}

    def body(self) -> list[Any]:
        return dict(self.each()["body"][1]["dict"])["nodes"]

    def _runs(self) -> Any:
        return self.one["program"] or self.one["captured"]

    def write(self) -> None:
        resigned(self._path, {"program.json": json.dumps(self.content).encode()})


def of_kind(nodes: list[Any], op: str) -> list[Any]:
    return next(node["tuple"] for node in nodes if node["tuple"][0] == op)


def inserted(nodes: list[Any], target: Any, args: list[Any], kwargs: list[Any]) -> None:
    """One more call, before the output."""
    meta = {
        "dict": [["recorded", True], ["val", None], ["provenance", {"Provenance": {"dict": []}}]]
    }
    keywords = {"constant_dict": {"dict": kwargs}}
    node = ["call_function", "forged", target, {"tuple": args}, keywords, meta]
    nodes.insert(len(nodes) - 1, {"tuple": node})


def first(nodes: list[Any]) -> dict[str, str]:
    return {"node": nodes[0]["tuple"][1]}


def a_target(nodes: list[Any]) -> None:
    of_kind(nodes, "placeholder")[2] = f"a={TEXT}"


def a_name(nodes: list[Any]) -> None:
    of_kind(nodes, "call_function")[1] = f"a={TEXT};b"


def a_word_of_python(nodes: list[Any]) -> None:
    of_kind(nodes, "call_function")[1] = "lambda"


def a_default(nodes: list[Any]) -> None:
    of_kind(nodes, "placeholder")[3] = {"tuple": [1]}


def a_method(nodes: list[Any]) -> None:
    of_kind(nodes, "call_function")[0] = "call_method"


def a_keyword(nodes: list[Any]) -> None:
    inserted(nodes, {"op": "aten::nonzero"}, [first(nodes)], [[f"**({TEXT}) or {{}}, y", 0]])


def an_argument_more(nodes: list[Any]) -> None:
    inserted(nodes, {"op": "aten::neg"}, [first(nodes), 1, 2], [])


def a_write(nodes: list[Any]) -> None:
    inserted(nodes, {"op": "aten::zero_"}, [first(nodes)], [])


def a_keyword_of_a_number(nodes: list[Any]) -> None:
    inserted(nodes, {"function": "builtins.round"}, [first(nodes)], [["ndigits", 1]])


def a_large_number(nodes: list[Any]) -> None:
    inserted(nodes, {"function": "operator.pow"}, [10, 30_000_000], [])


def a_long_text(nodes: list[Any]) -> None:
    inserted(nodes, {"function": "operator.mul"}, [first(nodes), "a"], [])


FORGERIES: tuple[Callable[[list[Any]], None], ...] = (
    *(a_target, a_name, a_word_of_python, a_default, a_method, a_keyword, an_argument_more),
    *(a_write, a_keyword_of_a_number, a_large_number, a_long_text),
)


@pytest.mark.parametrize("forge", FORGERIES, ids=lambda forge: forge.__name__)
@pytest.mark.parametrize("where", ["nodes", "guard", "body"])
def test_a_node_is_names_and_ops(forge, where, forged):
    written = Written(forged)
    forge(getattr(written, where)())
    written.write()
    refused(forged)


@pytest.mark.parametrize("where", ["nodes", "guard", "body"])
@pytest.mark.parametrize("op", NOT_CALLED)
def test_no_op_reaches_beyond_its_arguments(op, where, forged, tmp_path):
    written = Written(forged)
    inserted(getattr(written, where)(), {"op": op}, [str(tmp_path / "file"), True, 8], [])
    written.write()
    refused(forged, "no op that a program may call|writes into")
    assert not (tmp_path / "file").exists()


def test_a_name_of_rows_is_a_name(forged):
    written = Written(forged)
    written.each()["name"][1] = f"f(columns, shared, a={TEXT}): pass\ndef g"
    written.write()
    refused(forged, "computes no rows")


def test_a_manifest_without_what_it_was_compiled_for(forged):
    resigned(forged, {"compiled/key/code.so": b"\x7fELF"}, without="compiled_for")
    with pytest.warns(tg.errors.BackendWarning, match="for another machine"):
        tg.load(forged, trust_compiled=True)


def test_who_loads_says_where_programs_are_shown(tmp_path):
    graph, calls = CASES["optimizer_sgd"]()
    graph.config.passes.dump(str(tmp_path / "shown"))
    ran(graph, calls)
    assert (tmp_path / "shown").exists()
    tg.save(graph, tmp_path / "graph")
    assert str(tmp_path) not in (tmp_path / "graph" / "program.json").read_text(encoding="utf-8")
    assert tg.load(tmp_path / "graph").parts().options.passes.dump == ""
