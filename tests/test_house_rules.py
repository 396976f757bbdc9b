"""The rules of the house that its documents state: tables, forbidden imports, edits, words."""

from __future__ import annotations

import ast
import re
from collections import Counter
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
    lines_of,
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


def test_each_row_is_a_room():
    tables = [*rows("| room | answers |"), *rows("| fusion | |")]
    named = {quoted(row[0])[0] for row in tables}
    assert named == {f"{path.relative_to(PACKAGE)}/" for path in FOLDERS}


def test_each_file_at_the_top_says_what_it_is():
    files = sorted(PACKAGE.glob("*.py"))
    said = [(ast.get_docstring(tree(path)) or "").partition("\n")[0] for path in files]
    expected = [[f"`{path.name}`", one] for path, one in zip(files, said, strict=True)]
    assert rows("| file at the top | |") == expected


@pytest.mark.parametrize("room", ["record", "capture"])
def test_each_file_of_a_room_has_a_concern(room):
    head = {"record": "| `take` |", "capture": "| `graph_of`, `fakes` |"}[room]
    start = ARCHITECTURE.rindex("| file | concern |", 0, ARCHITECTURE.index(head))
    table = ARCHITECTURE[start:].partition("\n\n")[0]
    named = [name for row in table.splitlines()[2:] for name in quoted(row.split("|")[1])]
    there = [path.stem for path in (PACKAGE / room).rglob("*.py") if path.stem != "__init__"]
    assert Counter(named) == Counter(there)


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
    "porting.modules",  # torchgraph.oneflow, in a process that a script spawns
    "porting.names.table",
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


def compiled() -> list[Path]:
    found = (PACKAGE / "csrc").rglob("*")
    return [path for path in found if path.suffix in (".cpp", ".cu", ".cuh", ".h")]


def test_no_compiled_file_is_over_400_lines():
    assert {path.name for path in compiled() if lines_of(path) > 400} == set()


def test_no_part_of_a_page_is_over_400_lines():
    parts = [path for end in ("js", "css", "html") for path in PACKAGE.rglob(f"*.{end}")]
    assert {path.name for path in parts if lines_of(path) > 400} == set()
    assert parts


def test_a_word_names_one_class():
    classes = Counter(
        node.name
        for path in FILES
        for node in tree(path).body
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_")
    )
    words = [
        "Call",
        "Layout",
        "Leaf",
        "NotFused",
        "Padding",
        "Part",
        "Place",
        "Region",
        "Rule",
        "Stage",
        "Value",
    ]
    assert {word: classes[word] for word in words if classes[word] > 1} == {}


def vague_docstrings(path: Path) -> Iterator[str]:
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            text = node.value.value
            if isinstance(text, str) and text.startswith(("Of ", "As ")):
                yield text[:30]


def test_a_docstring_says_what_a_thing_is():
    assert offenders(vague_docstrings) == {}
