"""Tracing of the user's frames during a recording: the lines that run, and their functions.

A trace function of the recording's thread is called before each line. Where another one is set
already, by a debugger or coverage, a profile function sees calls and returns instead, and all lines
of a function count as run.
"""

from __future__ import annotations

import builtins
import collections
import collections.abc
import contextlib
import copy
import dataclasses
import functools
import gc
import inspect
import itertools
import os
import queue
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from multiprocessing.pool import Pool
from types import CodeType, FrameType, FunctionType, MethodType
from typing import Any, Protocol
from weakref import WeakSet

import torch
from torch.amp.grad_scaler import GradScaler
from torch.optim import Optimizer, lr_scheduler
from torch.optim.lr_scheduler import LRScheduler

from ..._torch import OpOverload
from ..._torch.listening import is_listening, listening_through
from ..._torch.names import liftable, standing_for
from ..._torch.optimizers import RATE_READERS
from ..._torch.symbolic import also_in
from ...environment import chosen
from ...errors import GraphError, SourceLine, user_frames
from ...guards import ABSENT
from ...objects import is_a
from ...structure import parts_of_partial
from ..chains.chains import Chain, ChainStep, Line, Root, Use
from ..chains.resolve import is_library, is_library_file
from ..chains.touched import Touches
from ..ops.generators import DrawingLine
from ..tape.number import node_of
from .line_reads import lines_of, running

_Hears = Callable[[OpOverload, tuple[object, ...], dict[str, object]], object]
_METHODS = (staticmethod, classmethod, MethodType)


class IdentityAsked(TypeError):
    """A line compares a symbolic number by identity, which needs the plain object."""


class Listener(Protocol):
    """The callbacks of `Frames` for lines."""

    def before(self, frame: FrameType, number: int, line: Line) -> Touches:
        """Before a line runs; gives the rows that it may assign."""

    def again(self, frame: FrameType, found: Touches) -> None:
        """Before the line calls a function, after it may have assigned something."""

    def after(self, frame: FrameType, line: Line, found: Touches) -> None:
        """After the line."""

    def returned(
        self, frame: FrameType, line: Line, value: object, found: Touches, by: str
    ) -> None:
        """After a function returned to a line of ``frame``."""

    def looked_up(
        self, frame: FrameType, value: object, chain: Chain, use: Use, found: Touches
    ) -> None:
        """Before a builtin looks up an attribute for a line of ``frame``."""

    def handed(self, frame: FrameType, values: list[object], *, known: bool) -> None:
        """A line of ``frame`` calls a library function; ``known``: it reads these values."""


class _Following:
    """The trace function of one frame."""

    def __init__(self, frames: Frames, code: CodeType) -> None:
        self._frames, self._lines = frames, lines_of(code)
        self.line: Line | None = None
        """The running line, where its reads count."""
        self._number = 0
        self.found: Touches = []
        """The listener's result for the line."""

    def __call__(self, frame: FrameType, event: str, arg: Any) -> _Following:
        try:
            self._on_event(frame, event, arg)
        except Exception as error:  # whatever it is, the user's line has not raised it
            if not self._frames.keeps(error):
                raise
        return self

    def _on_event(self, frame: FrameType, event: str, arg: Any) -> None:
        frames = self._frames
        if event == "exception" and not _lacks_an_attribute(arg[1]):
            frames.raised.add((arg[0], frame.f_code, frame.f_lineno))
        if self.line is not None:
            frames.listener.after(frame, self.line, self.found)
            frames.drawing.after(frame, self._number, self.line)
        self._number = number = frame.f_lineno
        self.line = line = running(self._lines.get(number), frame) if event == "line" else None
        if line is not None and frames.passes_over(frame, number):
            self.line = line = None
        if line is not None:
            self.found = frames.listener.before(frame, number, line)
        if event == "return":
            frames.returned(frame, arg)


def _lacks_an_attribute(error: object) -> bool:
    """True where an object other than a number lacks an attribute, whatever the numbers are."""
    asked = getattr(error, "obj", None) if isinstance(error, AttributeError) else None
    return asked is not None and node_of(asked) is None


_Trace = Callable[[Any, FrameType, Any, Any], Any]


def _quietly(observe: _Trace) -> _Trace:
    """Keep errors of a method of `Frames` out of the user's line."""

    @functools.wraps(observe)
    def call(self: Frames, frame: FrameType, what: Any, arg: Any) -> Any:
        try:
            return observe(self, frame, what, arg)
        except Exception as error:  # whatever it is, the user's line has not raised it
            if not self.keeps(error):
                raise
            return None

    return call


_USES = {
    "getattr": Use.NAMED,
    "hasattr": Use.NAMED,
    "setattr": Use.STORED,
    "delattr": Use.STORED,
}


_Looked = tuple[object, Chain, Use]
"""A value, the attribute that is read or assigned, and the use."""
_Observer = Callable[[FrameType, _Looked, object], None]
"""Called with the frame, the lookup, and the result; `ABSENT` before there is one."""


class Frames:
    """The tracer of one recording: the lines and functions of the user's that run."""

    def __init__(self, listener: Listener) -> None:
        self.listener = listener
        self.drawing = DrawingLine()
        self._ran: set[CodeType] = set()
        self.raised: set[tuple[type[BaseException], object, int]] = set()
        """(class, code, line) of exceptions in the user's lines."""
        self._known: dict[CodeType, WeakSet[FunctionType]] = {}
        """By code, functions held weakly: an inner function would keep its variables alive."""
        self.passes_over: Callable[[FrameType, int], bool] = lambda frame, number: False
        """True for a line whose reads do not count."""
        self._looking = False
        """True during a lookup on behalf of a line, whose own code is not traced."""
        self.failed: Exception | None = None
        """The error that ended the tracing: the reads are unknown then."""
        self.hands_over: tuple[str, SourceLine | None] | None = None
        """The first function that handed work to another thread of Python's, and the line."""
        self.lost = False
        """True when the block replaced the trace function: the reads are unknown then."""

    @contextmanager
    def active(self) -> Iterator[None]:
        """Trace the block, in this thread."""
        get: Any = sys.gettrace
        put: Any = sys.settrace
        ours: object = self._trace
        if get() is not None:
            get, put, ours = sys.getprofile, sys.setprofile, self._profile
        before = get()
        quietly = listening_through(_untraced(ours)) if put is sys.settrace else nullcontext()
        put(ours)
        try:
            resting = liftable(functools.partial(put, ours), functools.partial(put, before))
            with quietly, resting, _looked_up_by(self._looks_up):
                yield
        finally:
            self.lost = get() != ours  # replaced in the block: `pdb.set_trace()`
            if not self.lost:
                put(before)

    def keeps(self, error: Exception) -> bool:
        """Keep an error of the tracing out of the user's lines, except in strict checks."""
        observer = isinstance(error, (IdentityAsked, GraphError))  # for those who called the step
        if observer or chosen("TORCHGRAPH_VERIFY", "fast") == "strict":
            return False
        self.failed = self.failed or error.with_traceback(None)
        return True

    @_quietly
    def _trace(self, frame: FrameType, event: str, arg: object) -> object:
        if id(frame.f_code) in _HAND_OVER and self.hands_over is None:
            self._hands_over(frame)
        called = frame.f_back is not None and type(frame.f_back.f_trace) is _Following
        if self._looking or (not called and _says_nothing(frame.f_code.co_filename)):
            return None
        if not is_listening():
            return None  # code inside of an op runs in replays too
        if _is_library(frame):
            self._handed(frame)
            return None
        self._meet(frame)
        caller = _caller(frame)
        around = caller.f_trace if caller is not None else None
        if caller and isinstance(around, _Following) and around.line and around.found:
            self.listener.again(caller, around.found)
        return _Following(self, frame.f_code)

    @_quietly
    def _profile(self, frame: FrameType, event: str, arg: object) -> None:
        if self._looking:
            return
        if event == "call" and id(frame.f_code) in _HAND_OVER and self.hands_over is None:
            self._hands_over(frame)
        if event == "call" and is_listening() and _is_library(frame):
            self._handed(frame)
        if event in ("call", "return") and not _is_library(frame) and is_listening():
            self._meet(frame)
            for number, line in lines_of(frame.f_code).items():
                self.listener.after(frame, line, self.listener.before(frame, number, line))
            if event == "return":
                self.returned(frame, arg)

    def _hands_over(self, frame: FrameType) -> None:
        if is_listening() and not _is_called_here(frame):
            lines = user_frames(1, _caller(frame) or frame)
            words = _HAND_OVER[id(frame.f_code)][1]
            self.hands_over = words, lines[0] if lines else None

    def returned(self, frame: FrameType, value: object) -> None:
        """Pass a return value to the calling line of the user's."""
        caller, code = _caller(frame), frame.f_code
        if code.co_name == "__init__" and code.co_argcount:  # the line receives the new object
            value = frame.f_locals.get(code.co_varnames[0])
        if caller is not None:
            self._gets(caller, value, code.co_name)

    def _gets(self, caller: FrameType, value: object, by: str) -> None:
        found: Touches = []
        line = None
        if isinstance(caller.f_trace, _Following):
            line, found = caller.f_trace.line, caller.f_trace.found
        elif caller.f_code in self._ran:  # else the step is over
            line = lines_of(caller.f_code).get(caller.f_lineno)
        if line is not None:
            self.listener.returned(caller, line, value, found, by)

    @_quietly
    def _looks_up(self, frame: FrameType, looked: _Looked, value: object) -> None:
        """Handle `getattr` and its like, called by ``frame``: before, then with the result."""
        line = frame.f_trace
        if not isinstance(line, _Following) or line.line is None:
            return
        self._looking = True
        try:
            if value is ABSENT:
                self.listener.looked_up(frame, *looked, line.found)
            else:
                self._gets(frame, value, "")
        finally:
            self._looking = False

    def _handed(self, frame: FrameType) -> None:
        """Report the arguments of a library function, which may read all of them."""
        code, caller = frame.f_code, frame.f_back
        if code.co_filename == __file__:
            return  # `getattr` and its like, which `_looks_up` handles
        while caller is not None and caller.f_code.co_filename in _GO_INSIDE:
            caller = caller.f_back
        if caller is None or _is_library(caller):
            return
        known = _reads_objects(code.co_filename)
        self.listener.handed(caller, _given(frame), known=known)

    # --- functions --------------------------------------------------------------------------------

    def _meet(self, frame: FrameType) -> None:
        code = frame.f_code
        also_in(frame.f_globals, code)
        first = code not in self._ran
        if first:
            self._ran.add(code)
            self.see(_lies_under_its_name(frame))
        if (first or code.co_freevars) and frame.f_back is not None and _is_library(frame.f_back):
            for value in list(frame.f_back.f_locals.values()):  # who calls it holds it
                self.see(value)

    def see(self, value: object) -> None:
        """Note a function that a name leads to, which may be one that runs."""
        if parts := parts_of_partial(value):
            self.see(parts[0])
            return
        value = getattr(value, "__func__", value) if is_a(value, _METHODS) else value
        if not is_a(value, FunctionType):
            return
        known = self._known.setdefault(value.__code__, WeakSet())
        if value not in known:
            known.add(value)
            self.see(vars(value).get("__wrapped__"))

    def is_local(self, frame: FrameType, name: str) -> bool:
        """True for a closure variable of a function that the step runs itself."""
        code: CodeType = frame.f_code
        around = frame.f_back
        while around is not None and name in code.co_freevars:
            if around.f_code in self._ran and code in _inner(around.f_code):
                code = around.f_code
            around = around.f_back
        return name not in code.co_freevars

    def functions(self) -> list[FunctionType]:
        """The functions that ran, as far as names or their callers lead to them."""
        ran = (found for code, found in self._known.items() if code in self._ran)
        return [function for found in ran for function in found]

    def nameless(self) -> list[FunctionType]:
        """The closures that ran without a name that leads to them.

        Searches all objects of the process, in some hundredths of a second.
        """
        codes = [code for code in self._ran if code.co_freevars and not self._known.get(code)]
        holders = gc.get_referrers(*codes) if codes else []
        return [one for one in holders if isinstance(one, FunctionType) and one.__code__ in codes]


@contextmanager
def _looked_up_by(observer: _Observer) -> Iterator[None]:
    """Patch `getattr` and its like in the block."""
    made = {name: _telling(getattr(builtins, name), use, observer) for name, use in _USES.items()}
    with standing_for(vars(builtins), made):
        yield


def _telling(plain: Any, use: Use, observer: _Observer) -> Callable[..., object]:
    def function(*given: Any) -> object:
        frame = sys._getframe(1)
        if frame.f_trace is None or len(given) < 2:
            return plain(*given)
        name = type(given[0]).__name__
        looked = given[0], Chain(Root.RETURNED, name, (ChainStep(False, str(given[1])),)), use
        observer(frame, looked, ABSENT)
        value = plain(*given)
        observer(frame, looked, value)
        return value

    function.__name__ = function.__qualname__ = plain.__name__
    function.__module__, function.__doc__ = "builtins", plain.__doc__
    return function


def _given(frame: FrameType) -> list[object]:
    """The arguments of a function call."""
    code, values = frame.f_code, frame.f_locals
    count = code.co_argcount + code.co_kwonlyargcount
    found = [values.get(name) for name in code.co_varnames[:count]]
    if not code.co_filename.startswith(_CALL_ON):
        more = bool(code.co_flags & inspect.CO_VARARGS) + bool(
            code.co_flags & inspect.CO_VARKEYWORDS
        )
        for name in code.co_varnames[count : count + more]:
            held = values.get(name, ())
            found += held.values() if isinstance(held, dict) else held
    return found


def _caller(frame: FrameType) -> FrameType | None:
    """The nearest frame of the user's below this one."""
    caller = frame.f_back
    while caller is not None and _is_library(caller):
        caller = caller.f_back
    return caller


def _untraced(ours: object) -> Callable[[_Hears], _Hears]:
    """Suspend tracing while an op is recorded.

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


def _lies_under_its_name(frame: FrameType) -> FunctionType | None:
    """The running function, from its module or from a class of its first argument."""
    code = frame.f_code
    places = [frame.f_globals.get(code.co_name)]
    classes: tuple[type, ...] = ()
    if code.co_argcount:
        first = frame.f_locals.get(code.co_varnames[0])
        classes = (*(first.__mro__ if is_a(first, type) else ()), *type(first).__mro__)
    places += [vars(cls).get(code.co_name) for cls in classes]
    others = (value for cls in classes for value in list(vars(cls).values()))
    for place in itertools.chain(places, others):
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


_HAND_OVER = {
    id(function.__code__): (function.__code__, words)
    for function, words in (
        (threading.Thread.start, "Thread.start()"),
        (ThreadPoolExecutor.submit, "ThreadPoolExecutor.submit()"),
        (Pool.apply_async, "Pool.apply_async()"),
        (Pool.map_async, "Pool.map_async()"),
        (Pool.map, "Pool.map()"),
        (Pool.imap, "Pool.imap()"),
    )
}
"""Functions of Python's library by which a step lets other threads work."""

_OWN = __name__.partition(".")[0] + "."
_OF_OBJECTS = (collections, copy, dataclasses, queue, threading, torch.distributions)
"""Modules whose functions and methods compute from attributes of objects that users make."""
_ABSTRACT = collections.abc.Sequence.index.__code__.co_filename
"""Its containers are read item by item: a `collections.UserList` is."""
_CALL_ON = (os.path.dirname(torch.__file__), contextlib.__file__, functools.__file__)
"""Files of functions that pass their arguments on to others, whose lines tell more."""
_GO_INSIDE = frozenset({copy.__file__, dataclasses.__file__})
"""Files of functions that also read what is nested in their arguments."""


@functools.cache
def _says_nothing(filename: str) -> bool:
    """True for a file without functions that read user objects: a quick first check."""
    readers = any(code.co_filename == filename for code in _READERS.values())
    named = not filename.startswith("<")
    return named and is_library_file(filename) and not readers and not _reads_objects(filename)


@functools.cache
def _reads_objects(filename: str) -> bool:
    files = (module.__file__ or "" for module in _OF_OBJECTS)
    folders = tuple(one.removesuffix("__init__.py") for one in files)
    return filename.startswith((*folders, _ABSTRACT))


def _is_called_here(frame: FrameType) -> bool:
    """True where code of torchgraph, which knows what it does, is called last on the way."""
    caller, user = frame.f_back, _caller(frame)
    while caller is not None and caller is not user:
        if str(caller.f_globals.get("__name__", "")).startswith(_OWN):
            return True
        caller = caller.f_back
    return False


def _is_library(frame: FrameType) -> bool:
    if id(frame.f_code) in _READERS:
        return False
    file = frame.f_code.co_filename
    if not file.startswith("<"):
        return is_library_file(file)
    module = str(frame.f_globals.get("__name__", ""))  # made by `exec`, as `dataclass` does
    return is_library_file(file) or is_library(module) or module.startswith("namedtuple_")
