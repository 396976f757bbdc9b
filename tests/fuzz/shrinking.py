"""Makes a program smaller while its verdict stays of the same kind."""

from __future__ import annotations

import ast
import copy
from collections.abc import Callable, Iterator

_BODIES = ("body", "orelse")


def kind(verdict: str) -> str:
    """What has to stay: ``different``, or the class of the error."""
    return verdict.split(" at call ")[0] if verdict.startswith("raised") else verdict.split(":")[0]


def shrink(text: str, verdict: str, judge: Callable[[str], str], most: int = 400) -> str:
    """Try smaller programs, larger cuts first, until none has the same kind of verdict."""
    wanted, tree, tried = kind(verdict), ast.parse(text), 0
    moved = True
    while moved and tried < most:
        moved = False
        place = 0
        while tried < most and (smaller := _cut(tree, place)) is not None:
            tried += 1
            if kind(judge(ast.unparse(smaller))) == wanted:
                tree, moved = smaller, True
            else:
                place += 1
    return ast.unparse(tree)


def _cut(tree: ast.Module, place: int) -> ast.Module | None:
    """The program without its ``place``-th part; None where there are no more."""
    smaller = copy.deepcopy(tree)
    for index, change in enumerate(_changes(smaller)):
        if index == place:
            change()
            return ast.fix_missing_locations(smaller)
    return None


def _changes(tree: ast.Module) -> Iterator[Callable[[], None]]:
    for node in ast.walk(tree):
        for field in _BODIES:
            body = getattr(node, field, None)
            if isinstance(body, list):
                yield from _of_body(node, body)
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            for keyword in node.keywords:
                yield lambda node=node, keyword=keyword: node.keywords.remove(keyword)
            if node.keywords == [] and len(node.args) == 1 and isinstance(node.func, ast.Name):
                continue


def _of_body(owner: ast.AST, body: list[ast.stmt]) -> Iterator[Callable[[], None]]:
    for statement in body:
        if len(body) > 1:
            yield lambda statement=statement: body.remove(statement)
        inner = getattr(statement, "body", None)
        if isinstance(statement, (ast.With, ast.If, ast.For)):
            where = body.index(statement)
            yield lambda where=where, inner=inner: body.__setitem__(slice(where, where + 1), inner)
