"""What each line of a code object reads by name, from its bytecode: ``cfg.beta``, ``args["w"]``."""

from __future__ import annotations

import dis
import functools
import sys
from collections import defaultdict
from types import CodeType

from ..chains.chains import Chain, Line, Lines, Reads, Root, StackUse, StackUses, Use
from .scan import Scan

_ONE_EVENT = sys.version_info < (3, 12)
"""Python tells of an instruction where the ``EXTENDED_ARG`` before it lies."""
_OF_OBJECTS = frozenset({Use.KEPT, Use.COMPARED})
"""What goes by which object it is, whatever is read of it besides."""
_Chains = list[tuple[Chain, Use]]


class _LineReads:
    """What is known of one line, instruction by instruction."""

    def __init__(self) -> None:
        self.chains: list[tuple[int, Chain, Use]] = []
        self.stores: dict[int, tuple[tuple[Chain, Use], ...]] = {}
        self.stack: dict[int, list[tuple[StackUse, bool]]] = {}
        self.variables: set[str] = set()
        self.inside: set[int] = set()
        self.again: set[int] = set()
        self._stored = self._replaced = False
        self._in_place: int | None = None
        """The instruction whose result is stored next."""

    def add(
        self, offset: int, ins: dis.Instruction, uses: list[tuple[StackUse, bool]], used: _Chains
    ) -> None:
        """The next instruction of the line, and where Python tells of it."""
        if uses:
            self.stack[offset] = uses
        if self._stored:
            self.inside.add(offset)
        if self._replaced:
            self.again.add(offset)
        stores = tuple(
            (chain, use) for chain, use in used if use < Use.NAMED and not _is_returned(chain)
        )
        if stores:  # what ``+=`` moves in place is another one before it is stored
            begin = offset if self._in_place is None else self._in_place
            self.stores[begin] = (*self.stores.get(begin, ()), *stores)
        if ins.opname.startswith("STORE_"):
            self._in_place = None
        elif _is_in_place(ins):
            self._in_place = offset
        self._stored = ins.opname.startswith(("STORE_FAST", "STORE_DEREF"))
        self._replaced = any(use is not Use.COUNTED for _, use in stores)
        if self._stored:
            names = ins.argval
            self.variables.update([names] if isinstance(names, str) else names)

    def line(self) -> Line:
        """All of it."""
        chains = self._from(0)
        reads = _reads(chains)
        return Line(
            reads,
            tuple(row for row in reads if _begins_at(row[0], self.variables)),
            self.stores,
            tuple(row for row in chains if _is_returned(row[0])),
            frozenset(self.inside),
            {begin: rows for begin in self.again if (rows := _reads(self._from(begin)))},
            _uses(self.stack, named=False),
            _uses(self.stack),
        )

    def _from(self, begin: int) -> _Chains:
        """What instructions use from one on."""
        return _once([(chain, use) for offset, chain, use in self.chains if offset >= begin])


def _reads(chains: _Chains) -> Reads:
    named = (row for row in chains if not _is_returned(row[0]))
    return tuple((chain, use) for chain, use in named if use >= Use.NAMED)


@functools.lru_cache(maxsize=4096)  # a notebook makes code without end
def lines_of(code: CodeType) -> Lines:
    """The chains that each line of a code object reads, and what for."""
    found: dict[int, _LineReads] = defaultdict(_LineReads)
    lines = {start: line for first, end, line in code.co_lines() for start in range(first, end, 2)}
    scan = Scan()
    begin: int | None = None
    for instruction in dis.get_instructions(code):
        line = scan.line = lines.get(instruction.offset)
        begin = instruction.offset if begin is None else begin
        uses = list(scan.uses(instruction))
        used = scan.step(instruction)
        if instruction.opname == "EXTENDED_ARG":
            begin = begin if _ONE_EVENT else None
            continue
        if line is not None:
            found[line].add(begin, instruction, uses, used)
            for chain, use in used:  # a statement may have many lines
                read_on = line if chain.line is None or use < Use.NAMED else chain.line
                found[read_on].chains.append((begin, chain, use))
        begin = None
    return {number: line.line() for number, line in found.items()}


def _uses(stack: dict[int, list[tuple[StackUse, bool]]], *, named: bool = True) -> StackUses:
    found = {
        offset: tuple(use for use, has_name in uses if named or not has_name)
        for offset, uses in stack.items()
    }
    return {offset: uses for offset, uses in found.items() if uses}


def _is_in_place(ins: dis.Instruction) -> bool:
    name = ins.opname
    return bool(name.startswith("INPLACE_") or (name == "BINARY_OP" and ins.argrepr[-1:] == "="))


def _is_returned(chain: Chain) -> bool:
    return chain.root is Root.RETURNED


def _begins_at(chain: Chain, variables: set[str]) -> bool:
    if chain.root is not Root.GLOBAL and chain.name in variables:
        return True
    keys = (step.key for step in chain.steps if isinstance(step.key, Chain))
    return any(_begins_at(key, variables) for key in keys)


def _once(chains: _Chains) -> _Chains:
    """Each chain with all that is done with it."""
    uses: dict[tuple[object, ...], tuple[Chain, Use]] = {}
    for chain, use in chains:
        key = (use < Use.NAMED, use if use in _OF_OBJECTS else None, chain.mark)
        known = uses.get(key)
        uses[key] = (chain, use if known is None else max(use, known[1]))
    return list(uses.values())
