"""Branches within one line that do not run: ``if self.logs: rows.append(self.rate)``.

A line is told of as it begins, with all that it reads. Where the first thing that it does is to
ask what lies under a name, the answer is known by then, and with it which instructions run.
"""

from __future__ import annotations

import dis
from types import CodeType, FrameType

from ...guards import ABSENT
from ..chains.chains import Chain, Line, Test
from ..chains.resolve import leads_to
from .scan import JUMPS

_PASSES = ("LOAD_", "PUSH_NULL", "NOP", "CACHE", "RESUME", "EXTENDED_ARG", "COPY", "TO_BOOL")
"""What a line may do before its first question: nothing that could change the answer."""
_PLAIN = (bool, int, float, str, type(None))


class Questions:
    """The first question of each line of a code object, as its instructions are followed."""

    def __init__(self, code: CodeType) -> None:
        jumps = (ins for ins in dis.get_instructions(code) if ins.opcode in JUMPS)
        self._jumps = [(ins.offset, ins.argval) for ins in jumps]
        self._over: set[int] = set()
        """Lines that have asked, or done something else."""
        self._bool: object = None
        """What was asked whether it is true."""
        self.found: dict[int, Test] = {}
        """By line."""

    def see(self, ins: dis.Instruction, line: int, top: object) -> None:
        """The next instruction, and the name of what lies on the stack before it."""
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


def running(line: Line | None, frame: FrameType) -> Line | None:
    """What of a line is about to run."""
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
