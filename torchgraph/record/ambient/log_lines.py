"""Statements that only log, found by their syntax tree: values they read are no guards.

``print(f"{n}: {loss.item():.3f}")``, ``writer.add_scalar("loss", loss.item(), n)``: a statement of
its own, whose arguments are names, texts, arithmetic and values of tensors.
"""

from __future__ import annotations

import ast
import builtins
import linecache
import sys
from functools import lru_cache
from types import FrameType, ModuleType
from typing import Any

from ...guards.aspects import own
from ..chains.resolve import is_library_file
from .logs import is_log

_PLAIN = (
    *(ast.Constant, ast.Name, ast.Attribute, ast.Subscript, ast.Slice, ast.JoinedStr),
    *(ast.FormattedValue, ast.BinOp, ast.UnaryOp, ast.Tuple, ast.List, ast.Dict, ast.Starred),
    *(ast.keyword, ast.expr_context, ast.operator, ast.unaryop),
)
_METHODS = frozenset(
    [
        "item",
        "detach",
        "cpu",
        "float",
        "mean",
        "sum",
        "norm",
        "abs",
        "max",
        "min",
        "format",
        "tolist",
        "time",
        "perf_counter",
    ]
)
_FUNCTIONS = frozenset(
    ["round", "float", "int", "str", "repr", "len", "format", "abs", "max", "min", "sum"]
)


def only_logs(frame: FrameType, number: int) -> bool:
    """True for a line of a running frame whose reads all go into a log."""
    code = frame.f_code
    if code.co_filename.startswith("<"):
        return False
    path = _logs_of(code.co_filename, len(linecache.getlines(code.co_filename))).get(number)
    if path is None:
        return False
    *steps, method = path
    if not steps:
        return method == "print" and _variable(frame, "print") is builtins.print
    holder = _variable(frame, steps[0])
    for step in steps[1:]:
        holder = vars(holder).get(step) if isinstance(holder, ModuleType) else own(holder).get(step)
    return is_log(holder, method)


def runs_log() -> bool:
    """True where the user's innermost line only logs."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and is_library_file(frame.f_code.co_filename):
        frame = frame.f_back
    return frame is not None and only_logs(frame, frame.f_lineno or 0)


def _variable(frame: FrameType, name: str) -> Any:
    for space in (frame.f_locals, frame.f_globals, frame.f_builtins):
        if name in space:
            return space[name]
    return None


@lru_cache(maxsize=256)
def _logs_of(filename: str, length: int) -> dict[int, tuple[str, ...]]:
    """By line, the dotted path of the function in a call statement that may log.

    ``length``: of the file, which a notebook or an editor may change.
    """
    try:
        tree = ast.parse("".join(linecache.getlines(filename)))
    except SyntaxError:
        return {}
    found: dict[int, tuple[str, ...]] = {}
    others: set[int] = set()
    for node in ast.walk(tree):
        if not isinstance(node, ast.stmt):
            continue
        path = _called(node) if isinstance(node, ast.Expr) else None
        last = (node.end_lineno or node.lineno) + 1
        if path is not None:
            found.update(dict.fromkeys(range(node.lineno, last), path))
        elif not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            inner = [one for one in ast.iter_child_nodes(node) if isinstance(one, ast.stmt)]
            last = min([one.lineno for one in inner], default=last)
            others.update(range(node.lineno, max(last, node.lineno + 1)))
    return {line: path for line, path in found.items() if line not in others}


def _called(statement: ast.Expr) -> tuple[str, ...] | None:
    call = statement.value
    if not isinstance(call, ast.Call):
        return None
    arguments = [*call.args, *call.keywords]
    if not all(_is_plain(node) for one in arguments for node in ast.walk(one)):
        return None
    path: list[str] = []
    node: ast.expr = call.func
    while isinstance(node, ast.Attribute):
        path.insert(0, node.attr)
        node = node.value
    return (node.id, *path) if isinstance(node, ast.Name) else None


def _is_plain(node: ast.AST) -> bool:
    if not isinstance(node, ast.Call):
        return isinstance(node, _PLAIN)
    if isinstance(node.func, ast.Attribute):
        return node.func.attr in _METHODS
    return isinstance(node.func, ast.Name) and node.func.id in _FUNCTIONS
