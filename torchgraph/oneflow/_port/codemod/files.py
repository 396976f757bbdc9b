"""One file: what it becomes, and what has to be said about it."""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterator
from dataclasses import dataclass

import libcst as cst

from ..names import table
from .choices import choose
from .imports import ROOT, Imports, imports_of
from .items import Item, note
from .lookup import Kind
from .members import Members, members_of
from .rewriting import rewritten
from .shared import UNPARSED, listed, parsed
from .sources import Source
from .texts import in_strings


@dataclass(frozen=True)
class Ported:
    """A file with OneFlow, and the same without."""

    source: Source
    content: bytes
    items: tuple[Item, ...]
    imports_oneflow: bool = True

    @property
    def is_changed(self) -> bool:
        return self.content != self.source.content

    @property
    def has_every_name(self) -> bool:
        return not any(item.is_name for item in self.items)


def ported(source: Source, shared: Collection[str] = ()) -> Ported | Item:
    """Rewrite a file in memory; an item where it cannot be read as Python.

    Args:
        shared: names that other files take from it; ``*`` for all.
    """
    # Python's parser refuses what is nested so deeply that libcst's would crash.
    if isinstance(tree := parsed(source), Item):
        return tree
    try:
        return _ported(source, tree, cst.parse_module(source.content), shared)
    except (cst.ParserSyntaxError, RecursionError) as error:
        return Item(source.path, 0, UNPARSED, f"libcst cannot read it: {type(error).__name__}.")


def _ported(
    source: Source, tree: ast.Module, module: cst.Module, shared: Collection[str]
) -> Ported | Item:
    if module.bytes != source.content:
        why = "its line ends or its encoding would change; it was left as it is."
        return Item(source.path, 0, "cannot be kept", why)
    imports, strings = imports_of(module), in_strings(source, tree)
    if not imports.aliases and not imports.stars:
        return Ported(source, source.content, tuple(strings), imports_oneflow=False)
    if (own := _own_module(source)) is not None:
        return own
    members = members_of(tree)
    choice = choose(imports, shared={*shared, *listed(tree)}, keeps_one=members.is_any)
    adds = members.is_any and not imports.stars and not _any_at_the_top(imports)
    after = rewritten(module, choice, adds_import=adds)
    items = {*_of_names(source, imports), *_of_members(source, members), *strings}
    return Ported(source, after.bytes, tuple(sorted(items)))


def _any_at_the_top(imports: Imports) -> bool:
    return any(alias.scope is alias.scope.globals for alias in imports.aliases)


def _own_module(source: Source) -> Item | None:
    folder = source.path.parent
    if (folder / f"{ROOT}.py").exists() or (folder / ROOT / "__init__.py").exists():
        why = "the folder has a module of that name; it was left, as it may be the one imported."
        return Item(source.path, 0, "import oneflow", why)
    return None


def _of_names(source: Source, imports: Imports) -> Iterator[Item]:
    for alias in imports.aliases:
        is_module = alias.means.kind is Kind.NAMESPACE
        if alias.means.kind is Kind.MISSING:
            what = f"{ROOT}.{alias.means.name}"
            yield Item(source.path, alias.line, what, alias.means.why, is_name=True)
        for use in (*alias.uses, *alias.modules):
            if use.means.kind is Kind.MISSING:
                what = f"{ROOT}.{use.means.name}"
                yield Item(source.path, use.line, what, use.means.why, is_name=True)
        for use in alias.uses if is_module else ():
            if use.means.kind is Kind.NAMESPACE:
                why = "a module as a value, as in getattr(flow, name): its names are not looked up."
                yield note(source.path, use.line, f"{ROOT}.{use.means.name}".rstrip("."), why)
    for star in imports.stars:
        why = "the names that the file takes so are not known, and were not looked up."
        yield note(source.path, imports.lines[star], "from oneflow import *", why)


def _of_members(source: Source, members: Members) -> Iterator[Item]:
    for name, lines in members.lines.items():
        yield from (note(source.path, one, spelling(name), table()[name].why) for one in lines)


def spelling(name: str) -> str:
    """``Tensor //`` for ``Tensor.__floordiv__``."""
    return name.replace(".__floordiv__", " //").replace(".__mod__", " %")
