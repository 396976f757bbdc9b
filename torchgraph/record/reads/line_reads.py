"""The chains that each line of a code object reads: ``cfg.beta``, ``args["w"]``."""

from __future__ import annotations

import dis
import functools
from collections import defaultdict
from types import CodeType, FrameType

from ...guards import ABSENT
from ..chains.chains import Chain, Line, Lines, Reads, Root, Test, Use
from ..chains.resolve import leads_to
from .scan import JUMPS, Scan

_OF_OBJECTS = frozenset({Use.KEPT, Use.COMPARED, Use.AMONG})
"""Uses that depend on object identity."""
_Chains = list[tuple[Chain, Use]]
_PASSES = ("LOAD_", "PUSH_NULL", "NOP", "CACHE", "RESUME", "EXTENDED_ARG", "COPY", "TO_BOOL")
"""Prefixes of instructions without effect on a line's first test."""
_PLAIN = (bool, int, float, str, type(None))


class _Tests:
    """The leading conditional jump of each line of a code object."""

    def __init__(self, code: CodeType) -> None:
        jumps = (ins for ins in dis.get_instructions(code) if ins.opcode in JUMPS)
        self._jumps = [(ins.offset, ins.argval) for ins in jumps]
        self._over: set[int] = set()
        """Lines that are past their first test or effect."""
        self._bool: object = None
        """The operand of the last ``TO_BOOL``."""
        self.found: dict[int, Test] = {}
        """The `Test` by line."""

    def see(self, ins: dis.Instruction, line: int, top: object) -> None:
        """Handle the next instruction; ``top`` is the stack top before it."""
        if ins.opname == "TO_BOOL":  # from Python 3.13 on before a jump
            self._bool = top
        if line in self._over or ins.opname.startswith(_PASSES):
            return
        self._over.add(line)
        skips = ins.opname.partition("_IF_")[2].removesuffix("_OR_POP")
        chain = top if isinstance(top, Chain) else self._bool
        if skips and ins.argval > ins.offset and isinstance(chain, Chain):
            inside = range(ins.offset + 1, ins.argval)
            entered = (to in inside and at not in inside for at, to in self._jumps)
            if not any(entered):
                self.found[line] = Test(chain, skips, inside)


class _LineReads:
    """The reads and writes of one line, collected instruction by instruction."""

    def __init__(self) -> None:
        self.chains: _Chains = []
        self.stores: _Chains = []
        self.variables: set[str] = set()
        self.put: dict[object, object] = {}
        self._branches = False

    def add(self, ins: dis.Instruction, used: _Chains, scan: Scan) -> None:
        """Handle the next instruction of the line."""
        for chain, use in used:
            perhaps = self._branches and use is Use.STORED
            if perhaps:
                self.put.update((chain.mark, value) for value in scan.puts(chain))
            if use < Use.NAMED:
                self.stores.append((chain, Use.PERHAPS if perhaps else use))
        self._branches |= "JUMP" in ins.opname and "IF" in ins.opname
        if ins.opname.startswith(("STORE_FAST", "STORE_DEREF")):
            names = ins.argval
            self.variables.update([names] if isinstance(names, str) else names)

    def line(self) -> Line:
        """The collected `Line`."""
        chains = _once(self.chains)
        named = [row for row in chains if not _is_returned(row[0])]
        reads = tuple(row for row in named if row[1] >= Use.NAMED)
        return Line(
            reads,
            tuple(row for row in reads if _begins_at(row[0], self.variables)),
            tuple(row for row in self.stores if not _is_returned(row[0])),
            tuple(row for row in chains if _is_returned(row[0])),
            self.put,
        )


@functools.lru_cache(maxsize=4096)  # a notebook makes code without end
def lines_of(code: CodeType) -> Lines:
    """The reads of each line of a code object, by line."""
    tests = _Tests(code)
    found = _found(code, tests)
    if not tests.found:
        return found
    skipped = frozenset(at for test in tests.found.values() for at in test.offsets)
    without = _found(code, None, skipped)
    for number, test in tests.found.items():
        found[number] = found[number]._replace(test=test, skipped=without[number])
    return found


def _found(
    code: CodeType, tests: _Tests | None, skipped: frozenset[int] = frozenset()
) -> dict[int, Line]:
    """The reads of each line, by line number.

    Args:
        tests: called with each instruction.
        skipped: instructions that do not run.
    """
    found: dict[int, _LineReads] = defaultdict(_LineReads)
    lines = {start: line for first, end, line in code.co_lines() for start in range(first, end, 2)}
    scan = Scan(code)
    for instruction in dis.get_instructions(code):
        line = scan.line = lines.get(instruction.offset)
        if tests is not None and line is not None:
            tests.see(instruction, line, scan.top)
        used = scan.step(instruction)
        if line is not None:
            if instruction.offset in skipped:  # of other lines it may still be a part
                used = [row for row in used if row[0].line not in (None, line)]
            found[line].add(instruction, used, scan)
            for chain, use in used:  # a statement may have many lines
                read_on = line if chain.line is None or use < Use.NAMED else chain.line
                found[read_on].chains.append((chain, use))
    return {number: line.line() for number, line in found.items()}


def _is_returned(chain: Chain) -> bool:
    return chain.root is Root.RETURNED


def _begins_at(chain: Chain, variables: set[str]) -> bool:
    if chain.root not in (Root.GLOBAL, Root.MODULE) and chain.name in variables:
        return True
    keys = (step.key for step in chain.steps if isinstance(step.key, Chain))
    return any(_begins_at(key, variables) for key in keys)


def _once(chains: _Chains) -> Reads:
    """Each chain once, with all its uses."""
    uses: dict[tuple[object, ...], tuple[Chain, Use]] = {}
    for chain, use in chains:
        key = (use < Use.NAMED, use if use in _OF_OBJECTS else None, chain.mark)
        known = uses.get(key)
        uses[key] = (chain, use if known is None else max(use, known[1]))
    return list(uses.values())


def running(line: Line | None, frame: FrameType) -> Line | None:
    """The part of a line that is about to run."""
    if line is None or line.test is None:
        return line
    value = leads_to(frame, line.test.chain, lambda owner: False)
    if value is ABSENT:
        return line
    if line.test.skips.endswith("NONE"):
        skipped = (value is None) is (line.test.skips == "NONE")
    elif type(value) in _PLAIN:
        skipped = bool(value) is (line.test.skips == "TRUE")
    else:
        return line
    return line.skipped if skipped else line
