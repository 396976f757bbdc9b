"""Members of tensors and modules that OneFlow means otherwise, by the name of the attribute.

A module has OneFlow's meaning of them only as long as it imports `torchgraph.oneflow`.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache

import torch

from ..names import Name, table
from .lookup import is_torchs_after_porting

_CLASSES: dict[str, type] = {
    "Tensor": torch.Tensor,
    "nn.Module": torch.nn.Module,
    "nn.Parameter": torch.nn.Parameter,
}
_OPERATORS: dict[type[ast.AST], str] = {
    ast.Add: "add",
    ast.BitAnd: "and",
    ast.BitOr: "or",
    ast.BitXor: "xor",
    ast.Div: "truediv",
    ast.FloorDiv: "floordiv",
    ast.Invert: "invert",
    ast.MatMult: "matmul",
    ast.Mod: "mod",
    ast.Mult: "mul",
    ast.Pow: "pow",
    ast.Sub: "sub",
    ast.UAdd: "pos",
    ast.USub: "neg",
}
_TOLD = {"__floordiv__", "__mod__"}
"""Operators whose lines are told; those of others are everywhere, and differ for few tensors."""
_NUMBERS = {"len", "int", "float", "round", "cpu_count", "numel", "item", "dim", "get_world_size"}
_LISTS_OF_NUMBERS = {"shape", "size"}


@dataclass
class Members:
    """The members that a file uses, and may mean in OneFlow's way."""

    lines: dict[str, list[int]] = field(default_factory=dict)
    """Lines by the name of a row, where torch has such a member and means something else.

    Of operators only ``//`` and ``%``.
    """
    is_any: bool = False
    """Any is used, those that torch lacks too."""


@lru_cache(maxsize=1)
def adapted() -> Mapping[str, tuple[Name, ...]]:
    """The rows by the name of the attribute."""
    rows: dict[str, tuple[Name, ...]] = {}
    for row in table().values():
        is_other = (row.is_adapted or row.is_refused) and not is_torchs_after_porting(row)
        if is_other and row.owner in _CLASSES:
            name = row.name.rpartition(".")[2]
            rows[name] = (*rows.get(name, ()), row)
    return rows


def members_of(tree: ast.Module) -> Members:
    """Those that a file uses."""
    visitor = _Members(tree)
    visitor.visit(tree)
    return visitor.found


class _Members(ast.NodeVisitor):
    def __init__(self, tree: ast.Module) -> None:
        self.found = Members()
        self._imported = {
            one.asname or one.name.partition(".")[0]
            for node in ast.walk(tree)
            if isinstance(node, (ast.Import, ast.ImportFrom))
            for one in node.names
        }

    def visit_Call(self, node: ast.Call) -> None:
        if isinstance(node.func, ast.Attribute) and node.func.attr == "to":
            names = {one.arg for one in node.keywords}
            if names & {"placement", "sbp"} or not all(map(_is_no_placement, node.args)):
                self._add(node.func, "to")
        self.generic_visit(node)

    def visit_Attribute(self, node: ast.Attribute) -> None:
        if node.attr != "to" and not isinstance(node.ctx, ast.Store):
            self._add(node, node.attr)
        self.generic_visit(node)

    def visit_BinOp(self, node: ast.BinOp) -> None:
        sides = (node.left, node.right)
        if not all(map(_is_number, sides)) and not any(map(_is_text, sides)):
            self._operator(node, node.op)
        self.generic_visit(node)

    def visit_UnaryOp(self, node: ast.UnaryOp) -> None:
        if not _is_number(node.operand):
            self._operator(node, node.op)
        self.generic_visit(node)

    def visit_AugAssign(self, node: ast.AugAssign) -> None:
        self._operator(node, node.op)
        self.generic_visit(node)

    def _operator(self, node: ast.expr | ast.stmt, operator: ast.AST) -> None:
        if (word := _OPERATORS.get(type(operator))) is not None:
            self._add(node, f"__{word}__")

    def _add(self, node: ast.expr | ast.stmt, name: str) -> None:
        base = node.value if isinstance(node, ast.Attribute) else None
        name_of_base = base.id if isinstance(base, ast.Name) else ""
        if name_of_base in self._imported:
            return
        for row in adapted().get(name, ()):
            if row.owner == "Tensor" and name_of_base in ("self", "cls"):
                continue
            self.found.is_any = True
            if hasattr(_CLASSES[row.owner], name) and (name in _TOLD or name[:2] != "__"):
                lines = self.found.lines.setdefault(row.name, [])
                if node.lineno not in lines:
                    lines.append(node.lineno)


def _is_text(node: ast.expr) -> bool:
    """``"%d of %d" % (a, b)``."""
    is_string = isinstance(node, ast.Constant) and isinstance(node.value, (str, bytes))
    return is_string or isinstance(node, (ast.JoinedStr, ast.List, ast.ListComp, ast.Tuple))


def _is_number(node: ast.expr) -> bool:
    """Whether it is no tensor, as far as one can see."""
    if isinstance(node, ast.Constant):
        return True
    if isinstance(node, ast.UnaryOp):
        return _is_number(node.operand)
    if isinstance(node, ast.BinOp):
        return _is_number(node.left) and _is_number(node.right)
    if isinstance(node, ast.Call):
        name = _last(node.func)
        return name in _NUMBERS or (name in _LISTS_OF_NUMBERS and bool(node.args))
    return isinstance(node, ast.Subscript) and _last(node.value) in _LISTS_OF_NUMBERS


def _last(node: ast.expr) -> str:
    if isinstance(node, ast.Call):
        return _last(node.func)
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) else ""


def _is_no_placement(value: ast.expr) -> bool:
    """``device``, ``"cuda"``, ``flow.float16``: what torch's ``to`` takes as well."""
    if isinstance(value, (ast.Constant, ast.JoinedStr)):
        return True
    name = _last(value).lower()
    is_dtype = isinstance(getattr(torch, name, None), torch.dtype)
    return is_dtype or "device" in name or "dtype" in name
