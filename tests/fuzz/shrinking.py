"""Makes a program smaller while its verdict stays of the same kind."""

from __future__ import annotations

import ast
import copy
import functools
import re
from collections.abc import Callable, Iterator

_BODIES = ("body", "orelse")

# Calls on a Graph that the loop beside it says in its own words.
_TWINS = ("enable_amp", "set_gradient_accumulation_steps", "set_clip_grad", "set_grad_scaler")


def kind(verdict: str) -> str:
    """What has to stay: ``different``, or the class of the error."""
    if verdict.startswith(("raised", "different")):
        return re.split(r" at call|: ", verdict)[0 if verdict[0] == "d" else 1]
    return re.sub(r"\d+", "", verdict)[:90]


def shrink(text: str, verdict: str, judge: Callable[[str], str], most: int = 400) -> str:
    """Try smaller programs, larger cuts first, until none has the same kind of verdict."""
    wanted, tree, tried = kind(verdict), ast.parse(text), 0
    moved = True
    while moved and tried < most:
        moved = False
        place = 0
        while tried < most and (smaller := _cut(tree, place, wanted == "different")) is not None:
            tried += 1
            if kind(judge(ast.unparse(smaller))) == wanted:
                tree, moved = smaller, True
            else:
                place += 1
    return ast.unparse(tree)


def _cut(tree: ast.Module, place: int, whole: bool) -> ast.Module | None:
    """The program without its ``place``-th part; None where there are no more."""
    smaller = copy.deepcopy(tree)
    kept = _twins(smaller) if whole else set()
    for index, change in enumerate(_changes(smaller, kept)):
        if index == place:
            change()
            return ast.fix_missing_locations(smaller)
    return None


def _twins(tree: ast.Module) -> set[int]:
    """What a Graph class says and the loop beside it, too: neither is cut alone. By identity."""
    named = [n for n in ast.walk(tree) if isinstance(n, (ast.FunctionDef, ast.ClassDef))]
    if not any(node.name == "Step" for node in named):
        return set()
    roots: list[ast.AST] = [node for node in named if node.name.lower() == "step"]
    calls = [n for n in ast.walk(tree) if isinstance(n, ast.Expr)]
    roots += [n for n in calls if any(word in ast.unparse(n) for word in _TWINS)]
    return {id(node) for root in roots for node in ast.walk(root)}


def _changes(tree: ast.Module, kept: set[int]) -> Iterator[Callable[[], object]]:
    nodes = [node for node in ast.walk(tree) if id(node) not in kept]
    for node in nodes:
        for field in _BODIES:
            body = getattr(node, field, None)
            if isinstance(body, list):
                yield from _of_body(body, kept)
    for node in nodes:
        yield from _of_expression(node)


def _of_expression(node: ast.AST) -> Iterator[Callable[[], object]]:
    match node:
        case ast.Call(keywords=keywords):
            for keyword in keywords:
                yield functools.partial(keywords.remove, keyword)
        case ast.List(elts=items) | ast.Tuple(elts=items) if len(items) > 1:
            for item in items:
                yield functools.partial(items.remove, item)
        case ast.Dict(keys=keys) if len(keys) > 1:
            for where in range(len(keys)):
                yield functools.partial(_without, node, where)
        case ast.BinOp(left=left, right=right) if not isinstance(right, ast.Constant):
            for operand in (left, right):
                changes = {"left": operand, "op": ast.Add(), "right": ast.Constant(0)}
                yield functools.partial(vars(node).update, changes)


def _of_body(body: list[ast.stmt], kept: set[int]) -> Iterator[Callable[[], object]]:
    if len(body) > 3 and not kept:
        half = len(body) // 2
        yield functools.partial(body.__delitem__, slice(None, half))
        yield functools.partial(body.__delitem__, slice(half, None))
    for where, statement in enumerate(body):
        if id(statement) not in kept:
            if len(body) > 1:
                yield functools.partial(body.pop, where)
            if isinstance(statement, (ast.With, ast.If, ast.For)):
                yield functools.partial(body.__setitem__, slice(where, where + 1), statement.body)


def _without(node: ast.Dict, where: int) -> None:
    del node.keys[where], node.values[where]
