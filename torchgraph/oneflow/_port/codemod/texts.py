"""OneFlow in strings, in shell scripts, in notebooks, in lists of requirements."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from .imports import ROOT, below_oneflow
from .items import Item, note
from .sources import Source

_LAUNCH = re.compile(r"-m\s+oneflow\.distributed\.launch\b")
_MODULE = re.compile(r"-m\s+oneflow[\w.]*")
_IMPORT = re.compile(r"^\W*(?:import|from)\s+oneflow\b", re.MULTILINE)
_REQUIRED = re.compile(r"^[\s\"'\-]*oneflow(?:[\s\"'=<>~,\[].*)?$")
_BY_NAME = {"import_module", "__import__", "find_spec", "importorskip", "try_import", "patch"}

TORCHRUN = "write torchrun, or python -m torch.distributed.run, with --nproc-per-node and so on."


def in_strings(source: Source, tree: ast.Module) -> Iterator[Item]:
    """The strings of a file that name OneFlow."""
    loaded = {
        id(argument)
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and _last(node.func) in _BY_NAME
        for argument in node.args
    }
    for node in ast.walk(tree):
        if not isinstance(node, ast.Constant) or not isinstance(node.value, str):
            continue
        if (said := _said(node.value, is_loaded=id(node) in loaded)) is not None:
            yield Item(source.path, node.lineno, *said, is_left=id(node) in loaded)


def _last(node: ast.expr) -> str:
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) else ""


def _said(text: str, *, is_loaded: bool) -> tuple[str, str] | None:
    below = below_oneflow(text)
    if is_loaded and below is not None and not below[1]:
        return f'"{text}"', "a module by its name in a string: write torchgraph.oneflow there."
    if _MODULE.search(text):
        return "a command in a string", TORCHRUN
    if _IMPORT.search(text):
        return "an import in a string", "an example in a string was left as it is."
    if text == ROOT:
        return f'"{ROOT}"', "a string was left as it is: a word, or the name of the library."
    return None


def in_other_file(source: Source) -> Iterator[Item]:
    """What a file that is no Python says of OneFlow; nothing of it is rewritten."""
    is_notebook = source.path.suffix == ".ipynb"
    for line, text in enumerate(source.content.decode("utf-8", "replace").splitlines(), 1):
        if _LAUNCH.search(text):
            yield note(source.path, line, "-m oneflow.distributed.launch", TORCHRUN)
        elif is_notebook and _IMPORT.search(text.strip().strip('"')):
            why = "a notebook is not rewritten: import torchgraph.oneflow as flow there."
            yield Item(source.path, line, "import oneflow in a notebook", why)
        elif not is_notebook and _REQUIRED.match(text):
            why = "name torchgraph there, if it is a list of what to install."
            yield note(source.path, line, "oneflow as a requirement", why)
