"""Arguments that a step does not read, as the ``batch_idx`` of many: no part of any key."""

from __future__ import annotations

import dis
import inspect
import re
import sys
import weakref
from collections.abc import Callable, Collection, Iterator
from types import CodeType, FunctionType
from typing import Any

from ..structure import UNREAD

_READ_ALL = (
    *(locals, vars, dir, eval, exec, breakpoint),
    *(sys._getframe, inspect.currentframe, inspect.stack),
)
"""With these a function may read arguments that it does not name."""
_NAMES_OF_THESE = frozenset({one.__name__ for one in _READ_ALL} | {"f_locals", "set_trace"})
_WORD = re.compile(r"[^\W\d]\w*")


class Unread:
    """The parameters of a function whose arguments its code neither names nor passes on.

    Args:
        signature: of the function, as calls bind to it.
        names: the names of these parameters.
    """

    def __init__(self, signature: inspect.Signature, names: Collection[str]) -> None:
        self.names = frozenset(names)
        parameters = signature.parameters.values()
        kinds = {one.kind: one.name not in self.names for one in parameters}
        by_position = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
        self._read = [one.name not in self.names for one in parameters if one.kind in by_position]
        self._known = {one.name for one in parameters}
        self._rest = kinds.get(inspect.Parameter.VAR_POSITIONAL, True)
        self._others = kinds.get(inspect.Parameter.VAR_KEYWORD, True)
        self._function: Callable[[], Any] = lambda: None
        self._bytecode: CodeType | None = None

    @classmethod
    def of(cls, function: Callable[..., object], signature: inspect.Signature) -> Unread | None:
        """None where all are read, or it is unknown: a wrapper passes its arguments on."""
        inner: Any = getattr(function, "__func__", function)
        if type(inner) is not FunctionType or {"__wrapped__", "__signature__"} & vars(inner).keys():
            return None
        found = cls(signature, signature.parameters.keys() - _read_by(inner))
        found._function, found._bytecode = weakref.ref(inner), inner.__code__
        return found if found.names else None

    def left_out(
        self, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The arguments of a call, in which `UNREAD` stands for those that are not read."""
        function = self._function()
        if function is not None and function.__code__ is not self._bytecode:  # reloaded
            return args, kwargs
        pairs = zip(args, self._read, strict=False)
        kept = [value if read else UNREAD for value, read in pairs]
        rest = args[len(self._read) :] if self._rest else ()
        named = {
            name: UNREAD if name in self.names else value
            for name, value in kwargs.items()
            if self._others or name in self._known
        }
        return (*kept, *rest), named


def _read_by(function: FunctionType) -> frozenset[str]:
    """A superset of the variables that a function may read."""
    code = function.__code__
    return frozenset(code.co_varnames if _reads_all(function) else _named_in(code))


def _reads_all(function: FunctionType) -> bool:
    """True where it may read arguments that it does not name."""
    code = function.__code__
    if _NAMES_OF_THESE & set(code.co_names):
        return True
    known = [function.__globals__.get(name) for name in code.co_names]
    known += [cell.cell_contents for cell in function.__closure__ or () if _is_set(cell)]
    return any(one is other for one in known for other in _READ_ALL)


def _is_set(cell: Any) -> bool:
    try:
        return cell.cell_contents is not None
    except ValueError:
        return False


def _named_in(code: CodeType) -> Iterator[str]:
    """The variables that a function may read, and the words in its texts, which may name others."""
    yield from code.co_cellvars  # a function inside of it may
    if "__class__" in code.co_freevars:  # super()
        yield from code.co_varnames[:1]
    for one in dis.get_instructions(code):
        if "LOAD_FAST" in one.opname:
            yield from one.argval if isinstance(one.argval, tuple) else (str(one.argval),)
        elif "CONST" in one.opname and isinstance(one.argval, str):
            yield from _WORD.findall(one.argval)
        elif isinstance(one.argval, CodeType):
            yield from _named_in(one.argval)
