"""The values on the stack of a running frame: what an instruction is about to use.

Python shows a frame's variables, not its stack. Where CPython keeps that is found by a trial; where
the trial fails (another Python, a layout that is not known) nothing is read.
"""

from __future__ import annotations

import ctypes
import dis
import functools
import itertools
import sys
from collections.abc import Mapping
from types import CodeType, FrameType
from typing import Any

from ...guards import ABSENT

_WORD = ctypes.sizeof(ctypes.c_void_p)
_JUMPS = frozenset((*dis.hasjrel, *dis.hasjabs))
_HAS_OUTER_FRAME = sys.version_info >= (3, 11)
"""The values lie in a structure that the frame object leads to, not in the object itself."""
_NEWEST = (3, 13)
"""Later ones keep marked addresses on the stack."""
_SEARCHED = 64 if not _HAS_OUTER_FRAME else 24
_GENERATORS = 0x20 | 0x80 | 0x200
"""``co_flags`` of generators and coroutines."""


def depths_of(code: CodeType) -> Mapping[int, int]:
    """By instruction that can be reached, how many values are on the stack before it runs."""
    found: dict[int, int] = {}
    instructions = {ins.offset: ins for ins in dis.get_instructions(code)}
    offsets = list(instructions)
    following = dict(itertools.pairwise(offsets))
    first = 1 if not _HAS_OUTER_FRAME and code.co_flags & _GENERATORS else 0
    pending = [(0, first), *_handlers(code)]
    while pending:
        offset, depth = pending.pop()
        if offset in found:
            continue
        found[offset] = depth
        ins = instructions[offset]
        if ins.opcode in _JUMPS:
            pending.append((ins.argval, depth + _effect(ins, jump=True)))
        if offset in following and not _ends(ins.opname):
            pending.append((following[offset], depth + _effect(ins, jump=False)))
    return found


def _handlers(code: CodeType) -> list[tuple[int, int]]:
    """Where exceptions are handled, and how deep the stack is there."""
    table: Any = getattr(dis, "_parse_exception_table", lambda code: ())
    return [(entry.target, entry.depth + 1 + bool(entry.lasti)) for entry in table(code)]


def _effect(ins: dis.Instruction, *, jump: bool) -> int:
    if ins.opname == "RETURN_GENERATOR":
        return 1  # what was sent, which the next instruction drops
    if sys.version_info[:2] == (3, 11):  # dis counts the arguments of a call before it
        if ins.opname == "PRECALL":
            return 0
        if ins.opname == "CALL":
            return -(ins.arg or 0) - 1
    return dis.stack_effect(ins.opcode, ins.arg, jump=jump)


def _ends(name: str) -> bool:
    """True for an instruction that the next one never follows."""
    always = ("RETURN_VALUE", "RETURN_CONST", "RAISE", "RERAISE", "JUMP_FORWARD", "JUMP_ABSOLUTE")
    return name.startswith((*always, "JUMP_BACKWARD"))


class Stack:
    """Reads the stacks of the frames of one code object.

    Args:
        start: bytes from where the variables are kept to the first of them.
    """

    def __init__(self, code: CodeType, start: int) -> None:
        self._depths = depths_of(code)
        variables = (code.co_varnames, code.co_cellvars, code.co_freevars)
        count = sum(map(len, variables))
        if _HAS_OUTER_FRAME:  # an argument that functions inside use has one place
            count = len(set(code.co_varnames).union(code.co_cellvars)) + len(code.co_freevars)
        self._start = start + _WORD * count

    def value(self, frame: FrameType, number: int) -> object:
        """The value ``number`` from the top before `frame`'s next instruction; `ABSENT`: none."""
        depth = self._depths.get(frame.f_lasti, 0)
        if number > depth:
            return ABSENT
        address = _held_at(frame) + self._start + _WORD * (depth - number)
        pointer = ctypes.c_void_p.from_address(address)
        return ctypes.cast(pointer, ctypes.py_object).value if pointer.value else ABSENT


def _held_at(frame: FrameType) -> int:
    if not _HAS_OUTER_FRAME:
        return id(frame)
    held: int = ctypes.c_void_p.from_address(id(frame) + 3 * _WORD).value or 0
    return held


@functools.lru_cache(maxsize=4096)  # a notebook makes code without end
def stack_of(code: CodeType) -> Stack | None:
    """To read the stacks of its frames; None where that cannot be done."""
    start = first_variable()
    return None if start is None else Stack(code, start)


@functools.cache
def first_variable() -> int | None:
    """Bytes to where a frame keeps its variables. Not to be asked first by a trace function.

    Found by a frame whose variables and stack are known; None where they are not there.
    """
    if sys.implementation.name != "cpython" or sys.version_info[:2] > _NEWEST:
        return None
    marks = (object(), object(), object())
    found: list[int | None] = []
    seen: list[bool] = []

    def trial(one: object, two: object, three: object) -> object:
        return one, two, three

    def trace(frame: FrameType, event: str, arg: object) -> Any:
        if frame.f_code is not trial.__code__:
            return None
        frame.f_trace_opcodes = True
        if event == "call":
            found.append(_lies_at(frame, marks))
        if event == "opcode" and found[0] is not None and _builds(frame):
            stack = Stack(frame.f_code, found[0])
            seen.append(all(stack.value(frame, 3 - i) is mark for i, mark in enumerate(marks)))
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        trial(*marks)
    finally:
        sys.settrace(before)
    return found[0] if seen == [True] else None


def _builds(frame: FrameType) -> bool:
    return dis.opname[frame.f_code.co_code[frame.f_lasti]] == "BUILD_TUPLE"


def _lies_at(frame: FrameType, marks: tuple[object, ...]) -> int | None:
    words = (ctypes.c_void_p * _SEARCHED).from_address(_held_at(frame))
    wanted = list(map(id, marks))
    places = (i for i in range(_SEARCHED - 2) if words[i : i + 3] == wanted)
    first = next(places, None)
    return None if first is None else first * _WORD
