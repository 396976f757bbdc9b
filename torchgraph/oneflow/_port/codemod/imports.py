"""The names that a file binds to OneFlow's modules and objects, and each use of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import libcst as cst
from libcst import metadata as meta

from .lookup import Kind, Meaning, meaning

ROOT = "oneflow"
HERE = "torchgraph.oneflow"
Statement = cst.Import | cst.ImportFrom
Chain = cst.Name | cst.Attribute


@dataclass(frozen=True)
class Use:
    """A place where a name is used."""

    node: cst.CSTNode
    """The part that the table knows: ``flow.Tensor`` of ``flow.Tensor.abs``."""
    line: int
    means: Meaning


@dataclass
class Alias:
    """A local name that stands for something of OneFlow's."""

    local: str
    means: Meaning
    """What it is bound to; of kind NAMESPACE for a module."""
    statements: list[Statement]
    line: int
    scope: meta.Scope
    is_ported: bool
    """It comes from `torchgraph.oneflow` already."""
    is_only_that: bool
    """Nothing else is ever bound to the name in its scope."""
    uses: list[Use] = field(default_factory=list)
    modules: list[Use] = field(default_factory=list)
    """``import oneflow.utils.data``, which binds ``oneflow``."""


@dataclass
class Imports:
    """What a file imports of OneFlow."""

    module: cst.Module
    lines: Mapping[cst.CSTNode, int]
    aliases: list[Alias]
    stars: list[cst.ImportFrom]
    foreign: set[str]
    """Local names of other modules, such as ``np``."""
    bound: set[str]
    """Every name that is bound anywhere in the file."""
    quoted: str = ""
    """The annotations that are strings."""


def dotted(node: cst.BaseExpression | None) -> str:
    """``a.b.c`` for a chain of attributes that begins with a name; empty for others."""
    if isinstance(node, cst.Name):
        return node.value
    if isinstance(node, cst.Attribute) and (start := dotted(node.value)):
        return f"{start}.{node.attr.value}"
    return ""


def below_oneflow(module: str) -> tuple[str, bool] | None:
    """The path below ``oneflow`` or `torchgraph.oneflow`, and whether it is the second."""
    for root, is_ported in ((ROOT, False), (HERE, True)):
        if module == root or module.startswith(f"{root}."):
            return module.removeprefix(root).removeprefix("."), is_ported
    return None


def imports_of(module: cst.Module) -> Imports:
    """Read a file."""
    wrapper = meta.MetadataWrapper(module, unsafe_skip_copy=True)
    # Mappings of nodes; libcst types them by provider.
    scopes: Mapping[cst.CSTNode, Any] = wrapper.resolve(meta.ScopeProvider)
    places: Mapping[cst.CSTNode, Any] = wrapper.resolve(meta.PositionProvider)
    lines = {node: place.start.line for node, place in places.items()}
    found = Imports(module, lines, [], [], set(), set())
    _find_bindings(found, {scope for scope in scopes.values() if scope is not None})
    wrapper.visit(_Uses(found, scopes))
    return found


def _find_bindings(found: Imports, scopes: set[meta.Scope]) -> None:
    known: dict[tuple[int, str], Alias] = {}
    for scope in scopes:
        for one in () if isinstance(scope, meta.BuiltinScope) else scope.assignments:
            found.bound.add(one.name.partition(".")[0])
            if isinstance(one, meta.ImportAssignment):
                for bound in _bound_by(one):
                    _bind(found, known, one, bound)
    for (_, local), alias in known.items():
        nodes = {id(getattr(one, "node", None)) for one in alias.scope[local]}
        alias.is_only_that &= nodes <= {id(one) for one in alias.statements}
        alias.statements.sort(key=lambda one: found.lines[one])
    found.aliases.extend(sorted(known.values(), key=lambda one: one.line))


class _Bound(NamedTuple):
    """What an import binds: ``oneflow``, to ``oneflow``, for ``import oneflow.nn``."""

    local: str
    path: str
    module: str


def _bound_by(one: meta.ImportAssignment) -> Iterator[_Bound]:
    for bound in _bindings(one.node):
        if bound.local == one.name:
            yield bound


def _bindings(statement: cst.CSTNode) -> Iterator[_Bound]:
    if isinstance(statement, cst.Import):
        for alias in statement.names:
            path = dotted(alias.name)
            # `import torchgraph.oneflow.nn` binds torchgraph, which is no name of OneFlow's.
            first = path.partition(".")[0]
            yield _Bound(name, path, path) if (name := local(alias)) else _Bound(first, first, path)
    elif isinstance(statement, cst.ImportFrom) and not statement.relative:
        for alias in () if isinstance(statement.names, cst.ImportStar) else statement.names:
            path = f"{dotted(statement.module)}.{dotted(alias.name)}"
            yield _Bound(local(alias) or dotted(alias.name), path, path)


def local(alias: cst.ImportAlias) -> str:
    """The name after ``as``; empty without one."""
    name = alias.asname.name if alias.asname else None
    return name.value if isinstance(name, cst.Name) else ""


def _bind(
    found: Imports,
    known: dict[tuple[int, str], Alias],
    one: meta.ImportAssignment,
    bound: _Bound,
) -> None:
    statement = one.node
    assert isinstance(statement, (cst.Import, cst.ImportFrom))
    below = below_oneflow(bound.path)
    if below is None:
        if isinstance(statement, cst.Import):
            found.foreign.add(bound.local)
        return
    means, line = meaning(below[0]), found.lines[statement]
    new = Alias(bound.local, means, [], line, one.scope, below[1], True)
    alias = known.setdefault((id(one.scope), bound.local), new)
    alias.is_only_that &= alias.means == means and alias.is_ported == below[1]
    alias.line = min(alias.line, line)
    if not any(statement is other for other in alias.statements):
        alias.statements.append(statement)
    if bound.module != bound.path and (inside := below_oneflow(bound.module)):
        alias.modules.append(Use(statement, line, meaning(inside[0])))


class _Strings(cst.CSTVisitor):
    def __init__(self, found: Imports) -> None:
        super().__init__()
        self._found = found

    def visit_SimpleString(self, node: cst.SimpleString) -> None:
        self._found.quoted += f"{node.value}\n"


class _Uses(cst.CSTVisitor):
    """Collects the chains of attributes that begin with an alias."""

    def __init__(self, found: Imports, scopes: Mapping[cst.CSTNode, Any]) -> None:
        super().__init__()
        self._found = found
        self._scopes = scopes
        self._by_statement = {
            (id(statement), alias.local): alias
            for alias in found.aliases
            for statement in alias.statements
        }

    def visit_Import(self, node: cst.Import) -> bool:
        return False

    def visit_ImportFrom(self, node: cst.ImportFrom) -> bool:
        is_star = isinstance(node.names, cst.ImportStar) and not node.relative
        if is_star and below_oneflow(dotted(node.module)):
            self._found.stars.append(node)
        return False

    def visit_Attribute(self, node: cst.Attribute) -> bool:
        parts: list[Chain] = [node]
        base: cst.BaseExpression = node
        while isinstance(base, cst.Attribute):
            base = base.value
            if isinstance(base, (cst.Name, cst.Attribute)):
                parts.append(base)
        if isinstance(base, cst.Name):
            self._use(base, parts[::-1])
        else:
            node.value.visit(self)
        return False

    def visit_Name(self, node: cst.Name) -> None:
        self._use(node, [node])

    def visit_Annotation(self, node: cst.Annotation) -> None:
        node.visit(_Strings(self._found))

    def visit_Arg(self, node: cst.Arg) -> bool:
        node.value.visit(self)
        return False

    def _use(self, base: cst.Name, parts: list[Chain]) -> None:
        for alias in self._aliases(base):
            if alias.means.kind is not Kind.NAMESPACE:
                alias.uses.append(Use(base, self._found.lines[base], alias.means))
                return
            start = alias.means.name
            rest = dotted(parts[-1]).removeprefix(base.value)
            means = meaning(f"{start}{rest}" if start else rest.removeprefix("."))
            known = len(means.name.split(".")) if means.name else 0
            node = parts[known - (len(start.split(".")) if start else 0)]
            alias.uses.append(Use(node, self._found.lines[base], means))

    def _aliases(self, base: cst.Name) -> Iterator[Alias]:
        scope = self._scopes.get(base)
        if scope is None:
            return
        seen: set[int] = set()
        for one in scope[base.value]:
            alias = self._by_statement.get((id(getattr(one, "node", None)), base.value))
            if alias is not None and id(alias) not in seen:
                seen.add(id(alias))
                yield alias
