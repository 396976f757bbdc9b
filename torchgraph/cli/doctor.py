"""``torchgraph doctor``: does torchgraph work here."""

from __future__ import annotations

import ast
import importlib
import importlib.metadata
import itertools
import os
import platform
import shutil
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch
from rich.console import Console
from rich.table import Table
from rich.text import Text
from torch import nn

from .. import __version__, _extension, _torch
from ..environment import cache_limit
from ..errors import InvalidOption
from ..lower.inductor.cache.private import NotPrivate
from ..record.reads.known import CASES
from ..record.reads.names import unread
from ..testing import Setup, assert_parity
from .cache import kept, summary
from .installed import installed

_MARKS = {True: ("ok", "green"), False: ("FAILED", "bold red"), None: ("-", "dim")}
_STEPS = 3
_MISSING = object()


@dataclass(frozen=True)
class Finding:
    """One line of the doctor's output."""

    what: str
    found: str
    good: bool | None = True
    """None for something optional that is not there; False makes the exit status 1."""


def doctor(console: Console) -> int:
    """Print what is found; 0 when nothing that torchgraph needs is wrong, else 1."""
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), show_header=False)
    table.add_column(style="bold", no_wrap=True)
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    failed = 0
    for finding in findings():
        mark, style = _MARKS[finding.good]
        table.add_row(Text(finding.what), Text(mark, style), Text(finding.found))
        failed += finding.good is False
    console.print(table)
    verdict = f"{failed} problems" if failed > 1 else "1 problem"
    console.print(Text(verdict, "bold red") if failed else Text("All well.", "bold green"))
    return int(failed > 0)


def findings() -> Iterator[Finding]:
    """All findings of the doctor, in the order of the lines."""
    yield Finding("torchgraph", f"{__version__} in {os.path.dirname(_extension.__file__)}")
    yield Finding("distribution", *installed())
    yield Finding("python", f"{platform.python_version()} on {platform.system()}")
    yield _torch_version(torch.__version__)
    threads = torch.get_num_threads()
    isa = torch.backends.cpu.get_cpu_capability()
    yield Finding("cpu", f"{os.cpu_count()} cores, torch uses {threads} threads and {isa}")
    yield _cuda()
    yield _tool("C++ compiler", "c++", "g++", "clang++")
    yield _tool("nvcc", "nvcc")
    yield _compiled("compiled ops", "cpu", "references in ATen run instead")
    yield _compiled("compiled CUDA ops", "cuda", "references in ATen run instead")
    yield _compiled("compiled guards", "guards", "Python compares instead")
    yield _package("triton")
    yield _disk_cache()
    yield _private_names()
    yield _reading()
    yield _tested("self-test", _self_test)


def _torch_version(version: str) -> Finding:
    major, minor = (int(part) for part in version.split(".")[:2])
    good = (major, minor) >= (2, 11)
    return Finding("torch", version if good else f"{version}; torchgraph needs 2.11 or later", good)


def _cuda() -> Finding:
    built = torch.version.cuda
    if built is None:
        return Finding("cuda", "this torch is built without it", None)
    if not torch.cuda.is_available():
        return Finding("cuda", f"torch is built for {built}, but there is no device", None)
    names = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
    return Finding("cuda", f"{built} on {', '.join(names)}")


def _tool(what: str, *commands: str) -> Finding:
    path = next(filter(None, map(shutil.which, commands)), None)
    return Finding(what, path or "not found", True if path else None)


def _compiled(what: str, part: str, instead: str) -> Finding:
    """A compiled library: loaded, at fault, or not there, and then why."""
    library = _extension.path(part)
    if part == "cuda" and torch.version.cuda is None:
        return Finding(what, "for a torch with CUDA", None)
    if library is None:
        tools = "this torch and nvcc are" if part == "cuda" else "a C++ compiler is"
        way_out = f"to change it, install torchgraph again where {tools}"
        return Finding(what, f"not compiled; {instead}, slower; {way_out}", None)
    if _loads(part):
        return Finding(what, str(library))
    why = _extension.failure(part) or "the compiled ops, which it needs, are not loaded"
    return Finding(what, f"{why}; {instead}, slower", False)


def _loads(part: str) -> bool:
    with warnings.catch_warnings():  # what a warning says is what the doctor says
        warnings.simplefilter("ignore")
        return _extension.guards() is not None if part == "guards" else _extension.load(part)


def _package(name: str) -> Finding:
    try:
        return Finding(name, importlib.metadata.version(name))
    except importlib.metadata.PackageNotFoundError:
        return Finding(name, "not installed", None)


def _disk_cache() -> Finding:
    try:
        limit = cache_limit()
        return Finding("disk cache", summary(*kept(), limit))
    except InvalidOption as error:
        return Finding("disk cache", error.what, False)
    except (NotPrivate, OSError) as error:
        return Finding("disk cache", f"{error}: not used, nothing is kept", None)


def _private_names() -> Finding:
    names = sorted(private_names())
    missing = [name for name in names if not resolves(name)]
    found = f"{len(names)} in use, all there"
    if missing:
        found = f"this torch lacks {', '.join(missing)}"
    return Finding("private torch names", found, not missing)


def _reading() -> Finding:
    """Whether changes of what a step reads are noticed in this Python; else all runs in eager."""
    missed = unread()
    if not missed:
        return Finding("what Python reads", f"noticed, by {len(CASES)} functions that are known")
    lines = ", ".join(map(str, missed))
    return Finding(
        "what Python reads",
        f"{len(missed)} of {len(CASES)} known functions read what is not noticed on this Python "
        f"(record/reads/known.py, lines {lines}): every step runs in eager; take a Python that "
        "the README names, or a later torchgraph",
        False,
    )


def private_names() -> set[str]:
    """The dotted private torch names that torchgraph imports or reads, from its source."""
    found: set[str] = set()
    sources = Path(_torch.__file__).parent.glob("*.py")
    trees = (ast.parse(source.read_text(encoding="utf-8")) for source in sources)
    for node in itertools.chain.from_iterable(map(ast.walk, trees)):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("torch."):
            found.update(f"{node.module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Attribute):
            name = ast.unparse(node)
            if name.startswith("torch.") and "._" in name and name.replace(".", "").isidentifier():
                found.add(name)
    return found


def resolves(name: str) -> bool:
    """True when the dotted name leads somewhere, importing modules on the way."""
    parts = name.split(".")
    value: object = importlib.import_module(parts[0])
    for end, part in enumerate(parts[1:], start=2):
        inner = getattr(value, part, _MISSING)
        if inner is _MISSING:
            try:
                inner = importlib.import_module(".".join(parts[:end]))
            except ImportError:
                return False
        value = inner
    return True


def _tested(what: str, test: Callable[[], str]) -> Finding:
    start = time.perf_counter()
    try:
        found = test()
    except Exception as error:  # whatever is wrong with this machine is what we want to say
        return Finding(what, f"{type(error).__name__}: {error}", False)
    return Finding(what, f"{found} ({time.perf_counter() - start:.1f} s)")


def _self_test() -> str:
    generator = torch.Generator().manual_seed(0)
    draw = partial(torch.randn, generator=generator)
    batches = [(draw(8, 16), draw(8, 4)) for _ in range(_STEPS)]
    with torch.random.fork_rng(devices=[]):
        assert_parity(_setup, batches)
    return f"{_STEPS} training steps are bitwise equal to eager"


def _setup() -> Setup:
    model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Dropout(0.1), nn.Linear(32, 4))
    return Setup(model, torch.optim.AdamW(model.parameters()), _loss)


def _loss(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return nn.functional.mse_loss(model(x), y)
