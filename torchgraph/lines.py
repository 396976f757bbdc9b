"""The lines of the user's code: where a node, an error or a warning comes from."""

from __future__ import annotations

import contextlib
import copy
import dis
import functools
import linecache
import os
import sys
import sysconfig
import warnings
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from types import FrameType
from typing import NamedTuple

_PACKAGE = os.path.dirname(os.path.abspath(__file__)) + os.sep
_SUBSCR_OF_3_14 = 26
PARTS_OF_STEPS = (f"{__package__}.integrations", f"{__package__}.optim.graphed")
"""Modules of ours whose functions are parts of a step: what they read counts, as the user's do."""
_ENTRANCES = frozenset(
    _PACKAGE + os.path.join(*path) for path in (("graph.py",), ("calls", "live_step.py"))
)
"""Files through which a call of a Graph comes, or a step that is run for its own sake."""


class SourceLine(NamedTuple):
    """A line of Python: the origin of a node or of an error."""

    filename: str
    lineno: int
    function: str

    @property
    def place(self) -> str:
        """``model.py:12``."""
        return f"{os.path.basename(self.filename)}:{self.lineno}"

    @property
    def text(self) -> str:
        """The line itself, stripped; empty when the file cannot be read."""
        return linecache.getline(self.filename, self.lineno).strip()

    def __str__(self) -> str:
        quoted = f": {self.text}" if self.text else ""
        return f"{self.filename}:{self.lineno} in {self.function}{quoted}"


_BETWEEN = (
    *("torch/utils/_python_dispatch.py", "torch/library.py", "torch/_ops.py"),
    "torch/nn/modules/module.py",
)
"""Files of torch with frames between an op and its dispatch mode, or around a module call."""
_LIBRARIES = ("torch", "numpy", "scipy", "pandas", "sklearn", "matplotlib")
"""Packages that compute or draw what a line of the user's gives them; none holds models."""


@functools.cache
def _root(package: str) -> str:
    """The folder prefix of a package; one that matches no path for a module without a folder."""
    folder, name = os.path.split(os.path.abspath(sys.modules[package].__file__ or ""))
    return folder + os.sep if name.startswith("__init__.") else "\0"


@functools.cache
def is_library(filename: str) -> bool:
    """True for code of torch's, of torchgraph's, of NumPy's and its kin, and what has no file."""
    between = "importlib" in filename or filename in (contextlib.__file__, copy.__file__)
    roots = (_root(package) for package in _LIBRARIES if package in sys.modules)
    return between or filename.startswith((_PACKAGE, "<", *roots))


@functools.cache
def observes_steps(filename: str) -> bool:
    """True for code of torchgraph's own that is no part of a step: what it reads, no step does."""
    parts = ("optim", "optimizers", "oneflow", "nn", "integrations")
    return filename.startswith(_PACKAGE) and not filename.startswith(
        tuple(_PACKAGE + name + os.sep for name in parts)
    )


@functools.cache
def is_installed(filename: str) -> bool:
    """True for a file of a package that pip has installed, whose lines the user does not edit."""
    return filename.startswith(
        tuple(sysconfig.get_path(name) + os.sep for name in ("purelib", "platlib"))
    )


@functools.cache
def _is_of_library(filename: str) -> bool:
    """True for a file of a library's that calls an op, as ``torch/nn/modules/linear.py`` does."""
    ours = filename.startswith((_PACKAGE, "<")) or filename in (contextlib.__file__, copy.__file__)
    return not ours and not filename.replace(os.sep, "/").endswith(_BETWEEN)


def _is_users(frame: FrameType) -> bool:
    """True for a line of the user's, typed in (``python -c``, a pipe, a shell) or from a file."""
    name = frame.f_code.co_filename
    if not name.startswith("<"):
        return not is_library(name)
    # A script has a file: what is made in it without one is a dataclass's `__eq__` or the like.
    own = frame.f_globals
    return own.get("__name__") == "__main__" and str(own.get("__file__", "<")).startswith("<")


class Depth(NamedTuple):
    """The part of the stack that a node keeps."""

    lines: int = 2
    libraries: bool = False
    """Lines of torch and other libraries are among them."""


def user_frames(
    depth: int = 1, frame: FrameType | None = None, *, libraries: bool = False
) -> tuple[SourceLine, ...]:
    """The innermost ``depth`` lines of the running stack that are neither torch's nor torchgraph's.

    Innermost first. Empty when there are none inside the call of the Graph: the line that calls it
    says nothing about a node. ``libraries``: torch's own and other libraries' count, too.
    """
    frame = frame or sys._getframe(1)
    found: list[SourceLine] = []
    current: FrameType | None = frame
    while current is not None and len(found) < depth:
        code = current.f_code
        if code.co_filename in _ENTRANCES:
            break
        if _is_users(current) or (libraries and _is_of_library(code.co_filename)):
            found.append(SourceLine(code.co_filename, current.f_lineno, code.co_name))
        current = current.f_back
    return tuple(found)


def raised_at(error: BaseException) -> SourceLine | None:
    """The user's innermost line that ``error`` has come through; None where there is none.

    What Python's library raises is raised by the line that calls it.
    """
    found, trace = None, error.__traceback__
    while trace is not None:
        if _is_users(trace.tb_frame) and not _is_pythons(trace.tb_frame.f_code.co_filename):
            code = trace.tb_frame.f_code
            found = SourceLine(code.co_filename, trace.tb_lineno, code.co_name)
        trace = trace.tb_next
    return found


def in_subscript() -> bool:
    """True where the user's innermost line runs ``x[...]`` at this moment."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and not _is_users(frame):
        frame = frame.f_back
    if frame is None:
        return False
    code, at = frame.f_code.co_code, frame.f_lasti
    name = dis.opname[code[at]]
    return name.endswith("_SUBSCR") or (name == "BINARY_OP" and code[at + 1] == _SUBSCR_OF_3_14)


class Looker(NamedTuple):
    """Code of torch that reads a value where no line of the user's does, and how to avoid it."""

    who: str
    fix: str


_DISTRIBUTIONS = Looker(
    "torch.distributions, as it checks arguments,",
    "pass validate_args=False to the distribution, or call "
    "torch.distributions.Distribution.set_default_validate_args(False)",
)
_BACKWARD = Looker(
    "torch's backward of this line",
    "compute it by ops whose backward goes by no value: of x.prod(dim), say, multiply the tensors "
    "of x.unbind(dim)",
)


def looker() -> Looker | None:
    """The known code of torch that is reading a value now; None for the user's or unknown code."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and not (_is_users(frame) or _is_of_library(frame.f_code.co_filename)):
        frame = frame.f_back
    path = "" if frame is None else frame.f_code.co_filename.replace(os.sep, "/")
    if path.endswith("/torch/distributions/distribution.py"):
        return _DISTRIBUTIONS
    return _BACKWARD if path.endswith("/torch/autograd/graph.py") else None


_hearing: ContextVar[Callable[[str], None] | None] = ContextVar("_hearing", default=None)


@contextlib.contextmanager
def warnings_told(listener: Callable[[str], None]) -> Iterator[None]:
    """In the block, ``listener`` is also called with each warning of torchgraph."""
    token = _hearing.set(listener)
    try:
        yield
    finally:
        _hearing.reset(token)


def warn(message: str, category: type[Warning]) -> None:
    """Warn at the user's innermost line, once per line as Python does."""
    if (listener := _hearing.get()) is not None:
        listener(message)
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and not _is_users(frame):
        frame = frame.f_back
    if frame is None:
        warnings.warn(message, category, stacklevel=2)
        return
    registry = frame.f_globals.setdefault("__warningregistry__", {})
    warnings.warn_explicit(
        message, category, frame.f_code.co_filename, frame.f_lineno, registry=registry
    )


_FRAMEWORKS = {
    "lightning": "Lightning",
    "pytorch_lightning": "Lightning",
    "transformers": "transformers",
    "trl": "transformers",
    "accelerate": "accelerate",
    "keras": "Keras",
    "ignite": "ignite",
    "skorch": "skorch",
    "fastai": "fastai",
}
"""Packages with a loop of their own, and the paragraph about each."""


def of_framework() -> str:
    """A pointer to the docs of the framework that runs the step; empty for a user's loop."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        name = _FRAMEWORKS.get(str(frame.f_globals.get("__name__")).partition(".")[0])
        if name is not None:
            return f'see {name} in "In your framework", docs/in-your-framework.md'
        frame = frame.f_back
    return ""


def runs_users_code(frame: FrameType | None) -> bool:
    """True where a line of the user's own runs, or what it calls of Python's library."""
    while frame is not None and _is_pythons(frame.f_code.co_filename):
        frame = frame.f_back
    return frame is not None and _is_users(frame)


@functools.cache
def _is_pythons(filename: str) -> bool:
    places = {sysconfig.get_path(name) + os.sep for name in ("stdlib", "platstdlib")}
    installed = {sysconfig.get_path(name) + os.sep for name in ("purelib", "platlib")}
    if filename.startswith(tuple(installed)):
        return False
    return filename.startswith(("<frozen", *places))
