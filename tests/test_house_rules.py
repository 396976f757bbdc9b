"""The rules of the house that its documents state: tables, forbidden imports, edits, words."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.test_house import (
    ARCHITECTURE,
    FILES,
    FLOORS,
    FOLDERS,
    GRAPH,
    PACKAGE,
    dotted,
    module_of,
    offenders,
    room_of,
    tree,
)


def rows(head: str) -> list[list[str]]:
    """The cells of the table of docs/architecture.md whose head begins so."""
    table = ARCHITECTURE[ARCHITECTURE.index(head) :].partition("\n\n")[0]
    return [[cell.strip() for cell in row.split("|")[1:-1]] for row in table.splitlines()[2:]]


def quoted(text: str) -> list[str]:
    return re.findall(r"`([\w/.]+)`", text)


def test_the_table_of_floors_is_the_house():
    found = {int(number): set(quoted(rooms)) for number, rooms, _ in rows("| floor | rooms |")}
    folders = {path.name for path in FOLDERS if path.parent == PACKAGE}
    expected = {
        number: {f"{room}/" if room in folders else room for room in floor}
        for number, floor in enumerate(FLOORS, 1)
    }
    assert found == expected


def test_each_type_is_where_the_table_says():
    wrong = []
    for row in rows("| type | where |"):
        places = [one for one in quoted(row[1]) if one.endswith((".py", "/"))]
        paths = [p for one in places for p in sorted((PACKAGE / one).rglob("*.py"))]
        paths += [PACKAGE / one for one in places if one.endswith(".py")]
        defined = {
            node.name
            for path in paths
            for node in ast.walk(tree(path))
            if isinstance(node, ast.ClassDef)
        }
        wrong += [name for name in quoted(row[0]) if name.isidentifier() and name not in defined]
    assert wrong == []


# What the "never" of a room says about others: room -> those that it must not import.
NEVER = {
    "passes": {"capture", "graph", "lower", "record", "replay"},
    "lower": {"capture", "record", "replay"},
    "guards": {"capture", "live", "lower", "passes", "record", "replay"},
    "record": {"capture", "lower", "passes", "replay"},
    "effects": {"record", "replay"},
    "capture": {"lower", "passes", "replay"},
    "ir": {"live", "lower", "record", "replay"},
    "calls": {"buckets", "inspect"},
}


@pytest.mark.parametrize("room", NEVER)
def test_a_room_does_not_know(room):
    known = {
        f"{module} imports {used}"
        for module, all_used in GRAPH.items()
        for used in all_used
        if room_of(module) == room and room_of(used) in NEVER[room]
    }
    assert known == set()


def test_nothing_else_imports_the_room_of_oneflow():
    known = {
        f"{module} imports {used}"
        for module, all_used in GRAPH.items()
        for used in all_used
        if room_of(used) == "oneflow" != room_of(module)
    }
    assert known == set()


# Those that load what is not there always: extras, compiled libraries, the child of the compiler;
# and what a table of names names.
IMPORTS_BY_NAME = {
    "_extension",
    "_torch",
    "cli.doctor",
    "cli.port",
    "deploy.formats.onnx_model",
    "inspect.page.convert",
    "integrations",
    "lower.inductor.process.child",
    "passes.checkpointing.rule",
    "passes.rematerialization.min_cut",  # networkx, which few processes need, and all would import
    "oneflow._port.modules",  # torchgraph.oneflow, in a process that a script spawns
    "oneflow._port.names.table",
}


def imported_by_name(path: Path) -> set[str]:
    names = {dotted(node) for node in ast.walk(tree(path)) if isinstance(node, ast.Attribute)}
    calls = {
        node.func.id
        for node in ast.walk(tree(path))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
    }
    return names & {"importlib.import_module"} | calls & {"__import__", "import_module"}


def test_nothing_is_imported_by_its_name():
    modules = {path: module_of(path) for path in FILES}
    others = [p for p, name in modules.items() if not {name, room_of(name)} & IMPORTS_BY_NAME]
    assert offenders(imported_by_name, others) == {}


OF_THE_ENVIRONMENT = {"environ", "environb", "getenv", "putenv", "expandvars", "expanduser"}


def of_the_environment(path: Path) -> set[str]:
    used: set[str] = set()
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.Attribute):
            used.add(node.attr)
        elif isinstance(node, ast.ImportFrom):
            used.update(alias.name for alias in node.names)
    return used & OF_THE_ENVIRONMENT


def test_the_environment_has_one_reader():
    assert {*offenders(of_the_environment)} == {"environment.py"}


OF_A_GRAPH = {
    "call_function",
    "create_node",
    "eliminate_dead_code",
    "erase_node",
    "get_attr",
    "graph_copy",
    "node_copy",
    "placeholder",
    "prepend",
    "replace_all_uses_with",
    "replace_input_with",
    "update_arg",
    "update_kwarg",
}
OF_A_NODE = {"args", "kwargs", "target", "signature"}


def is_stored(node: ast.Attribute, names: set[str]) -> bool:
    return node.attr in names and isinstance(node.ctx, ast.Store)


def edits(path: Path) -> Iterator[str]:
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            if node.func.attr in OF_A_GRAPH:
                yield node.func.attr
        elif isinstance(node, ast.Attribute) and is_stored(node, OF_A_NODE):
            yield f"{node.attr} ="


def test_a_pass_writes_no_node():
    assert offenders(edits, [p for p in FILES if (PACKAGE / "passes") in p.parents]) == {}
