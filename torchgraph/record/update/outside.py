"""Calls into C that change more than Python's containers: heard before they run.

A profile function is told of each builtin function and method. Ops are heard elsewhere, and
Python's own code runs in lines and calls that are told one by one.
"""

from __future__ import annotations

import io
import random
import sys
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType, ModuleType
from typing import Any

import torch

from ..._torch import OpOverload
from ..._torch.listening import listening_through
from ...guards.aspects import is_generator
from ..ambient.functions import is_pure, words_for
from ..ops.undo import SupportsKeep


def _names(text: str) -> frozenset[str]:
    return frozenset(text.split())


_CONTAINERS = (dict, list, set, deque)
_READS = _names(
    """
    get items keys values copy index count union intersection difference symmetric_difference
    issubset issuperset isdisjoint fromkeys join format
    """
)
"""Methods that leave a container as it is."""
_PURE = _names(
    """
    abc ast bisect builtins cmath codecs collections contextvars copyreg csv datetime decimal
    elementtree enum errno functools gc hashlib heapq imp inspect itertools json locale marshal math
    numbers numpy opcode operator pickle re sha1 sha2 sha256 sha512 md5 random sre statistics string
    stat struct symtable sys thread threading time torch tracemalloc types typing unicodedata
    warnings weakref weakrefset zlib zoneinfo binascii fractions torchgraph scipy blake2 sha3
    """
)
"""Modules whose functions compute, or set what may be set twice; by root, without underscores."""
_NOT = _names(
    """
    print input open breakpoint open_code start_new_thread start_new sleep insort insort_left
    insort_right heappush heappop heapify heapreplace heappushpop setitem delitem iadd iand iconcat
    ifloordiv ilshift imatmul imod imul ior ipow irshift isub itruediv ixor dump
    """
)
"""Functions of these modules that do more."""
_ASKS = _names(
    """
    stat lstat fstat access getpid getppid getcwd listdir scandir readlink fspath cpu_count
    sched_getaffinity getenv urandom get_terminal_size fsencode fsdecode isatty
    """
)
"""Functions of the operating system that only tell."""
_WRITES_ARRAYS = _names("fill itemset partition put resize setfield setflags sort byteswap")
"""Methods of arrays that write them."""


@contextmanager
def heard(by: SupportsKeep) -> Iterator[None]:
    """Tell ``by`` of the calls into C in the block, those of torch and torchgraph left out."""
    before: Any = sys.getprofile()

    def hear(frame: FrameType, event: str, function: Any) -> None:
        if event == "c_call" and not _is_own(frame.f_globals.get("__name__")):
            _tell(by, function)
        if before is not None:
            before(frame, event, function)

    sys.setprofile(hear)
    try:
        with listening_through(_unheard(hear)):
            yield
    finally:
        if sys.getprofile() in (hear, None):
            sys.setprofile(before)


def _unheard(hear: object) -> Callable[[Any], Any]:
    """Suspend the profile function while an op is recorded; from Python 3.12 on that is slower."""

    def wrap(listener: Any) -> Any:
        def call(op: OpOverload, args: tuple[object, ...], kwargs: dict[str, object]) -> object:
            if sys.getprofile() is not hear:
                return listener(op, args, kwargs)
            sys.setprofile(None)
            try:
                return listener(op, args, kwargs)
            finally:
                sys.setprofile(hear)

        return call if sys.version_info < (3, 12) else listener

    return wrap


def _is_own(module: object) -> bool:
    """True for modules that need not be heard: of torch, of torchgraph and of the imports."""
    name = str(module)
    root = name.partition(".")[0]
    return root in ("torch", "torchgraph", "importlib") or "importlib" in root


def _tell(by: SupportsKeep, function: Any) -> None:
    owner = getattr(function, "__self__", None)
    name = str(getattr(function, "__name__", ""))
    if owner is None or isinstance(owner, (ModuleType, type)):
        pure = _is_pure_function(function, owner, name)
    elif isinstance(owner, _CONTAINERS):
        pure = True
        if name not in _READS:
            by.keep_object(owner)
    elif isinstance(owner, (random.Random, torch.Generator)) or is_generator(owner):
        pure = True
        by.keep_generator(owner)
    else:
        pure = _is_pure_method(owner, name)
    if not (pure or is_pure(function)):
        by.beyond(f"called {words_for(function)}()")


def _is_pure_function(function: Any, owner: Any, name: str) -> bool:
    home = owner.__module__ if isinstance(owner, type) else getattr(owner, "__name__", None)
    root = _root(home or getattr(function, "__module__", None))
    if root in ("posix", "nt", "os"):
        return name in _ASKS
    return root in _PURE and name not in _NOT


def _is_pure_method(owner: object, name: str) -> bool:
    cls = type(owner)
    if isinstance(owner, (io.IOBase, bytearray, memoryview)):
        return name in ("fileno", "isatty", "tell", "readable", "writable", "seekable")
    root = _root(cls.__module__)
    if root == "numpy":
        return name not in _WRITES_ARRAYS
    return root in _PURE


def _root(module: object) -> str:
    return str(module).partition(".")[0].lstrip("_")
