"""The stack while a code object runs, as far as its bytecode tells: which names lead to its values.

The instructions are followed in their order, past jumps. Where that may be wrong, or no name is
known, what lies on the real stack is looked at when the line runs (see `uses`).
"""

from __future__ import annotations

import dis
from collections.abc import Iterator
from typing import Any

from ..chains.chains import ANY, EACH, OWN, Chain, Constant, Iterated, Result, Root, StackUse, Use
from .uses import stack_uses

_COUNTED = object()
"""On the stack, the result of an augmented assignment."""


_ROOTS = {
    "LOAD_GLOBAL": Root.GLOBAL,
    "LOAD_NAME": Root.GLOBAL,
    "LOAD_FAST": Root.LOCAL,
    "LOAD_FAST_CHECK": Root.LOCAL,
    "LOAD_FAST_BORROW": Root.LOCAL,
    "LOAD_CLOSURE": Root.LOCAL,  # the cell, for a function that is made; from 3.13 on a LOAD_FAST
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
_SETTERS = ("setattr", "delattr")
_COPIES = frozenset({"asdict", "astuple", "copy", "deepcopy"})
_GIVEN = 6
"""So many places are followed that the result of one call may come from."""
_ITERATES = frozenset({"GET_ITER", "UNPACK_SEQUENCE", "UNPACK_EX", "GET_YIELD_FROM_ITER"})
_ROTATED = {"ROT_TWO": 2, "ROT_THREE": 3, "ROT_FOUR": 4}
"""Until Python 3.10: how deep the value on the top is put."""
_MOVES_ON = frozenset({"INPLACE_ADD", "INPLACE_SUBTRACT"})
_OPERATORS = ("COMPARE_OP", "CONTAINS_OP", "BINARY_", "FORMAT_", "CONVERT_VALUE")
_TEXTS = frozenset({"str", "repr", "format", "ascii"})
_KEPT = frozenset({"IS_OP", "RETURN_VALUE", "YIELD_VALUE", "POP_JUMP_IF_NONE"})


class Scan:
    """The stack: chains, constants, and None for all else."""

    def __init__(self) -> None:
        self.line: int | None = None
        self._stack: list[object] = []
        self._joined = 0
        """So many values lay there where several ways met: the names are those of one way."""
        self._spans: list[tuple[Chain, Use]] = []
        """What an attribute is read of on a later line than its name."""
        self._items: dict[str, tuple[int | None, Chain]] = {}
        """By variable, which line gives it the items of what: a loop in one line."""

    def step(self, ins: dis.Instruction) -> list[tuple[Chain, Use]]:
        """Run one instruction; gives the chains whose value is used by it."""
        used: list[tuple[Chain, Use]] = []
        if ins.is_jump_target:  # what lies there is used at the end of another way
            used += (row for value in self._stack for row in _chains(value, Use.NAMED))
        used += [*self._step(ins), *self._spans]
        self._spans.clear()
        self._joined = min(self._joined, len(self._stack))
        return used

    def uses(self, ins: dis.Instruction) -> Iterator[tuple[StackUse, bool]]:
        """What the next instruction does with the stack; True where a name says with what."""
        if ins.is_jump_target:
            self._joined = len(self._stack)
        value = self._peek(2 if ins.opname == "STORE_ATTR" else 3)
        for use in stack_uses(ins, self._stored(value)):
            above = len(self._stack) - use.number >= self._joined
            named = isinstance(self._peek(use.number), (Chain, Constant, Iterated))
            if use.called:  # else by a name that is made as the line runs
                key, called = self._peek(use.key), self._peek(use.called)
                named = named and isinstance(key, (Chain, Constant)) and _is_by_name(called)
            yield use, named and above and not ins.opname.startswith(("MATCH_", "GET_LEN"))

    def _step(self, ins: dis.Instruction) -> Iterator[tuple[Chain, Use]]:
        name = ins.opname
        if name in _NO_VALUE or self._pushes(ins):
            return
        if name == "BINARY_SUBSCR" or (name == "BINARY_OP" and ins.argrepr == "[]"):
            yield from self._item()
        elif name.startswith("STORE_FAST_"):
            yield from self._store_pair(name, ins.argval)
        elif name in _STORES:
            self._name_item(ins)
            if name in _STORED_NAMES:
                yield Chain(_STORED_NAMES[name], ins.argval), self._stored(self._peek(1))
            yield from self._used(1, Use.KEPT if name in _STORED_NAMES else Use.NAMED)
        else:
            yield from self._other(ins)

    def _variable(self, root: Root, name: str) -> Chain | Result:
        chain = Chain(root, name, line=self.line)
        line, items = self._items.get(name, (None, None))
        own = items is not None and line == self.line and root is Root.LOCAL
        return Result((chain, items)) if own and items is not None else chain

    def _name_item(self, ins: dis.Instruction) -> None:
        """``for o in things: ...`` in one line: what is done with ``o`` is done with each."""
        item = self._peek(1)
        if ins.opname == "STORE_FAST" and isinstance(item, Result):
            chain = item.chains[0]
            if chain.root is not Root.RETURNED and chain.steps and chain.steps[-1].key is EACH:
                self._items[ins.argval] = (self.line, chain)

    def _pushes(self, ins: dis.Instruction) -> bool:
        """Run an instruction that uses nothing; False for others."""
        name = ins.opname
        if name in _ROOTS:
            if _effect(ins) == 2:  # an empty place, where a function is to be called
                self._stack.append(None)
            self._stack.append(self._variable(_ROOTS[name], ins.argval))
        elif name in _PAIRS:
            self._stack += [Chain(Root.LOCAL, name, line=self.line) for name in ins.argval]
        elif name in ("LOAD_CONST", "LOAD_SMALL_INT"):
            self._stack.append(Constant(ins.argval))
        elif name in ("LOAD_ATTR", "LOAD_METHOD"):
            self._attribute(ins)
        elif name == "FOR_ITER":
            iterated = self._peek(1)
            known = isinstance(iterated, Iterated)
            self._stack.append(Result((iterated.chain.then(True, EACH),)) if known else None)
        elif name == "PUSH_NULL":
            self._stack.append(None)
        else:
            return self._moves(ins)
        return True

    def _moves(self, ins: dis.Instruction) -> bool:
        """Run an instruction that copies values on the stack or changes their order."""
        name = ins.opname
        if name in ("COPY", "DUP_TOP"):
            self._stack.append(self._peek(ins.arg or 1))
        elif name == "SWAP":
            self._swap(ins.arg or 1)
        elif name in _ROTATED or name == "ROT_N":
            self._rotate(_ROTATED.get(name, ins.arg or 1))
        elif name == "DUP_TOP_TWO":
            self._stack += [self._peek(2), self._peek(1)]
        else:
            return False
        return True

    def _other(self, ins: dis.Instruction) -> Iterator[tuple[Chain, Use]]:
        name = ins.opname
        if name in _ITERATES:
            iterated = self._peek(1)
            yield from self._used(1, Use.ITEMS)
            self._stack += [None] * (dis.stack_effect(ins.opcode, ins.arg) + 1)
            if name == "GET_ITER" and isinstance(iterated, Chain):
                self._stack[-1] = Iterated(iterated)
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
            counted = name in _MOVES_ON or (name == "BINARY_OP" and ins.argrepr in ("+=", "-="))
            use = Use.NAMED if name in _KEPT else Use.WHOLE
            use = Use.INSIDE if name == "MATCH_CLASS" else use
            use = Use.OPERAND if name.startswith(_OPERATORS) else use
            yield from self._compared(name)
            first = self._peek(2)
            if counted and isinstance(first, Chain) and not first.steps:
                yield first, Use.COUNTED  # a list that is also elsewhere
            yield from self._used(used + leaves, use, skip_first=counted)
            self._stack += [_COUNTED if counted else None] * leaves
        else:
            self._stack += [None] * effect
        if name in ("RETURN_VALUE", "RAISE_VARARGS", "RERAISE"):
            self._stack.clear()

    def _compared(self, name: str) -> Iterator[tuple[Chain, Use]]:
        """What ``a is b`` and ``a in b`` ask for."""
        one, other = self._peek(2), self._peek(1)
        if name in ("IS_OP", "CONTAINS_OP") and not isinstance(other, Constant):
            yield from _chains(one, Use.COMPARED)
            if name == "IS_OP":
                yield from _chains(other, Use.COMPARED)

    def _call(self, ins: dis.Instruction) -> Iterator[tuple[Chain, Use]]:
        """What is called is named; its arguments may be used in any way."""
        more = _CALLS.get(ins.opname)
        taken = 1 - _effect(ins) if more is None else (ins.arg or 0) + more
        values = [self._pop() for _ in range(taken)][::-1]
        called = next((i for i, value in enumerate(values) if value is not None), taken)
        yield from _stores_by_name(values[called:])
        got, use = self._looks_inside(values[called:])
        for i, value in enumerate(values):
            if got is None or i != called + 1:
                named = i == called and called <= 1
                yield from _chains(value, Use.NAMED if named else use)
        self._stack.append(_result(values[called:]) if got is None else got)

    @staticmethod
    def _looks_inside(values: list[object]) -> tuple[object, Use]:
        """``getattr(x, "name")`` reads what ``x.name`` does, ``asdict(x)`` everything."""
        called = values[0] if values else None
        if not isinstance(called, Chain) or len(values) < 2:
            return None, Use.WHOLE
        name = str(called.steps[-1].key) if called.steps else called.name
        held, key = values[1], values[2] if len(values) > 2 else None
        if name in _COPIES and called.root is Root.GLOBAL:
            return None, Use.INSIDE
        if called.is_global("id"):
            return None, Use.COMPARED
        if name in _TEXTS and called.root is Root.GLOBAL:
            return None, Use.OPERAND
        if name not in _INSIDE or not called.is_global(name):
            return None, Use.WHOLE
        if not isinstance(held, (Chain, Result)):
            return None, Use.WHOLE
        if name == "type":
            return (held.then(False, "__class__") if len(values) == 2 else None), Use.NAMED
        if name in ("vars", "dir"):
            return held.then(*OWN), Use.NAMED
        if isinstance(key, Constant) and type(key.value) is str:
            return held.then(False, key.value), Use.INSIDE
        return (held.then(False, key) if isinstance(key, Chain) else None), Use.INSIDE

    def _attribute(self, ins: dis.Instruction) -> None:
        held = self._pop()
        if isinstance(held, Chain) and held.line != self.line and held.root is not Root.RETURNED:
            self._spans.append((held._replace(line=self.line), Use.NAMED))
        if _effect(ins) == 1:  # a method comes with its object, or with an empty place
            self._stack.append(None)
        known = isinstance(held, (Chain, Result))
        self._stack.append(held.then(False, ins.argval) if known else None)

    def _item(self) -> Iterator[tuple[Chain, Use]]:
        key, held = self._pop(), self._pop()
        yield from _chains(key, Use.WHOLE)
        if not isinstance(held, (Chain, Result)):
            self._stack.append(None)
        elif _is_plain(key):
            self._stack.append(held.then(True, key.value))
        else:
            yield from _chains(held, Use.ITEMS)
            self._stack.append(held.then(True, key if isinstance(key, Chain) else EACH))

    def _store(self, name: str, argument: object) -> Iterator[tuple[Chain, Use]]:
        values = [self._pop() for _ in range(_POPS[name])][::-1]
        use = self._stored(values[0]) if len(values) > 1 else Use.STORED
        key = Constant(argument) if name.endswith("ATTR") else values.pop()
        held = values.pop()
        for value in values:
            yield from _chains(value, Use.KEPT)
        yield from _chains(key, Use.WHOLE)
        for chain in held.chains if isinstance(held, Result) else [held]:
            if isinstance(chain, Chain):
                yield from self._store_in(chain, key, name, use)

    @staticmethod
    def _store_in(held: Chain, key: Any, name: str, use: Use) -> Iterator[tuple[Chain, Use]]:
        if held.root is not Root.RETURNED:
            yield held, Use.NAMED
        if _is_plain(key):
            if name == "DELETE_SUBSCR" and type(key.value) is int:
                yield held, Use.PLACED
            yield held.then(not name.endswith("ATTR"), key.value), use
        elif isinstance(key, Chain) and held.steps and held.steps[-1] == OWN:
            yield held.then(True, key), use
        else:
            yield held, Use.PLACED

    @staticmethod
    def _stored(value: object) -> Use:
        return Use.COUNTED if value is _COUNTED else Use.STORED

    def _store_pair(self, name: str, variables: Any) -> Iterator[tuple[Chain, Use]]:
        yield from self._used(1, Use.NAMED)
        if name == "STORE_FAST_STORE_FAST":
            yield from self._used(1, Use.NAMED)
        elif name == "STORE_FAST_LOAD_FAST":
            self._stack.append(Chain(Root.LOCAL, variables[1], line=self.line))

    def _used(
        self, count: int, use: Use, *, skip_first: bool = False
    ) -> Iterator[tuple[Chain, Use]]:
        values = [self._pop() for _ in range(count)][::-1]
        for value in values[1 if skip_first else 0 :]:
            yield from _chains(value, use)

    def _peek(self, depth: int) -> Any:
        return self._stack[-depth] if 0 < depth <= len(self._stack) else None

    def _pop(self) -> Any:
        return self._stack.pop() if self._stack else None

    def _rotate(self, depth: int) -> None:
        top = self._pop()
        for _ in range(max(depth - 1 - len(self._stack), 0)):
            self._stack.insert(0, None)
        self._stack.insert(len(self._stack) - depth + 1, top)

    def _swap(self, depth: int) -> None:
        missing = depth - len(self._stack)
        self._stack[:0] = [None] * missing
        self._stack[-1], self._stack[-depth] = self._stack[-depth], self._stack[-1]


def _chains(value: Any, use: Use) -> Iterator[tuple[Chain, Use]]:
    """What is used of a value on the stack; of a result alone nothing is known."""
    if isinstance(value, Chain):
        yield value, use
    elif isinstance(value, Result):
        yield from ((chain, use) for chain in value.chains if not _is_bare(chain, use))


def _stores_by_name(values: list[Any]) -> Iterator[tuple[Chain, Use]]:
    """``setattr(x, "name", value)`` stores what ``x.name = value`` does."""
    if len(values) < 3 or not isinstance(values[0], Chain):
        return
    if not values[0].is_global(*_SETTERS):
        return
    held, key = values[1], values[2]
    if not isinstance(held, Chain):
        return
    if isinstance(key, Chain) or _is_plain(key):
        yield held.then(False, key if isinstance(key, Chain) else key.value), Use.STORED
    else:
        yield held.then(*OWN), Use.COUNTED


def _is_bare(chain: Chain, use: Use) -> bool:
    """True for a result of which nothing is asked: what it may come from was looked at."""
    if chain.root is Root.RETURNED and not chain.steps:
        return use not in (Use.ITEMS, Use.WHOLE, Use.OPERAND)
    return bool(chain.steps) and chain.steps[-1].key is EACH


def _is_by_name(called: object) -> bool:
    return isinstance(called, Chain) and called.is_global("getattr", "hasattr", *_SETTERS)


def _is_plain(key: object) -> bool:
    return isinstance(key, Constant) and type(key.value) in (str, int, bool)


def _result(values: list[object]) -> Result:
    """What a call of these gives; first comes what is called."""
    called, *given = values or [None]
    chains = [Chain(Root.RETURNED, "")]
    if isinstance(called, Chain):
        chains = [Chain(Root.RETURNED, f"{called}()")]
        given = [called, *given]
        if called.steps:  # of a container, as `d.get(key)`
            given = [called._replace(steps=called.steps[:-1]), *given]
    for value in given:
        if isinstance(value, Chain):
            chains.append(value.then(True, EACH))
        elif isinstance(value, Result):  # next(iter(things))
            chains += [chain for chain in value.chains if chain.steps[-1:] == (ANY,)]
    return Result(tuple(chains[:_GIVEN]))


def _effect(ins: dis.Instruction) -> int:
    return dis.stack_effect(ins.opcode, ins.arg, jump=False)
