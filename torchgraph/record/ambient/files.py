"""Recorder of file accesses: files that a step reads become guards, writes are not replayed."""

from __future__ import annotations

import functools
import itertools
import os
import pathlib
import stat
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from types import FrameType
from typing import Any

from ... import _extension
from ..._torch.listening import is_listening
from ..._torch.names import patched
from .reachable import Reached, line
from .settings import GETCWD

_Path = Any
_TELLS = ("stat", "lstat", "access", "readlink")
_KEPT = [one for one in vars(pathlib).values() if isinstance(one, type) and "stat" in vars(one)]
_HOLDERS: tuple[Any, ...] = (os, *(one for one in _KEPT if vars(one)["stat"] is os.stat))
"""Until Python 3.10 pathlib keeps the functions of `os` for itself, in a class."""
_LISTS = ("listdir", "scandir")
_WRITES = os.O_WRONLY | os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_TRUNC
_CHANGES = ("os.mkdir", "os.rename", "os.remove", "os.rmdir", "os.truncate", "os.utime", "os.link")
"""Audit events of Python for changes on the disk."""
_OUTSIDE = ("subprocess.Popen", "os.system", "socket.connect", "socket.getaddrinfo")
_ASIDE = ("importlib", "linecache", "tokenize", "traceback", "inspect", "warnings", "zipimport")
"""Modules of Python's library that read files for their own sake."""
_READERS = ("torch/serialization.py", "torch/hub.py", "torch/utils/data/")


class Files:
    """The file accesses of one recording, and the processes that it starts."""

    def __init__(self, reached: Reached) -> None:
        self._reached = reached

    @contextmanager
    def observed(self) -> Iterator[None]:
        """Record the file accesses of the block, in this thread."""
        outer, _running.files = getattr(_running, "files", None), self
        try:
            with ExitStack() as stack:
                stack.enter_context(_events())
                for holder, name in itertools.product(_HOLDERS, (*_TELLS, "getcwd")):
                    if name in vars(holder):
                        observer: Any = self._telling(name, getattr(holder, name))
                        observer = staticmethod(observer) if isinstance(holder, type) else observer
                        stack.enter_context(patched(holder, name, observer))
                yield
        finally:
            _running.files = outer

    def _telling(self, name: str, theirs: Callable[..., Any]) -> Callable[..., Any]:
        here = threading.get_ident()

        @functools.wraps(theirs)
        def call(*args: Any, **kwargs: Any) -> Any:
            if threading.get_ident() == here and is_listening() and _is_of_step(sys._getframe(1)):
                path = args[0] if args else kwargs.get("path")
                if name == "getcwd":
                    self._ask("folder", "")
                else:
                    self._ask("link" if name in ("lstat", "readlink") else "file", path)
            return theirs(*args, **kwargs)

        return call

    def audited(self, event: str, args: tuple[Any, ...]) -> None:
        """Handle an audit event about a file."""
        if not is_listening() or not _is_of_step(sys._getframe(2)):
            return
        if event in _OUTSIDE:
            self._reached.asks_clock(event, line())
        elif event in _CHANGES:
            self._reached.log("a file is written", line())
        elif event == "open":
            path, mode, flags = args
            if any(c in mode for c in "wax+") if isinstance(mode, str) else flags & _WRITES:
                self._reached.log("a file is written", line())
            else:
                self._ask("file", path)
        elif event.removeprefix("os.") in _LISTS:
            self._ask("list", "." if args[0] is None else args[0])

    def _ask(self, kind: str, path: _Path) -> None:
        """Guard the answer about a path; none for the descriptor of an open file."""
        if isinstance(path, int):
            return
        asks: dict[str, tuple[str, Callable[[], object]]] = {
            "folder": ("the working directory", GETCWD),
            "list": (f"what lies in {path}", functools.partial(_listed, path)),
            "file": (f"the file {path}", functools.partial(_told, path, True)),
            "link": (f"the file {path}", functools.partial(_told, path, False)),
        }
        words, ask = asks[kind]
        self._reached.opened.add(path)
        self._reached.ask((kind, path), words, ask, line())


def _told(path: _Path, follows: bool) -> object:
    """The identity, size and time of a file; the name of an error where there is none."""
    try:
        found = os.stat(path, follow_symlinks=follows)
    except (OSError, ValueError) as error:
        return type(error).__name__
    if not stat.S_ISREG(found.st_mode):
        return found.st_mode, found.st_ino
    return found.st_mode, found.st_ino, found.st_size, found.st_mtime_ns


def _listed(path: _Path) -> object:
    try:
        return tuple(sorted(os.listdir(path)))
    except OSError as error:
        return type(error).__name__


def _is_of_step(frame: FrameType | None) -> bool:
    """False for files that Python, torch or torchgraph reads itself: an import, a source."""
    while frame is not None:
        of = _whose(frame.f_code.co_filename)
        if of is not None:
            return of
        frame = frame.f_back
    return False


@functools.cache
def _whose(filename: str) -> bool | None:
    """True for code whose files are the step's; False for code of others; None for no one's."""
    path = filename.replace(os.sep, "/")
    name = path.rpartition("/")[2].removesuffix(".py")
    if name in _ASIDE or "importlib" in path:
        return False
    if "/torchgraph/" in path and os.path.dirname(__file__).startswith(
        filename.rpartition("record")[0]
    ):
        return False
    if "/torch/" in path:
        return None if any(part in path for part in _READERS) else False
    library = os.path.dirname(os.__file__).replace(os.sep, "/")
    if path.startswith(library) and "site-packages" not in path:
        return None
    return None if "/numpy/" in path or path.startswith("<") else True


_running = threading.local()


@contextmanager
def _events() -> Iterator[None]:
    """Receive Python's audit events in the block, filtered by a hook in C."""
    compiled: Any = _extension.guards()
    if compiled is None:
        _install()
        yield
        return
    compiled.listen(_audit)
    try:
        yield
    finally:
        compiled.listen_no_more()


@functools.cache
def _install() -> None:
    """Once for the process: no audit hook can be taken away."""
    sys.addaudithook(_audit)


def _audit(event: str, args: tuple[Any, ...]) -> None:
    if event != "open" and not event.startswith(("os.", "subprocess.", "socket.")):
        return
    files: Files | None = getattr(_running, "files", None)
    if files is not None:
        files.audited(event, args)
