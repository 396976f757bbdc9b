"""What a code object reads by name, line by line, from its bytecode: ``cfg.beta``, ``args["w"]``.

The instructions are followed in their order, past jumps. What that gets wrong is read too much or
cut short, where a local variable takes over: those are looked at when the line runs.
"""

from __future__ import annotations

import dis
import enum
import functools
from collections.abc import Iterator
from types import CodeType
from typing import Any, NamedTuple


class Root(enum.Enum):
    """Where a chain begins."""

    GLOBAL = "global"
    LOCAL = "local"
    FREE = "free"
    """A variable of a function around, or of this one that a function inside uses."""


class Use(enum.IntEnum):
    """What becomes of the value that a chain leads to."""

    CLEARED = -3  # a container, of all that is in it
    COUNTED = -2  # it is replaced by what it and something else make: ``x += 1``
    STORED = -1  # it is replaced
    NAMED = 0  # kept under a name, or called
    ITEMS = 1  # its elements are looked at, one by one
    WHOLE = 2  # anything
    INSIDE = 3  # its attributes are read, whatever they are


class Step(NamedTuple):
    """One step of a chain."""

    item: bool
    """``[key]``; else ``.key``."""
    key: Any

    def __str__(self) -> str:
        return f"[{self.key!r}]" if self.item else f".{self.key}"


class Chain(NamedTuple):
    """A name, and what is read from there on."""

    root: Root
    name: str
    steps: tuple[Step, ...] = ()

    def __str__(self) -> str:
        return self.name + "".join(map(str, self.steps))

    def then(self, item: bool, key: Any) -> Chain:
        """One step further."""
        return self._replace(steps=(*self.steps, Step(item, key)))


_COUNTED = object()
"""On the stack, the result of an augmented assignment."""


class Constant(NamedTuple):
    """A constant on the stack."""

    value: Any


class Line(NamedTuple):
    """What one line reads."""

    chains: tuple[tuple[Chain, Use], ...]
    inner: tuple[tuple[Chain, Use], ...]
    """Those that begin at a variable which the same line stores: a loop in one line."""
    stores: tuple[tuple[Chain, Use], ...]


Lines = dict[int, Line]

_ROOTS = {
    "LOAD_GLOBAL": Root.GLOBAL,
    "LOAD_NAME": Root.GLOBAL,
    "LOAD_FAST": Root.LOCAL,
    "LOAD_FAST_CHECK": Root.LOCAL,
    "LOAD_FAST_BORROW": Root.LOCAL,
    "LOAD_DEREF": Root.FREE,
    "LOAD_CLASSDEREF": Root.FREE,
}
_PAIRS = ("LOAD_FAST_LOAD_FAST", "LOAD_FAST_BORROW_LOAD_FAST_BORROW")
_STORES = frozenset({"STORE_FAST", "STORE_DEREF", "STORE_GLOBAL", "STORE_NAME", "POP_TOP"})
_STORED_NAMES = {"STORE_GLOBAL": Root.GLOBAL, "STORE_DEREF": Root.FREE}
_POPS = {"STORE_ATTR": 2, "STORE_SUBSCR": 3, "DELETE_SUBSCR": 2, "DELETE_ATTR": 1}
"""How many values these take; they leave none."""
_LEAVES_NONE = ("LIST_", "SET_", "MAP_", "DICT_", "POP_JUMP", "RETURN", "JUMP_IF")
_NO_VALUE = frozenset(
    {"NOP", "RESUME", "CACHE", "PRECALL", "KW_NAMES", "EXTENDED_ARG", "COPY_FREE_VARS", "MAKE_CELL"}
)
_CALLS = {
    "CALL": 2,
    "CALL_KW": 3,
    "CALL_FUNCTION": 1,
    "CALL_METHOD": 2,
    "CALL_FUNCTION_KW": 2,
}
"""How many values a call takes besides its arguments."""
_INSIDE = frozenset({"getattr", "hasattr", "vars", "dir", "type"})
_ITERATES = frozenset({"GET_ITER", "UNPACK_SEQUENCE", "UNPACK_EX", "GET_YIELD_FROM_ITER"})
_KEPT = frozenset({"IS_OP", "RETURN_VALUE", "YIELD_VALUE", "POP_JUMP_IF_NONE"})


@functools.cache
def lines_of(code: CodeType) -> Lines:
    """The chains that each line of a code object reads, and what for."""
    found: dict[int, list[tuple[Chain, Use]]] = {}
    stored: dict[int, set[str]] = {}
    lines = {start: line for first, end, line in code.co_lines() for start in range(first, end, 2)}
    scan = _Scan()
    for instruction in dis.get_instructions(code):
        line = lines.get(instruction.offset)
        used = list(scan.step(instruction))
        if line is not None:
            found.setdefault(line, []).extend(used)
            if instruction.opname.startswith(("STORE_FAST", "STORE_DEREF")):
                names = instruction.argval
                names = {names} if isinstance(names, str) else set(names)
                stored.setdefault(line, set()).update(names)
    return {line: _line(_once(used), stored.get(line, set())) for line, used in found.items()}


def _line(chains: list[tuple[Chain, Use]], stored: set[str]) -> Line:
    reads = tuple(row for row in chains if row[1] >= Use.NAMED)
    inner = (row for row in reads if row[0].root is not Root.GLOBAL and row[0].name in stored)
    return Line(reads, tuple(inner), tuple(row for row in chains if row[1] < Use.NAMED))


def _once(chains: list[tuple[Chain, Use]]) -> list[tuple[Chain, Use]]:
    """Each chain with all that is done with it."""
    uses: dict[tuple[Any, ...], tuple[Chain, Use]] = {}
    for chain, use in chains:
        key = (
            use < Use.NAMED,
            chain.root,
            chain.name,
            *((s.item, type(s.key), s.key) for s in chain.steps),
        )
        known = uses.get(key)
        uses[key] = (chain, use if known is None else max(use, known[1]))
    return list(uses.values())


class _Scan:
    """The stack: chains, constants, and None for all else."""

    def __init__(self) -> None:
        self._stack: list[Any] = []

    def step(self, ins: Any) -> Iterator[tuple[Chain, Use]]:
        """Run one instruction; gives the chains whose value is used by it."""
        name = ins.opname
        if name in _NO_VALUE or self._pushes(ins):
            return
        if name == "BINARY_SUBSCR" or (name == "BINARY_OP" and ins.argrepr == "[]"):
            yield from self._item()
        elif name.startswith("STORE_FAST_"):
            yield from self._store_pair(name, ins.argval)
        elif name in _STORES:
            if name in _STORED_NAMES:
                yield Chain(_STORED_NAMES[name], ins.argval), self._stored(self._peek(1))
            yield from self._used(1, Use.NAMED)
        else:
            yield from self._other(ins)

    def _pushes(self, ins: Any) -> bool:
        """Run an instruction that uses nothing; False for others."""
        name = ins.opname
        if name in _ROOTS:
            if _effect(ins) == 2:  # an empty place, where a function is to be called
                self._stack.append(None)
            self._stack.append(Chain(_ROOTS[name], ins.argval))
        elif name in _PAIRS:
            self._stack += [Chain(Root.LOCAL, variable) for variable in ins.argval]
        elif name in ("LOAD_CONST", "LOAD_SMALL_INT"):
            self._stack.append(Constant(ins.argval))
        elif name in ("LOAD_ATTR", "LOAD_METHOD"):
            self._attribute(ins)
        elif name in ("COPY", "DUP_TOP"):
            self._stack.append(self._peek(ins.arg or 1))
        elif name == "SWAP":
            self._swap(ins.arg)
        elif name in ("PUSH_NULL", "LOAD_CLOSURE", "FOR_ITER"):
            self._stack.append(None)
        else:
            return False
        return True

    def _other(self, ins: Any) -> Iterator[tuple[Chain, Use]]:
        name = ins.opname
        if name in _ITERATES:
            yield from self._used(1, Use.ITEMS)
            self._stack += [None] * (dis.stack_effect(ins.opcode, ins.arg) + 1)
            return
        if name in _POPS:
            yield from self._store(name, ins.argval)
            return
        if name.startswith("CALL") and "INTRINSIC" not in name:
            yield from self._call(ins)
            return
        effect = _effect(ins)
        used = max(-effect, 0)
        leaves = 0 if name.startswith(_LEAVES_NONE) else 1
        if effect <= 0:
            counted = name == "BINARY_OP" and ins.argrepr.endswith("=")
            counted = counted or name.startswith("INPLACE_")
            use = Use.NAMED if name in _KEPT else Use.WHOLE
            yield from self._used(used + leaves, use, skip_first=counted)
            self._stack += [_COUNTED if counted else None] * leaves
        else:
            self._stack += [None] * effect
        if name in ("RETURN_VALUE", "RAISE_VARARGS", "RERAISE"):
            self._stack.clear()

    def _call(self, ins: Any) -> Iterator[tuple[Chain, Use]]:
        """What is called is named; its arguments may be used in any way."""
        more = _CALLS.get(ins.opname)
        taken = 1 - _effect(ins) if more is None else ins.arg + more
        values = [self._pop() for _ in range(taken)][::-1]
        called = next((i for i, value in enumerate(values) if value is not None), taken)
        got, use = self._looks_inside(values[called:])
        for i, value in enumerate(values):
            if isinstance(value, Chain) and (got is None or i == called):
                yield value, Use.NAMED if i == called and called <= 1 else use
        self._stack.append(got)

    @staticmethod
    def _looks_inside(values: list[Any]) -> tuple[Chain | None, Use]:
        """``getattr(x, "name")`` reads what ``x.name`` does, ``vars(x)`` everything."""
        name = values[0].name if values and isinstance(values[0], Chain) else ""
        if name not in _INSIDE or values[0] != Chain(Root.GLOBAL, name) or len(values) < 2:
            return None, Use.WHOLE
        held, key = values[1], values[2] if len(values) > 2 else None
        if not isinstance(held, Chain):
            return None, Use.WHOLE
        if name == "type":
            return (held.then(False, "__class__") if len(values) == 2 else None), Use.NAMED
        if isinstance(key, Constant) and type(key.value) is str:
            return held.then(False, key.value), Use.INSIDE
        return None, Use.INSIDE

    def _attribute(self, ins: Any) -> None:
        held = self._pop()
        if _effect(ins) == 1:  # a method comes with its object, or with an empty place
            self._stack.append(None)
        self._stack.append(held.then(False, ins.argval) if isinstance(held, Chain) else None)

    def _item(self) -> Iterator[tuple[Chain, Use]]:
        key, held = self._pop(), self._pop()
        if isinstance(key, Chain):
            yield key, Use.WHOLE
        plain = isinstance(key, Constant) and type(key.value) in (str, int, bool)
        if isinstance(held, Chain) and plain:
            self._stack.append(held.then(True, key.value))
            return
        if isinstance(held, Chain):
            yield held, Use.ITEMS
        self._stack.append(None)

    def _store(self, name: str, argument: Any) -> Iterator[tuple[Chain, Use]]:
        values = [self._pop() for _ in range(_POPS[name])][::-1]
        use = self._stored(values[0]) if len(values) > 1 else Use.STORED
        key = Constant(argument) if name.endswith("ATTR") else values.pop()
        held = values.pop()
        for value in (*values, key):
            if isinstance(value, Chain):
                yield value, Use.NAMED if value is not key else Use.WHOLE
        if not isinstance(held, Chain):
            return
        yield held, Use.NAMED
        if isinstance(key, Constant) and type(key.value) in (str, int, bool):
            yield held.then(not name.endswith("ATTR"), key.value), use
        else:
            yield held, Use.COUNTED

    @staticmethod
    def _stored(value: Any) -> Use:
        return Use.COUNTED if value is _COUNTED else Use.STORED

    def _store_pair(self, name: str, variables: Any) -> Iterator[tuple[Chain, Use]]:
        yield from self._used(1, Use.NAMED)
        if name == "STORE_FAST_STORE_FAST":
            yield from self._used(1, Use.NAMED)
        elif name == "STORE_FAST_LOAD_FAST":
            self._stack.append(Chain(Root.LOCAL, variables[1]))

    def _used(
        self, count: int, use: Use, *, skip_first: bool = False
    ) -> Iterator[tuple[Chain, Use]]:
        values = [self._pop() for _ in range(count)][::-1]
        for value in values[1 if skip_first else 0 :]:
            if isinstance(value, Chain):
                yield value, use

    def _peek(self, depth: int) -> Any:
        return self._stack[-depth] if len(self._stack) >= depth else None

    def _pop(self) -> Any:
        return self._stack.pop() if self._stack else None

    def _swap(self, depth: int) -> None:
        missing = depth - len(self._stack)
        self._stack[:0] = [None] * missing
        self._stack[-1], self._stack[-depth] = self._stack[-depth], self._stack[-1]


def _effect(ins: Any) -> int:
    return dis.stack_effect(ins.opcode, ins.arg, jump=False)
