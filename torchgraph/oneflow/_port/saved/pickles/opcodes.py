"""A pickle as data: its opcodes are read one by one, and only those of plain values are known.

No unpickler runs, nothing is imported and no class is looked up: a global is a name that stands in
a table of ours (`records.MAKERS`), or the pickle is refused.
"""

from __future__ import annotations

import pickletools
from collections.abc import Callable
from typing import Any

from .....errors import CheckpointDamaged
from .records import MAKERS, NAMED_ONLY, Global, made, refused, set_state

_MARK = object()
_NOTHING = frozenset({"PROTO", "FRAME"})
_VALUES = frozenset(
    {"BININT", "BININT1", "BININT2", "LONG1", "LONG4", "BINFLOAT"}
    | {"BINUNICODE", "SHORT_BINUNICODE", "BINUNICODE8"}
    | {"BINBYTES", "SHORT_BINBYTES", "BINBYTES8"}
)
"""Opcodes whose argument is the value."""
_CONSTANTS = {"NONE": None, "NEWTRUE": True, "NEWFALSE": False, "EMPTY_TUPLE": ()}
_TUPLES = {"TUPLE1": 1, "TUPLE2": 2, "TUPLE3": 3}
_PUTS = frozenset({"BINPUT", "LONG_BINPUT"})
_GETS = frozenset({"BINGET", "LONG_BINGET"})


def read(content: bytes) -> Any:
    """What a pickle says: plain values, and records of tensors and arrays.

    Raises:
        CheckpointDamaged: it is cut, or says anything else. Names what.
    """
    machine = _Machine()
    try:
        for opcode, argument, _ in pickletools.genops(content):
            machine.take(opcode.name, argument)
        return machine.result()
    except CheckpointDamaged:
        raise
    except Exception as error:  # a file may hold anything
        raise CheckpointDamaged("its pickle makes no sense.") from error


class _Machine:
    """The stack of a pickle."""

    def __init__(self) -> None:
        self._stack: list[Any] = []
        self._memo: dict[int, Any] = {}

    def result(self) -> Any:
        """What is left at the end."""
        (found,) = self._stack
        if found is _MARK:
            raise refused("its pickle ends too early.")
        return found

    def take(self, name: str, argument: Any) -> None:
        """One opcode."""
        if name in _VALUES:
            self._stack.append(argument)
        elif name in _CONSTANTS:
            self._stack.append(_CONSTANTS[name])
        elif name in _TUPLES:
            self._tuple(len(self._stack) - _TUPLES[name])
        elif name in _PUTS:
            self._memo[argument] = self._top()
        elif name in _GETS:
            self._stack.append(self._memo[argument])
        elif name == "GLOBAL":
            self._global(*argument.split(" "))
        elif name in _OTHERS:
            _OTHERS[name](self)
        elif name not in _NOTHING:
            raise refused(f"its pickle has the opcode {name}, which no checkpoint needs.")

    # --- opcodes ----------------------------------------------------------------------------------

    def memoize(self) -> None:
        self._memo[len(self._memo)] = self._top()

    def stop(self) -> None:
        """Nothing: pickletools reads no further."""

    def mark(self) -> None:
        self._stack.append(_MARK)

    def empty_list(self) -> None:
        self._stack.append([])

    def empty_dict(self) -> None:
        self._stack.append({})

    def append(self) -> None:
        value = self._pop()
        self._list().append(value)

    def appends(self) -> None:
        values = self._marked()
        self._list().extend(values)

    def setitem(self) -> None:
        value = self._pop()
        key = self._pop()
        self._set([key, value])

    def setitems(self) -> None:
        self._set(self._marked())

    def tuple(self) -> None:
        values = self._marked()
        self._stack.append(tuple(values))

    def stack_global(self) -> None:
        name = self._pop()
        module = self._pop()
        self._global(module, name)

    def make(self) -> None:
        arguments = self._pop()
        maker = self._pop()
        self._stack.append(made(maker, arguments))

    def build(self) -> None:
        state = self._pop()
        set_state(self._top(), state)

    # --- its parts --------------------------------------------------------------------------------

    def _top(self) -> Any:
        if self._stack[-1] is _MARK:
            raise refused("its pickle takes a mark for a value.")
        return self._stack[-1]

    def _pop(self) -> Any:
        found = self._top()
        del self._stack[-1]
        return found

    def _marked(self) -> list[Any]:
        """What lies above the last mark."""
        place = len(self._stack) - 1
        while self._stack[place] is not _MARK:
            place -= 1
            if place < 0:
                raise refused("its pickle has no mark where it needs one.")
        found = self._stack[place + 1 :]
        del self._stack[place:]
        return found

    def _tuple(self, start: int) -> None:
        values = self._stack[start:]
        if start < 0 or any(value is _MARK for value in values):
            raise refused("its pickle has too few values for a tuple.")
        self._stack[start:] = [tuple(values)]

    def _list(self) -> list[Any]:
        found = self._top()
        if type(found) is not list:
            raise refused("its pickle appends to what is no list.")
        return found

    def _set(self, values: list[Any]) -> None:
        target = self._top()
        if not isinstance(target, dict) or len(values) % 2:
            raise refused("its pickle sets items of what is no dict.")
        for key, value in zip(values[::2], values[1::2], strict=True):
            # A nested tuple would be hashed by recursion, and a long number is like many others.
            if type(key) not in (str, int, float, bool, type(None)) or (
                type(key) is int and key.bit_length() > 64
            ):
                raise refused(f"it has a {type(key).__name__} as a key, or a very large number.")
            target[key] = value

    def _global(self, module: object, name: object) -> None:
        if type(module) is not str or type(name) is not str:
            raise refused("its pickle names a global that is none.")
        if (module, name) not in MAKERS and (module, name) not in NAMED_ONLY:
            raise refused(f"it holds {module!r:.60}.{name!r:.60}, which is none of OneFlow's.")
        self._stack.append(Global((module, name)))


_OTHERS: dict[str, Callable[[_Machine], None]] = {
    "MEMOIZE": _Machine.memoize,
    "STOP": _Machine.stop,
    "MARK": _Machine.mark,
    "EMPTY_LIST": _Machine.empty_list,
    "EMPTY_DICT": _Machine.empty_dict,
    "APPEND": _Machine.append,
    "APPENDS": _Machine.appends,
    "SETITEM": _Machine.setitem,
    "SETITEMS": _Machine.setitems,
    "TUPLE": _Machine.tuple,
    "STACK_GLOBAL": _Machine.stack_global,
    "REDUCE": _Machine.make,
    "NEWOBJ": _Machine.make,
    "BUILD": _Machine.build,
}
