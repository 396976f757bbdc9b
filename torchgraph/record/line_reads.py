"""What each line of a code object reads by name, from its bytecode: ``cfg.beta``, ``args["w"]``."""

from __future__ import annotations

import dis
import functools
from types import CodeType
from typing import Any

from .chains import Chain, Line, Lines, Root, StackUse, StackUses, Use
from .scan import Scan


@functools.cache
def lines_of(code: CodeType) -> Lines:
    """The chains that each line of a code object reads, and what for."""
    found: dict[int, list[tuple[Chain, Use]]] = {}
    stored: dict[int, set[str]] = {}
    inside: dict[int, set[int]] = {}
    stack: dict[int, dict[int, list[tuple[StackUse, bool]]]] = {}
    before = None
    lines = {start: line for first, end, line in code.co_lines() for start in range(first, end, 2)}
    scan = Scan()
    for instruction in dis.get_instructions(code):
        line = scan.line = lines.get(instruction.offset)
        uses = list(scan.uses(instruction))
        used = scan.step(instruction)
        if line is not None:
            if uses:
                stack.setdefault(line, {})[instruction.offset] = uses
            found.setdefault(line, []).extend(used)
            if before is not None and before.opname.startswith(("STORE_FAST", "STORE_DEREF")):
                inside.setdefault(line, set()).add(instruction.offset)
            if instruction.opname.startswith(("STORE_FAST", "STORE_DEREF")):
                names = instruction.argval
                names = {names} if isinstance(names, str) else set(names)
                stored.setdefault(line, set()).update(names)
        before = instruction
    return {
        line: _line(_once(used), stored.get(line, set()), inside.get(line, set()))._replace(
            unnamed=_uses(stack.get(line, {}), named=False), uses=_uses(stack.get(line, {}))
        )
        for line, used in found.items()
    }


def _uses(stack: dict[int, list[tuple[StackUse, bool]]], *, named: bool = True) -> StackUses:
    found = {
        offset: tuple(use for use, has_name in uses if named or not has_name)
        for offset, uses in stack.items()
    }
    return {offset: uses for offset, uses in found.items() if uses}


def _line(chains: list[tuple[Chain, Use]], stored: set[str], inside: set[int]) -> Line:
    returned = tuple(row for row in chains if row[0].root is Root.RETURNED)
    named = [row for row in chains if row[0].root is not Root.RETURNED]
    reads = tuple(row for row in named if row[1] >= Use.NAMED)
    inner = (row for row in reads if _begins_at(row[0], stored))
    stores = tuple(row for row in named if row[1] < Use.NAMED)
    return Line(reads, tuple(inner), stores, returned, frozenset(inside))


def _begins_at(chain: Chain, variables: set[str]) -> bool:
    if chain.root is not Root.GLOBAL and chain.name in variables:
        return True
    keys = (step.key for step in chain.steps if isinstance(step.key, Chain))
    return any(_begins_at(key, variables) for key in keys)


def _once(chains: list[tuple[Chain, Use]]) -> list[tuple[Chain, Use]]:
    """Each chain with all that is done with it."""
    uses: dict[tuple[Any, ...], tuple[Chain, Use]] = {}
    for chain, use in chains:
        key = (use < Use.NAMED, use is Use.COMPARED, chain.mark)
        known = uses.get(key)
        uses[key] = (chain, use if known is None else max(use, known[1]))
    return list(uses.values())
