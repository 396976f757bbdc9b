"""The user's own frames while a step is recorded: which lines run, and which functions they are of.

A trace function of the recording's thread hears of each line just before it runs. Where somebody
else traces already, a debugger or a measurement of coverage, a profile function hears of calls and
returns instead, and all lines of a function count as run.
"""

from __future__ import annotations

import collections
import copy
import dataclasses
import functools
import gc
import inspect
import queue
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from functools import partial
from types import CodeType, FrameType, FunctionType, MethodType
from typing import Any, Protocol

import torch
from torch.amp.grad_scaler import GradScaler
from torch.optim import Optimizer, lr_scheduler
from torch.optim.lr_scheduler import LRScheduler

from ..._torch import OpOverload
from ..._torch.listening import is_listening, listening_through
from ..._torch.optimizers import RATE_READERS
from ..._torch.symbolic import also_in
from ...structure import parts_of_partial
from ..chains.chains import Line, Reads, StackUses
from ..chains.resolve import is_library, is_library_file
from ..chains.touched import Touches
from ..ops.generators import DrawingLine
from .line_reads import lines_of
from .stack import first_variable, stack_of
from .uses import Looked, looked_at

_Hears = Callable[[OpOverload, tuple[object, ...], dict[str, object]], object]
_METHODS = (staticmethod, classmethod, MethodType)


class Listener(Protocol):
    """What is told of lines."""

    def before(self, frame: FrameType, number: int, line: Line) -> Touches:
        """A line is about to run."""

    def stored(self, frame: FrameType, found: Touches, stores: Reads) -> None:
        """Something is about to be replaced; ``found`` is what `before` gave."""

    def again(self, frame: FrameType, reads: Reads, found: Touches) -> None:
        """The line has replaced something, and goes on to read these."""

    def after(self, frame: FrameType, line: Line, found: Touches) -> None:
        """It ran."""

    def inside(self, frame: FrameType, line: Line) -> None:
        """A variable was stored that the same line goes on with."""

    def returned(self, frame: FrameType, line: Line, value: object) -> None:
        """A function has returned that a line of ``frame`` calls."""

    def is_cut(self, frame: FrameType, number: int) -> bool:
        """True where code of the user's own gives what the line goes on with."""

    def used(self, frame: FrameType, found: Touches, looked: Looked) -> None:
        """A value is about to be used that lies on the stack; ``found`` is what `before` gave."""

    def handed(self, frame: FrameType, values: list[object]) -> None:
        """A line of ``frame`` calls a function of a library's that reads these objects."""


class _Following:
    """The trace function of one frame: tells of its lines, and of what they do on the stack."""

    def __init__(
        self,
        code: CodeType,
        listener: Listener,
        drawing: DrawingLine,
        returned: Callable[[FrameType, object], None],
    ) -> None:
        self._listener, self._drawing, self._returned = listener, drawing, returned
        self._lines, self._stack = lines_of(code), stack_of(code)
        self._line: Line | None = None
        self._number = 0
        self._found: Touches = []
        """What the listener gave for the line."""
        self._uses: StackUses = {}

    def __call__(self, frame: FrameType, event: str, arg: object) -> _Following:
        if event == "opcode":
            self._instruction(frame)
            return self
        if self._line is not None:
            self._listener.after(frame, self._line, self._found)
            self._drawing.after(frame, self._number, self._line)
        self._number = number = frame.f_lineno
        self._line = line = self._lines.get(number) if event == "line" else None
        if line is not None:
            self._found = self._listener.before(frame, number, line)
            if self._stack is not None:
                cut = self._listener.is_cut(frame, number)
                self._uses = line.uses if cut else line.unnamed
            else:
                _all_stores(self._listener, frame, line, self._found)
            frame.f_trace_opcodes = bool(line.inner or line.stores or self._uses)
        if event == "return":
            self._returned(frame, arg)
        return self

    def _instruction(self, frame: FrameType) -> None:
        line, stack, offset = self._line, self._stack, frame.f_lasti
        if line is None:
            return
        if offset in line.inside:
            self._listener.inside(frame, line)
        if stack is None:
            return
        if offset in line.again:
            self._listener.again(frame, line.again[offset], self._found)
        if offset in line.stores:
            self._listener.stored(frame, self._found, line.stores[offset])
        for use in self._uses.get(offset, ()):
            for looked in looked_at(use, partial(stack.value, frame)):
                self._listener.used(frame, self._found, looked)


def _all_stores(listener: Listener, frame: FrameType, line: Line, found: Touches) -> None:
    """Where no instruction is heard of, all of the line's may run."""
    stores = [row for rows in line.stores.values() for row in rows]
    if stores:
        listener.stored(frame, found, stores)


class Frames:
    """Hears which lines of the user's run during one recording, and in which functions."""

    def __init__(self, listener: Listener) -> None:
        self._listener = listener
        self.drawing = DrawingLine()
        self._ran: set[CodeType] = set()
        self._known: dict[CodeType, FunctionType] = {}
        self.lost = False
        """True when the block took the trace function away: what it read is not known."""

    @contextmanager
    def active(self) -> Iterator[None]:
        """Look at what the block runs, in this thread."""
        first_variable()
        get: Any = sys.gettrace
        put: Any = sys.settrace
        ours: object = self._trace
        if get() is not None:
            get, put, ours = sys.getprofile, sys.setprofile, self._profile
        before = get()
        quietly = listening_through(_untraced(ours)) if put is sys.settrace else nullcontext()
        put(ours)
        try:
            with quietly:
                yield
        finally:
            self.lost = get() != ours  # somebody has come in the block: `pdb.set_trace()`
            if not self.lost:
                put(before)

    def _trace(self, frame: FrameType, event: str, arg: object) -> object:
        if _says_nothing(frame.f_code.co_filename):
            return None
        if not is_listening():
            return None  # what runs in an op runs in replays too
        if _is_library(frame):
            self._handed(frame)
            return None
        self._meet(frame)
        return _Following(frame.f_code, self._listener, self.drawing, self._returned)

    def _profile(self, frame: FrameType, event: str, arg: object) -> None:
        if event == "call" and is_listening() and _is_library(frame):
            self._handed(frame)
        if event in ("call", "return") and not _is_library(frame) and is_listening():
            self._meet(frame)
            for number, line in lines_of(frame.f_code).items():
                found = self._listener.before(frame, number, line)
                _all_stores(self._listener, frame, line, found)
                self._listener.after(frame, line, found)
            if event == "return":
                self._returned(frame, arg)

    def _returned(self, frame: FrameType, value: object) -> None:
        """The user's line that called may read on from what a function has returned."""
        caller = frame.f_back
        while caller is not None and _is_library(caller):
            caller = caller.f_back
        if caller is None or caller.f_code not in self._ran:
            return  # the step is over: the rest of the line is not recorded
        line = lines_of(caller.f_code).get(caller.f_lineno)
        if line is not None and line.returned:
            self._listener.returned(caller, line, value)

    def _handed(self, frame: FrameType) -> None:
        """A library's function may read all that its arguments have, where a line is not seen."""
        code, caller = frame.f_code, frame.f_back
        while caller is not None and caller.f_code.co_filename in _GO_INSIDE:
            caller = caller.f_back
        if not _reads_objects(code.co_filename) or caller is None or _is_library(caller):
            return
        names = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
        self._listener.handed(caller, [frame.f_locals.get(name) for name in names])

    # --- functions --------------------------------------------------------------------------------

    def _meet(self, frame: FrameType) -> None:
        code = frame.f_code
        also_in(frame.f_globals)
        if code not in self._ran:
            self._ran.add(code)
            self.see(_lies_under_its_name(frame))

    def see(self, value: object) -> None:
        """A function that a name leads to may be one that runs."""
        if parts := parts_of_partial(value):
            self.see(parts[0])
            return
        value = getattr(value, "__func__", value) if isinstance(value, _METHODS) else value
        if isinstance(value, FunctionType):
            self._known[value.__code__] = value

    def is_local(self, frame: FrameType, name: str) -> bool:
        """True for a variable of a function around that the step runs too: it is of its own."""
        code: CodeType = frame.f_code
        around = frame.f_back
        while around is not None and name in code.co_freevars:
            if around.f_code in self._ran and code in _inner(around.f_code):
                code = around.f_code
            around = around.f_back
        return name not in code.co_freevars

    def functions(self, *, everywhere: bool) -> list[FunctionType]:
        """Those that ran. ``everywhere``: also others of the same code, wherever they are held.

        To look for that takes 50 ms. What the step itself makes is not looked for.
        """
        found = [function for code, function in self._known.items() if code in self._ran]
        known = set(self._known).union(*map(_inner, self._ran))
        wanted = [code for code in self._ran if everywhere or code not in known]
        wanted = [code for code in wanted if code.co_freevars or _takes_arguments(code)]
        if wanted:
            found += [one for one in gc.get_referrers(*wanted) if isinstance(one, FunctionType)]
        return list({id(one): one for one in found}.values())


def _untraced(ours: object) -> Callable[[_Hears], _Hears]:
    """Nobody need look at each function by which an op is written down.

    Not from Python 3.12 on, where a change of the trace function may instrument code anew.
    """

    def wrap(listener: _Hears) -> _Hears:
        def call(op: OpOverload, args: tuple[object, ...], kwargs: dict[str, object]) -> object:
            if sys.gettrace() != ours:
                return listener(op, args, kwargs)
            sys.settrace(None)
            try:
                return listener(op, args, kwargs)
            finally:
                sys.settrace(ours)

        return call if sys.version_info < (3, 12) else listener

    return wrap


@functools.lru_cache(maxsize=4096)  # a notebook makes code without end
def _inner(code: CodeType) -> frozenset[CodeType]:
    return frozenset(one for one in code.co_consts if isinstance(one, CodeType))


def _takes_arguments(code: CodeType) -> bool:
    return bool(code.co_argcount or code.co_kwonlyargcount)


def _lies_under_its_name(frame: FrameType) -> FunctionType | None:
    """The function that runs: a global of its module, or of the class of its first argument."""
    code = frame.f_code
    places = [frame.f_globals.get(code.co_name)]
    if code.co_argcount:
        first = frame.f_locals.get(code.co_varnames[0])
        kind = first if isinstance(first, type) else type(first)
        places += [vars(cls).get(code.co_name) for cls in kind.__mro__]
    for place in places:
        if isinstance(place, property):
            place = place.fget
        elif isinstance(place, _METHODS):
            place = place.__func__
        if isinstance(place, FunctionType) and place.__code__ is code:
            return place
    return None


def _codes(function: Callable[..., object]) -> tuple[CodeType, ...]:
    code = inspect.unwrap(function).__code__
    return (code, *_inner(code))


_SCHEDULERS = [cls for cls in vars(lr_scheduler).values() if isinstance(cls, type)]
_READERS = {
    id(code): code  # to hash one takes longer than all else that is asked of a frame
    for reader in (
        LRScheduler.get_last_lr,
        LRScheduler.state_dict,
        Optimizer.state_dict,
        Optimizer.__repr__,
        GradScaler.is_enabled,
        GradScaler.get_backoff_factor,
        GradScaler.get_growth_factor,
        GradScaler.get_growth_interval,
        *(vars(cls)[name] for cls in _SCHEDULERS for name in RATE_READERS if name in vars(cls)),
    )
    for code in _codes(reader)
}
"""Functions of torch's that read the user's objects for the user, and do nothing else."""


_OF_OBJECTS = (collections, copy, dataclasses, queue, threading, torch.distributions)
"""Modules whose functions and methods compute from attributes of objects that users make."""
_GO_INSIDE = frozenset({copy.__file__, dataclasses.__file__})
"""The files of those whose functions read what lies in what they are given as well."""


@functools.cache
def _says_nothing(filename: str) -> bool:
    """True where no function reads what is the user's: what is asked of most calls, and first."""
    readers = any(code.co_filename == filename for code in _READERS.values())
    named = not filename.startswith("<")
    return named and is_library_file(filename) and not readers and not _reads_objects(filename)


@functools.cache
def _reads_objects(filename: str) -> bool:
    files = (module.__file__ or "" for module in _OF_OBJECTS)
    return filename.startswith(tuple(one.removesuffix("__init__.py") for one in files))


def _is_library(frame: FrameType) -> bool:
    if id(frame.f_code) in _READERS:
        return False
    file = frame.f_code.co_filename
    if not file.startswith("<"):
        return is_library_file(file)
    module = str(frame.f_globals.get("__name__", ""))  # made by `exec`, as `dataclass` does
    return is_library_file(file) or is_library(module) or module.startswith("namedtuple_")
