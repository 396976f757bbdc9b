"""The rewriting itself: imports and the chains of attributes that were chosen, nothing else."""

from __future__ import annotations

from importlib.util import find_spec
from itertools import takewhile

import libcst as cst

from .choices import Choice
from .imports import HERE, ROOT, Statement, below_oneflow, dotted, local
from .lookup import TORCH


def rewritten(module: cst.Module, choice: Choice, *, adds_import: bool) -> cst.Module:
    """The file after it.

    Args:
        adds_import: of `torchgraph.oneflow`, below the docstring and what is from `__future__`.
    """
    found = module.visit(_Rewriting(choice))
    assert isinstance(found, cst.Module)
    return _with_import(found) if adds_import else found


class _Rewriting(cst.CSTTransformer):
    def __init__(self, choice: Choice) -> None:
        super().__init__()
        self._choice = choice

    def leave_Import(self, original_node: cst.Import, updated_node: cst.Import) -> cst.Import:
        if not self._is_of_it(original_node):
            return updated_node
        targets = self._choice.to_torch.get(id(original_node))
        names = [self._name(alias, targets) for alias in updated_node.names]
        return updated_node.with_changes(names=names)

    def _name(self, alias: cst.ImportAlias, targets: dict[str, str] | None) -> cst.ImportAlias:
        path = dotted(alias.name)
        below = below_oneflow(path)
        if below is None or below[1]:
            return alias
        name = local(alias)
        if targets is None:
            # `import oneflow.utils.data` binds oneflow, whose modules are there without it.
            path = f"{HERE}.{below[0]}" if name and below[0] else HERE
            return _imported(alias, path, name or ROOT)
        target = targets[name or ROOT]
        if (name or ROOT) not in self._choice.gone:
            return _imported(alias, target, name or ROOT)
        submodule = f"{TORCH}.{below[0]}"
        is_there = bool(below[0]) and not name and find_spec(submodule) is not None
        return _imported(alias, submodule if is_there else TORCH, "")

    def leave_ImportFrom(
        self, original_node: cst.ImportFrom, updated_node: cst.ImportFrom
    ) -> cst.ImportFrom:
        if not self._is_of_it(original_node):
            return updated_node
        targets = self._choice.to_torch.get(id(original_node))
        module = dotted(original_node.module)
        if module.startswith(HERE):
            return updated_node
        if targets is None or isinstance(updated_node.names, cst.ImportStar):
            path = f"torchgraph.{module}"
            return updated_node.with_changes(module=_expression(path))
        names = []
        for alias in updated_node.names:
            name = local(alias) or dotted(alias.name)
            last = targets[name].rpartition(".")[2]
            names.append(alias if last == dotted(alias.name) else _imported(alias, last, name))
        source = next(iter(targets.values())).rpartition(".")[0]
        return updated_node.with_changes(module=_expression(source), names=names)

    def leave_Attribute(
        self, original_node: cst.Attribute, updated_node: cst.Attribute
    ) -> cst.BaseExpression:
        text = self._choice.renamed.get(id(original_node))
        if text is None:
            return updated_node
        return _expression(text).with_changes(lpar=updated_node.lpar, rpar=updated_node.rpar)

    def _is_of_it(self, node: Statement) -> bool:
        return id(node) in self._choice.here or id(node) in self._choice.to_torch


def _imported(alias: cst.ImportAlias, path: str, name: str) -> cst.ImportAlias:
    """``path as name``, and ``path`` alone where it binds that name anyway."""
    if not name or path == name:
        return alias.with_changes(name=_expression(path), asname=None)
    asname = alias.asname or cst.AsName(cst.Name(name))
    return alias.with_changes(
        name=_expression(path), asname=asname.with_changes(name=cst.Name(name))
    )


def _expression(path: str) -> cst.Name | cst.Attribute:
    start, _, last = path.rpartition(".")
    return cst.Attribute(_expression(start), cst.Name(last)) if start else cst.Name(last)


def _with_import(module: cst.Module) -> cst.Module:
    before = list(takewhile(_stands_before_imports, module.body))
    line = cst.parse_statement(f"import {HERE} as {ROOT}")
    return module.with_changes(body=[*before, line, *module.body[len(before) :]])


def _stands_before_imports(statement: cst.CSTNode) -> bool:
    if not isinstance(statement, cst.SimpleStatementLine):
        return False
    first = statement.body[0]
    if isinstance(first, cst.ImportFrom):
        return dotted(first.module) == "__future__"
    return isinstance(first, cst.Expr) and isinstance(first.value, cst.BaseString)
