"""Names that the files of a folder take from each other: ``from common import flow``.

What another file uses of them is not in the file that imports OneFlow.
"""

from __future__ import annotations

import ast
import warnings
from collections.abc import Iterable, Iterator
from pathlib import Path

from .items import Item
from .sources import Source

UNPARSED = "cannot be parsed"


class Shared:
    """Which names of which file others use."""

    def __init__(self, sources: Iterable[Source]) -> None:
        self._names: dict[str, set[str]] = {}
        for source in sources:
            tree = parsed(source)
            for module, name in _taken(tree) if isinstance(tree, ast.Module) else ():
                self._names.setdefault(module.rpartition(".")[2], set()).add(name)

    def of(self, path: Path) -> set[str]:
        """Those of a file, by its name or its folder's; ``*`` is all of them."""
        name = path.resolve().parent.name if path.stem == "__init__" else path.stem
        return self._names.get(name, set())


def parsed(source: Source) -> ast.Module | Item:
    """The file's syntax tree; an item for what is no Python 3, or nested too deeply."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # those of the script, such as of "\\d"
            return ast.parse(source.content)
    except SyntaxError as error:
        return Item(source.path, error.lineno or 0, UNPARSED, f"it is not Python 3: {error.msg}.")
    except (ValueError, RecursionError, MemoryError) as error:
        return Item(source.path, 0, UNPARSED, f"it is too deep, or no text: {error}.")


def listed(tree: ast.Module) -> set[str]:
    """The strings of the file's ``__all__``."""
    lists = [
        node.value
        for node in ast.walk(tree)
        if isinstance(node, (ast.Assign, ast.AugAssign, ast.AnnAssign)) and node.value is not None
        if "__all__" in {one.id for one in ast.walk(node) if isinstance(one, ast.Name)}
    ]
    constants = [one for value in lists for one in ast.walk(value) if isinstance(one, ast.Constant)]
    return {one.value for one in constants if isinstance(one.value, str)}


def _taken(tree: ast.Module) -> Iterator[tuple[str, str]]:
    """Pairs of a module's dotted name and a name that is taken from it."""
    modules: dict[str, str] = {}
    nodes = list(ast.walk(tree))
    for node in nodes:
        if isinstance(node, ast.Import):
            modules |= {one.asname or one.name.partition(".")[0]: one.name for one in node.names}
        elif isinstance(node, ast.ImportFrom):
            for one in node.names:
                modules[one.asname or one.name] = one.name
                yield node.module or "", one.name
    for node in nodes:
        base = node.value if isinstance(node, ast.Attribute) else None
        if isinstance(node, ast.Attribute) and isinstance(base, ast.Name) and base.id in modules:
            yield modules[base.id], node.attr
