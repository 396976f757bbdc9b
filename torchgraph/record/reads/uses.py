"""What an instruction does with the values on the stack, whatever they are.

`scan` knows many of them by name before a line runs. What came out of a property, an operator, a
conditional expression or a function of C has no name: it is looked at as it lies there.
"""

from __future__ import annotations

import dis
import functools
import sys
from collections.abc import Callable, Iterator
from types import BuiltinFunctionType
from typing import NamedTuple

from ...guards import ABSENT
from ..chains.behind import with_key
from ..chains.chains import EACH, ChainStep, StackUse, Use

_ITEM = ChainStep(True, None)
_ONE = (StackUse(1, Use.WHOLE),)
_TEXT = (StackUse(1, Use.OPERAND),)
_BOTH = (StackUse(2, Use.OPERAND), StackUse(1, Use.OPERAND))
_ITEMS = (StackUse(1, Use.ITEMS),)
_USES = {
    "BINARY_SUBSCR": (StackUse(2, Use.NAMED, _ITEM, key=1), StackUse(1, Use.WHOLE)),
    "BINARY_SLICE": (StackUse(3, Use.WHOLE),),
    "IS_OP": (StackUse(2, Use.COMPARED), StackUse(1, Use.COMPARED)),
    "MATCH_CLASS": (
        StackUse(3, Use.INSIDE),
        StackUse(3, Use.WHOLE, ChainStep(False, None), key=1),
    ),
    "MATCH_KEYS": (StackUse(2, Use.WHOLE),),
    "MATCH_MAPPING": _ONE,
    "MATCH_SEQUENCE": _ONE,
    "STORE_DEREF": (StackUse(1, Use.KEPT),),
    "STORE_GLOBAL": (StackUse(1, Use.KEPT),),
}
_BEGINNINGS = {
    **dict.fromkeys(("FORMAT_", "CONVERT_VALUE"), _TEXT),
    **dict.fromkeys(("UNARY_", "POP_JUMP", "JUMP_IF", "TO_BOOL"), _ONE),
    **dict.fromkeys(("GET_LEN", "LIST_", "SET_", "DICT_", "MAP_ADD"), _ONE),
    **dict.fromkeys(("COMPARE_OP", "CONTAINS_OP", "BINARY_", "INPLACE_"), _BOTH),
    **dict.fromkeys(("GET_ITER", "UNPACK_", "GET_YIELD_FROM_ITER"), _ITEMS),
}
"""By how the names of instructions begin."""
_ATTRIBUTES = frozenset({"LOAD_ATTR", "LOAD_METHOD", "IMPORT_FROM"})
_STORED = {"STORE_ATTR": 1, "DELETE_ATTR": 1, "STORE_SUBSCR": 2, "DELETE_SUBSCR": 2}
"""Where on the stack what they store into is."""
_BY_NAME = (
    (getattr, Use.INSIDE),
    (hasattr, Use.INSIDE),
    (setattr, Use.STORED),
    (delattr, Use.STORED),
)
_NAMES_ABOVE = frozenset({"CALL_KW", "CALL_FUNCTION_KW"})
"""Calls with the names of their keyword arguments on the stack, above these."""


def stack_uses(ins: dis.Instruction, stored: Use) -> tuple[StackUse, ...]:
    """What an instruction does. ``stored``: what becomes of a place that it stores into."""
    name = ins.opname
    if name in _ATTRIBUTES:
        return (StackUse(1, Use.NAMED, ChainStep(False, ins.argval)),)
    if name == "LOAD_SUPER_ATTR":  # from Python 3.12 on
        return (StackUse(1, Use.NAMED, ChainStep(False, ins.argval), key=2, called=3),)
    if name in _STORED:
        item = name.endswith("SUBSCR")
        step = _ITEM if item else ChainStep(False, ins.argval)
        kept = [StackUse(_STORED[name] + 1, Use.KEPT)] if name.startswith("STORE_") else []
        return (*kept, StackUse(_STORED[name], stored, step, key=int(item)))
    if name.startswith("CALL"):
        return () if "INTRINSIC" in name else _call(ins)
    if name == "BINARY_OP" and ins.argrepr == "[]":
        name = "BINARY_SUBSCR"
    if name.startswith("BUILD_") and name != "BUILD_STRING":
        return _built(name, ins.arg or 0)
    begins = (uses for start, uses in _BEGINNINGS.items() if name.startswith(start))
    return _USES.get(name) or next(begins, ())


def _built(name: str, count: int) -> tuple[StackUse, ...]:
    """What is put into a new tuple, list, set or dict."""
    first = 2 if name == "BUILD_CONST_KEY_MAP" else 1
    values = 2 * count if name == "BUILD_MAP" else count
    return tuple(StackUse(n, Use.WHOLE) for n in range(first, first + values))


def _call(ins: dis.Instruction) -> tuple[StackUse, ...]:
    name, count = ins.opname, ins.arg or 0
    if name == "CALL_FUNCTION_EX":
        given = 1 + (count & 1)
        called = _called(given + 1, 1 if sys.version_info < (3, 13) else 2)
        arguments = (StackUse(n, Use.WHOLE) for n in range(1, given + 1))
        return *arguments, *called, *_by_name(given, 0, called)
    above = 1 if name in _NAMES_ABOVE else 0
    arguments = (StackUse(above + n, Use.WHOLE) for n in range(1, count + 1))
    places = 1 if sys.version_info < (3, 11) and name != "CALL_METHOD" else 2
    called = _called(above + count + 1, places)
    by_name = _by_name(count, count - 1, called) if count in (2, 3) and not above else ()
    return *arguments, *called, *by_name


def _by_name(number: int, key: int, called: tuple[StackUse, ...]) -> Iterator[StackUse]:
    """``getattr(x, "name")``, if that is what is called; ``key`` 0: its arguments are a tuple."""
    for use in called:
        yield StackUse(number, Use.NAMED, ChainStep(False, None), key=key, called=use.number)


def _called(first: int, places: int) -> tuple[StackUse, ...]:
    """What is called, and what a method is called of."""
    return tuple(StackUse(n, Use.NAMED) for n in range(first, first + places))


class Looked(NamedTuple):
    """What an instruction does with a value, now that its stack can be read."""

    value: object
    use: Use
    steps: tuple[ChainStep, ...] = ()
    """To what it uses, from the value on."""


def looked_at(at: StackUse, read: Callable[[int], object]) -> Iterator[Looked]:
    """What is used there; nothing where that does not lie on the stack.

    Args:
        read: the value of a number, from the top of the stack; `ABSENT` for none.
    """
    if at.called and at.step is not None and at.step.key is not None:
        if read(at.called) is super:
            yield Looked(super(read(at.key), read(at.number)), at.use, (at.step,))
        return
    if at.called:
        arguments = [read(n) for n in range(at.number, 0, -1)] if at.key else read(at.number)
        if isinstance(arguments, (list, tuple)):
            yield from _looked_by_name(read(at.called), *arguments[:3])
        return
    value = read(at.number)
    if value is ABSENT:
        return
    key = read(at.key) if at.key else None
    if at.step is None:
        yield Looked(value, at.use)
    elif isinstance(key, tuple) and not at.step.item:  # a class pattern names several
        yield from (Looked(value, at.use, (ChainStep(False, name),)) for name in key)
    else:
        step = with_key(at.step._replace(key=key)) if at.key else at.step
        yield Looked(value, at.use, (ChainStep(True, EACH) if step is None else step,))


def _looked_by_name(called: object = None, *given: object) -> Iterator[Looked]:
    if called is functools.reduce and len(given) == 3 and given[0] is getattr:
        _, names, value = given
        if isinstance(names, (list, tuple)):
            yield Looked(value, Use.INSIDE, tuple(ChainStep(False, str(name)) for name in names))
    elif isinstance(called, BuiltinFunctionType) and len(given) > 1:
        use = next((use for one, use in _BY_NAME if called is one), None)
        if use is not None:
            yield Looked(given[0], use, (ChainStep(False, str(given[1])),))
