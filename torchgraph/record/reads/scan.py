"""Abstract interpretation of a code object's bytecode: the stack of chains and constants.

Instructions are followed in order; where paths join, a value is any of theirs. Nothing depends on
CPython's stack layout: an unknown instruction is handled by `dis.stack_effect` alone.
"""

from __future__ import annotations

import dis
import sys
from types import CodeType
from typing import Any

from ..chains.chains import (
    EACH,
    OWN,
    Chain,
    ChainStep,
    Constant,
    Iterated,
    Result,
    Root,
    Use,
    Within,
)
from .values import (
    GIVEN,
    Getter,
    Stack,
    Used,
    chains_of,
    each_of,
    formats,
    getter,
    global_of,
    got_from_own_dict,
    in_own_dict,
    is_plain_key,
    joined,
    looks_inside,
    made_of,
    result_of,
    stores_by_name,
    super_of,
    used,
)

_COUNTED = object()
"""On the stack, the result of an augmented assignment."""

_ROOTS = {
    "LOAD_GLOBAL": Root.GLOBAL,
    "LOAD_NAME": Root.GLOBAL,
    "LOAD_FAST": Root.LOCAL,
    "LOAD_FAST_CHECK": Root.LOCAL,
    "LOAD_FAST_BORROW": Root.LOCAL,
    "LOAD_FAST_AND_CLEAR": Root.LOCAL,
    "LOAD_CLOSURE": Root.LOCAL,  # the cell, for a function that is made; from 3.13 on a LOAD_FAST
    "LOAD_DEREF": Root.FREE,
    "LOAD_CLASSDEREF": Root.FREE,
}
_PAIRS = ("LOAD_FAST_LOAD_FAST", "LOAD_FAST_BORROW_LOAD_FAST_BORROW")
_STORES = frozenset({"STORE_FAST", "STORE_DEREF", "STORE_GLOBAL", "STORE_NAME", "POP_TOP"})
_STORED_NAMES = {"STORE_GLOBAL": Root.GLOBAL, "STORE_DEREF": Root.FREE}
_POPS = {"STORE_ATTR": 2, "STORE_SUBSCR": 3, "DELETE_SUBSCR": 2, "DELETE_ATTR": 1}
"""The number of values that these instructions pop; they push none."""
_LEAVES_NONE = ("LIST_", "SET_", "MAP_", "DICT_", "POP_", "RETURN", "JUMP_IF", "RAISE", "RERAISE")
_ALONE = frozenset(
    {"NOP", "RESUME", "CACHE", "PRECALL", "KW_NAMES", "EXTENDED_ARG", "COPY_FREE_VARS", "MAKE_CELL"}
) | {"NOT_TAKEN", "DELETE_FAST", "DELETE_NAME", "DELETE_GLOBAL", "DELETE_DEREF"}
"""Instructions without an effect on the stack."""
_ENDS = ("RETURN_VALUE", "RETURN_CONST", "RAISE", "RERAISE", "JUMP_FORWARD", "JUMP_A", "JUMP_BACK")
"""Prefixes of instructions that never fall through to the next one."""
JUMPS = frozenset((*dis.hasjrel, *dis.hasjabs))
_BESIDES = {"CALL_KW": 1, "CALL_FUNCTION_KW": 1}
"""Values above the arguments of a call: the names of the keywords."""
_PLACES = 1 if sys.version_info < (3, 11) else 2
"""The number of values below the arguments of a call: the callable, and its receiver."""
_ITERATES = frozenset({"GET_ITER", "UNPACK_SEQUENCE", "UNPACK_EX", "GET_YIELD_FROM_ITER"})
_ROTATED = {"ROT_TWO": 2, "ROT_THREE": 3, "ROT_FOUR": 4}
"""Until Python 3.10: how deep the value on the top is put."""
_MOVES_ON = frozenset({"INPLACE_ADD", "INPLACE_SUBTRACT"})
_OPERATORS = ("COMPARE_OP", "CONTAINS_OP", "BINARY_", "FORMAT_", "CONVERT_VALUE")
_PLAIN_RESULTS = ("COMPARE_OP", "CONTAINS_OP", "IS_OP", "FORMAT_", "UNARY_NOT", "TO_BOOL")
_JUMPS_IF = ("POP_JUMP_IF", "POP_JUMP_FORWARD_IF", "POP_JUMP_BACKWARD_IF")
_TESTS = (f"{jump}_{side}" for jump in _JUMPS_IF for side in ("TRUE", "FALSE"))
_ASK_TRUTH = ("TO_BOOL", "UNARY_NOT", "JUMP_IF_", *_TESTS)
"""Operations that test whether a container is empty."""
_KEPT = frozenset({"IS_OP", "RETURN_VALUE", "YIELD_VALUE", "POP_JUMP_IF_NONE"})


class Scan:
    """The abstract stack: chains, constants, and None for unknown values."""

    def __init__(self, code: CodeType) -> None:
        self.line: int | None = None
        first = code.co_varnames[0] if code.co_argcount else ""
        self._own = Chain(Root.FREE, "__class__"), Chain(Root.LOCAL, first)
        """The class and the first argument that ``super()`` uses."""
        self._stack: Stack = []
        self._waiting: dict[int, Stack] = {}
        """By jump target, the stack at the jump."""
        self._spans: list[tuple[Chain, Use]] = []
        """Attribute reads on a later line than that of their name."""
        self._put: dict[object, tuple[int | None, Any]] = {}
        """By variable or mark of a chain: the line that last stored there, and the value."""

    def step(self, ins: dis.Instruction) -> list[tuple[Chain, Use]]:
        """Interpret one instruction; gives the chains that it uses."""
        self._stack = joined(self._stack, self._waiting.pop(ins.offset, []))
        if ins.opcode in JUMPS:
            self._jump(ins)
        used = [*self._step(ins), *self._spans]
        self._spans.clear()
        if ins.opname.startswith(_ENDS):
            self._stack = []
        return used

    @property
    def top(self) -> object:
        """The top of the stack."""
        return self._peek(1)

    def puts(self, chain: Chain) -> tuple[object, ...]:
        """The value just stored in a chain's place: a constant, or None for a computed one."""
        _, value = self._put.get(chain.mark if chain.steps else chain.name, (None, chain))
        if isinstance(value, Constant):
            return (value,)
        return () if isinstance(value, Chain) else (None,)

    def _jump(self, ins: dis.Instruction) -> None:
        if ins.argval <= ins.offset:
            return
        stack, effect = self._stack, dis.stack_effect(ins.opcode, ins.arg, jump=True)
        stack = [*stack, *[None] * effect] if effect >= 0 else stack[:effect]
        self._waiting[ins.argval] = joined(stack, self._waiting.get(ins.argval, []))

    def _step(self, ins: dis.Instruction) -> Used:
        name = ins.opname
        if name in _ALONE or self._pushes(ins):
            return
        if name == "BINARY_SUBSCR" or (name == "BINARY_OP" and ins.argrepr == "[]"):
            yield from self._item()
        elif name.startswith("STORE_FAST_"):
            yield from self._store_pair(name, ins.argval)
        elif name in _STORES:
            if name != "POP_TOP":
                self._put[ins.argval] = self.line, self._peek(1)
            if name in _STORED_NAMES:
                yield Chain(_STORED_NAMES[name], ins.argval), self._stored(self._peek(1))
            yield from self._used(1, Use.KEPT if name in _STORED_NAMES else Use.NAMED)
        elif name.startswith("LOAD_SUPER"):
            yield from self._super_attribute(ins)
        elif name.startswith("MATCH_"):
            yield from self._match(ins)
        else:
            yield from self._other(ins)

    def _variable(self, root: Root, name: str) -> Chain | Result:
        """The value of a variable, which the same line may have stored."""
        chain = Chain(root, name, line=self.line)
        line, value = self._put.get(name, (None, None))
        if line is None or line != self.line or root is Root.GLOBAL:
            return chain
        return Result((chain, *chains_of(value))[:GIVEN])

    def _pushes(self, ins: dis.Instruction) -> bool:
        """Interpret an instruction that only pushes; False for others."""
        name = ins.opname
        if name in _ROOTS:
            if _effect(ins) == 2:  # an empty place, where a function is to be called
                self._stack.append(None)
            self._stack.append(self._variable(_ROOTS[name], ins.argval))
        elif name in _PAIRS:
            self._stack += [self._variable(Root.LOCAL, name) for name in ins.argval]
        elif name in ("LOAD_CONST", "LOAD_SMALL_INT"):
            self._stack.append(Constant(ins.argval))
        elif name in ("LOAD_ATTR", "LOAD_METHOD"):
            self._attribute(ins)
        elif name == "FOR_ITER":
            iterated = self._peek(1)
            self._stack.append(each_of(iterated) if isinstance(iterated, Iterated) else None)
        elif name == "PUSH_NULL":
            self._stack.append(None)
        else:
            return self._imports(ins) or self._moves(ins)
        return True

    def _imports(self, ins: dis.Instruction) -> bool:
        """Interpret an instruction of ``from module import name``."""
        if ins.opname == "IMPORT_FROM":
            self._stack.append(self._then(self._peek(1), False, ins.argval))
        elif ins.opname == "IMPORT_NAME":
            level, names = self._take(2)
            dots = "." * getattr(level, "value", 0)
            named = getattr(names, "value", None) is not None
            self._stack.append(Chain(Root.MODULE, dots + ins.argval) if named else None)
        else:
            return False
        return True

    def _moves(self, ins: dis.Instruction) -> bool:
        """Interpret an instruction that copies or reorders stack values."""
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

    def _other(self, ins: dis.Instruction) -> Used:
        name = ins.opname
        if name in _ITERATES:
            iterated = self._peek(1)
            yield from self._used(1, Use.ITEMS)
            known = bool(chains_of(iterated))
            if name == "GET_ITER":
                self._stack.append(Iterated(tuple(chains_of(iterated))) if known else None)
            else:
                more = dis.stack_effect(ins.opcode, ins.arg) + 1
                self._stack += [each_of(iterated) if known else None] * more
        elif name in _POPS:
            yield from self._store(name, ins.argval)
        elif name.startswith("CALL") and "INTRINSIC" not in name:
            yield from self._call(ins)
        else:
            yield from self._operate(ins)

    def _operate(self, ins: dis.Instruction) -> Used:
        name, effect = ins.opname, _effect(ins)
        if effect > 0:
            self._stack += [None] * effect
            return
        leaves = 0 if name.startswith(_LEAVES_NONE) else 1
        counted = name in _MOVES_ON or (name == "BINARY_OP" and ins.argrepr in ("+=", "-="))
        use = Use.NAMED if name in _KEPT else Use.WHOLE
        use = Use.OPERAND if name.startswith(_OPERATORS) else use
        use = Use.ITEMS if name.startswith(_ASK_TRUTH) else use
        yield from self._compared(name)
        first = self._peek(2)
        if counted and isinstance(first, Chain) and not first.steps:
            yield first, Use.COUNTED  # a list with aliases
        values = self._take(max(leaves - effect, 1))  # 3.14 counts a result with the caller
        for value in values[1 if counted else 0 :]:
            yield from used(value, use)
        if name.startswith(("LIST_", "SET_", "MAP_", "DICT_")):
            self._fill(values)
        elif leaves:
            plain = name.startswith(_PLAIN_RESULTS)
            made = None if plain else Result((Chain(Root.RETURNED, ""), *made_of(values).chains))
            self._stack.append(_COUNTED if counted else made)

    def _fill(self, values: list[object]) -> None:
        """Interpret the filling of a list, set or dict display below on the stack."""
        made = made_of([self._peek(1), *values])
        if self._stack and made.chains:
            self._stack[-1] = made

    def _compared(self, name: str) -> Used:
        """The uses in ``a is b`` and ``a in b``."""
        one, other = self._peek(2), self._peek(1)
        if name == "IS_OP" and not _is_single(other):
            yield from used(one, Use.COMPARED)
            yield from used(other, Use.COMPARED)
        elif name == "CONTAINS_OP" and not isinstance(other, Constant):
            yield from used(one, Use.AMONG)
            if (found := in_own_dict(other, one)) is not None:
                yield from used(found, Use.AMONG)
                self._stack[-1] = None

    def _match(self, ins: dis.Instruction) -> Used:
        """Interpret a pattern match, which keeps its subject on the stack."""
        if ins.opname == "MATCH_CLASS":
            held, kind, names = self._take(3)
            yield from used(held, Use.INSIDE)
            yield from used(kind, Use.NAMED)
            chains = [c.then(*OWN).then(True, EACH) for c in chains_of(held)]
            named: Any = names.value if isinstance(names, Constant) else ()
            chains = [c.then(False, name) for c in chains_of(held) for name in named] + chains
            self._stack.append(Result(tuple(chains[:GIVEN])) if chains else None)
            return
        keys = ins.opname == "MATCH_KEYS"
        held = self._peek(2 if keys else 1)
        yield from used(held, Use.WHOLE)
        self._stack.append(made_of([held]) if keys else None)
        self._stack += [None] * (_effect(ins) - 1)

    def _super_attribute(self, ins: dis.Instruction) -> Used:
        """``super().name``, from Python 3.12 on."""
        _, kind, held = self._take(3)
        found = super_of(kind, held)
        yield from used(held, Use.NAMED)
        if _effect(ins) == -1:  # a method comes with its object
            self._stack.append(None)
        self._stack.append(None if found is None else found.then(False, ins.argval))

    def _call(self, ins: dis.Instruction) -> Used:
        """Interpret a call: the callable is named, its arguments may be used in any way."""
        name = ins.opname
        places = 2 if name == "CALL_METHOD" else _PLACES
        ex = name == "CALL_FUNCTION_EX"
        besides = _BESIDES.get(name, 0)
        taken = 1 - _effect(ins) if ex else places + (ins.arg or 0) + besides
        values = self._take(taken)
        given = values[places : taken - besides]
        below = [value for value in values[:places] if value is not None]
        called = below[0] if below else None
        if below[1:]:  # a decorator's argument lies where the object of a method does
            given = [*below[1:], *given]
        if (found := got_from_own_dict(called, given)) is not None:
            yield from (one for value in given[1:] for one in used(value, Use.NAMED))
            self._stack.append(found)
            return
        yield from stores_by_name(called, given)
        for one in (called, *given):
            if isinstance(one, Getter):
                yield from one.reads(given)
        got, use = looks_inside(called, given, self._own)
        yield from used(called, Use.NAMED)
        for i, value in enumerate(given):
            if got is None or i:
                yield from used(value, use)
        if got is None:
            known = global_of(called, given[0]) if given else None
            got = known or getter(called, given) or result_of(called, given)
        self._stack.append(got)

    def _attribute(self, ins: dis.Instruction) -> None:
        held = self._pop()
        if isinstance(held, Chain) and held.line != self.line and held.root is not Root.RETURNED:
            self._spans.append((held._replace(line=self.line), Use.NAMED))
        if _effect(ins) == 1:  # a method comes with its object, or with an empty place
            self._stack.append(None)
        form = isinstance(held, Constant) and ins.argval == "format"
        self._stack.append(formats(held) if form else self._then(held, False, ins.argval))

    def _then(self, held: object, item: bool, key: object) -> object:
        """The chain with one more lookup; a value stored by the same line replaces it.

        A number that it has moved on there is read, as it was before, by who reads it now.
        """
        if not isinstance(held, (Chain, Result)):
            return None
        found = held.then(item, key)
        mark = found.mark if isinstance(found, Chain) else None
        line, value = self._put.get(mark, (None, _COUNTED))
        return found if value is _COUNTED or line != self.line else value

    def _item(self) -> Used:
        key, held = self._pop(), self._pop()
        yield from used(key, Use.WHOLE)
        if not isinstance(held, (Chain, Result)):
            self._stack.append(None)
        elif (named := global_of(held, key)) is not None:
            self._stack.append(named)
        elif is_plain_key(key):
            self._stack.append(self._then(held, True, key.value))
        else:
            if in_own_dict(held, key) is None:
                yield from used(held, Use.ITEMS)
            self._stack.append(held.then(True, key if isinstance(key, Chain) else Within(None)))

    def _store(self, name: str, argument: object) -> Used:
        values = self._take(_POPS[name])
        use = self._stored(values[0]) if len(values) > 1 else Use.STORED
        key = Constant(argument) if name.endswith("ATTR") else values.pop()
        held = values.pop()
        for value in values:
            yield from used(value, Use.KEPT)
        yield from used(key, Use.WHOLE)
        if isinstance(held, Chain) and is_plain_key(key) and values:
            put = held.then(not name.endswith("ATTR"), key.value)
            self._put[put.mark] = self.line, values[0]
        for chain in chains_of(held):
            yield from self._store_in(chain, key, name, use)
            if chain.steps and isinstance(chain.steps[-1].key, Within):
                for rows in ((EACH,), (EACH, EACH)):  # `matrix[i + 1][0] = x`, a level deeper too
                    steps = (*chain.steps[:-1], *(ChainStep(True, row) for row in rows))
                    yield from self._store_in(chain._replace(steps=steps), key, name, use)

    @staticmethod
    def _store_in(held: Chain, key: Any, name: str, use: Use) -> Used:
        if held.root is not Root.RETURNED:
            yield held, Use.NAMED
        if is_plain_key(key):
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

    def _store_pair(self, name: str, variables: Any) -> Used:
        stored = variables if name == "STORE_FAST_STORE_FAST" else variables[:1]
        for variable in stored:
            self._put[variable] = self.line, self._peek(1)
            yield from self._used(1, Use.NAMED)
        if name == "STORE_FAST_LOAD_FAST":
            self._stack.append(self._variable(Root.LOCAL, variables[1]))

    def _used(self, count: int, use: Use) -> Used:
        for value in self._take(count):
            yield from used(value, use)

    def _take(self, count: int) -> list[Any]:
        return [self._pop() for _ in range(count)][::-1]

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


def _effect(ins: dis.Instruction) -> int:
    return dis.stack_effect(ins.opcode, ins.arg, jump=False)


def _is_single(value: object) -> bool:
    """True for a constant that is no number, such as None."""
    return isinstance(value, Constant) and type(value.value) not in (int, float)
