"""Names that the files of a folder take from each other: ``from common import flow``.

What another file uses of them is not in the file that imports OneFlow.
"""

from __future__ import annotations

import ast
import warnings
from collections.abc import Iterable, Iterator
from pathlib import Path

from .sources import Source

EVERYTHING = "*"


class Shared:
    """Which names of which file others use."""

    def __init__(self, sources: Iterable[Source]) -> None:
        self._names: dict[str, set[str]] = {}
        for source in sources:
            for module, name in _taken(parsed(source)):
                self._names.setdefault(module.rpartition(".")[2], set()).add(name)

    def of(self, path: Path) -> set[str]:
        """Those of a file, by its name or its folder's; ``*`` is all of them."""
        name = path.resolve().parent.name if path.stem == "__init__" else path.stem
        return self._names.get(name, set())


def parsed(source: Source) -> ast.Module | None:
    """The file's syntax tree; None for what is no Python 3."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # those of the script, such as of "\\d"
            return ast.parse(source.content)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None


def _taken(tree: ast.Module | None) -> Iterator[tuple[str, str]]:
    """Pairs of a module's dotted name and a name that is taken from it."""
    modules: dict[str, str] = {}
    nodes = list(ast.walk(tree)) if tree is not None else []
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
