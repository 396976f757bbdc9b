"""The only reader of the environment.

``TORCHGRAPH_VERIFY`` = ``fast`` (default) or ``strict`` (recompute every fake value after each
pass); ``TORCHGRAPH_DUMP`` = a directory that receives each program before and after each pass;
``TORCHGRAPH_BACKEND`` = the backend of Graphs that do not choose one (default ``auto``);
``TORCHGRAPH_CACHE_DIR`` = where compiled code is kept (default ``~/.cache/torchgraph``);
``TORCHGRAPH_CACHE_LIMIT`` = how much of it, such as ``500MB`` (default ``2GiB``);
``RANK``, ``WORLD_SIZE``, ``LOCAL_RANK``, ``LOCAL_WORLD_SIZE`` = which of several processes this one
is, as torchrun sets them; ``ONEFLOW_ENABLE_NHWC`` = ``1`` and ``ONEFLOW_TEST_CPU_ONLY``, of scripts
for OneFlow.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

from .errors import InvalidOption

BACKENDS = ("auto", "aten", "inductor")
_IMPORTS = ("PYTHONPATH", "PYTHONHOME", "PYTHONSTARTUP", "PYTHONUSERBASE")
_SIZE = re.compile(
    r"(?P<number>\d{1,15}(?:\.\d{1,15})?)\s*(?:(?P<unit>[KMGT])(?P<binary>i?))?B?",
    re.ASCII | re.IGNORECASE,
)
_CHOICES = {"TORCHGRAPH_VERIFY": ("fast", "strict"), "TORCHGRAPH_BACKEND": BACKENDS}


def chosen(name: str, default: str) -> str:
    """The value of a variable; InvalidOption for one that is none of its choices."""
    value = os.environ.get(name, default)
    choices = _CHOICES.get(name)
    if choices and value not in choices:
        raise InvalidOption(f"{name}={value!r} is not one of {', '.join(choices)}.")
    return value


def rank() -> int:
    """The rank of this process, as torchrun and its like say it; 0 where nobody does."""
    return _count("RANK") or 0


def world_size() -> int:
    """The number of processes, as torchrun says it; 1 where nobody does."""
    return _count("WORLD_SIZE") or 1


def local_rank() -> int | None:
    """The rank of this process on its machine, as torchrun says it."""
    return _count("LOCAL_RANK")


def local_world_size() -> int | None:
    """The number of processes on this machine, as torchrun says it."""
    return _count("LOCAL_WORLD_SIZE")


def oneflow_nhwc() -> bool:
    """True where OneFlow's ``ONEFLOW_ENABLE_NHWC`` is 1; scripts set it while they run."""
    return os.environ.get("ONEFLOW_ENABLE_NHWC") == "1"


def oneflow_tests_on_cpu() -> bool:
    """True where OneFlow's ``ONEFLOW_TEST_CPU_ONLY`` is set: its tests leave "cuda" out."""
    return bool(os.environ.get("ONEFLOW_TEST_CPU_ONLY"))


def oneflow_test_data() -> str:
    """``ONEFLOW_TEST_DATASET_DIR``: the folder of the data of OneFlow's tests."""
    return os.environ.get("ONEFLOW_TEST_DATASET_DIR", "/dataset")


def _count(name: str) -> int | None:
    given = os.environ.get(name, "")
    return int(given) if given.isascii() and given.isdigit() else None


def torchrun_holds_the_store() -> bool:
    """True where the store of the process group outlives its ranks, as torchrun has it."""
    return os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"


def cache_directory() -> Path | None:
    """The directory of compiled code: TORCHGRAPH_CACHE_DIR, else in the user's cache directory.

    None where there is no home directory. What is not absolute in XDG_CACHE_HOME or HOME counts as
    not set: it would be another directory wherever a script is started.
    """
    given = os.environ.get("TORCHGRAPH_CACHE_DIR")
    if given:
        return Path(given)
    caches, home = os.environ.get("XDG_CACHE_HOME", ""), os.path.expanduser("~")
    if os.path.isabs(caches):
        return Path(caches, "torchgraph")
    return Path(home, ".cache", "torchgraph") if os.path.isabs(home) else None


def cache_limit() -> int:
    """The most bytes of compiled code kept: TORCHGRAPH_CACHE_LIMIT, else 2 GiB."""
    given = os.environ.get("TORCHGRAPH_CACHE_LIMIT") or "2GiB"
    return bytes_of(given, "TORCHGRAPH_CACHE_LIMIT")


def bytes_of(text: str, name: str) -> int:
    """``500MB`` or ``1.5 GiB`` as a number of bytes; InvalidOption for what is no size."""
    found = _SIZE.fullmatch(text.strip())
    if not found:
        raise InvalidOption(
            f"{name}={text!r} is not a size.", fix="write it as 2GiB, 500MB, or 0 to keep nothing."
        )
    factor = 1024 if found["binary"] else 1000
    return int(float(found["number"]) * factor ** " KMGT".index((found["unit"] or " ").upper()))


@contextmanager
def environment_kept() -> Iterator[None]:
    """Remove variables that Inductor sets for its own libraries, so that no step finds them later.

    Nor may Triton: it would keep other kernels where one entry of the disk cache is.
    """
    before = set(os.environ)
    try:
        yield
    finally:
        for name in set(os.environ) - before:
            if name.startswith("_TORCHINDUCTOR_") or name == "TRITON_CACHE_DIR":
                del os.environ[name]


@contextmanager
def tensors_addressed(address: int) -> Iterator[None]:
    """Tell code that Inductor compiled, while it is loaded, where torch finds a tensor's memory."""
    with environment_kept():
        os.environ["_TORCHINDUCTOR_PYOBJECT_TENSOR_DATA_PTR"] = str(address)
        yield


def inductor_environment() -> dict[str, str]:
    """The variables from which Inductor reads its settings, without those of directories."""
    return {
        name: value
        for name, value in os.environ.items()
        if (name.startswith(("TORCHINDUCTOR_", "TORCH_COMPILE_")) and not name.endswith("_DIR"))
        or name == "CXX"
    }


def compiler_environment(folder: Path, threads: int) -> dict[str, str]:
    """The variables of a compiling process that works in ``folder`` with so many threads.

    It is told what to import, so nothing that changes that is handed on. A relative path of a
    compiler is one of this process's directory.
    """
    given = {name: value for name, value in os.environ.items() if name not in _IMPORTS}
    given.update(PYTHONNOUSERSITE="1", PYTHONSAFEPATH="1", TMPDIR=str(folder))
    given.setdefault("TORCHINDUCTOR_COMPILE_THREADS", str(threads))
    compiler = given.get("CXX", "")
    if os.sep in compiler:
        given["CXX"] = os.path.abspath(compiler)
    return given


def variable(name: str) -> str | None:
    """A variable of the environment as it is now; None where there is none."""
    return os.environ.get(name)


def variables() -> tuple[tuple[str, str], ...]:
    """All environment variables, in their order."""
    return tuple(os.environ.items())


def _is_asked_here() -> bool:
    """True where the variable is read by a function of this file, perhaps by `Mapping.get`."""
    frame: FrameType | None = sys._getframe(2)
    steps = 3
    while frame is not None and steps:
        if frame.f_code.co_filename == __file__:
            return True
        frame, steps = frame.f_back, steps - 1
    return False


@contextmanager
def heard(one: Callable[[str], None], every: Callable[[], None]) -> Iterator[None]:
    """Call a listener before each read or write of an environment variable in the block.

    Args:
        one: told the name of the variable.
        every: told that all are asked for.
    """
    cls = type(os.environ)
    before = {name: vars(cls)[name] for name in (*_OF_ONE, *_OF_ALL)}
    told: list[str] = []

    def tell(name: str, args: tuple[object, ...]) -> None:
        if name in _OF_ALL:
            every()
        elif isinstance(args[0], str):
            one(args[0])

    def hearing(name: str) -> Callable[..., object]:
        theirs = before[name]

        def call(held: object, *args: object) -> object:
            if not told and not _is_asked_here():  # who is told may ask himself
                told.append(name)
                try:
                    tell(name, args)
                finally:
                    told.clear()
            return theirs(held, *args)

        return call

    for name in before:
        setattr(cls, name, hearing(name))
    try:
        yield
    finally:
        for name, theirs in before.items():
            setattr(cls, name, theirs)


_OF_ONE = ("__getitem__", "__setitem__", "__delitem__")
_OF_ALL = ("__iter__",)
