"""What the commands share: options, threads, the console, processes of their own."""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

from . import record

WIDTH = 100
_ROOT = Path(__file__).parents[1]


class CommandLine(argparse.ArgumentParser):
    """The options of a benchmark; ``--quick`` and ``--out`` are of each."""

    def __init__(self, doc: str | None) -> None:
        super().__init__(description=(doc or "").partition("\n")[0])
        self._choices: dict[str, Sequence[str]] = {}
        self.add_argument("--quick", action="store_true", help="does it run? figures mean nothing")
        self.add_argument(
            "--out",
            type=Path,
            help="where results go: benchmarks/results, or with --quick a temporary folder",
        )

    def device(self) -> None:
        """Takes ``--device``."""
        self.add_argument("--device", choices=["cpu", "cuda"], default="cpu")

    def rounds(self, default: int) -> None:
        """Takes ``--rounds``."""
        self.add_argument("--rounds", type=int, default=default)

    def threads(self, default: int | None) -> None:
        """Takes ``--threads``."""
        self.add_argument("--threads", type=int, default=default, help="as torch chooses, if none")

    def some(self, what: str, default: Iterable[str], known: Iterable[str]) -> None:
        """Takes ``--models`` or the like: some of the known names."""
        self._choices[what] = list(known)
        self.add_argument(
            f"--{what}",
            type=_names,
            default=list(default),
            help=f"a comma-separated choice of {', '.join(self._choices[what])}",
        )

    def only(self) -> None:
        """Takes ``--only``, by which `rows` chooses."""
        self.add_argument(
            "--only",
            type=_names,
            default=[],
            help="rows whose name starts with one of these, comma-separated",
        )

    def read(self, argv: Sequence[str] | None) -> argparse.Namespace:
        """The arguments, or an exit with what is wrong with them."""
        args = self.parse_args(argv)
        for what, known in self._choices.items():
            unknown = [name for name in getattr(args, what) if name not in known]
            if unknown:
                names, there = ", ".join(unknown), ", ".join(known)
                self.error(f"no such {what.removesuffix('s')}: {names}; there are {there}")
        if getattr(args, "device", "cpu") == "cuda" and not torch.cuda.is_available():
            self.error("there is no GPU here")
        if getattr(args, "rounds", 1) < 1:
            self.error("--rounds must be at least 1")
        if args.out is None:
            args.out = Path(tempfile.mkdtemp()) if args.quick else record.RESULTS
        return args


def _names(text: str) -> list[str]:
    return text.split(",")


@contextmanager
def threads(count: int | None) -> Iterator[None]:
    """Torch computes with so many, in the block; with as many as before for None."""
    before = torch.get_num_threads()
    if count is not None:
        torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def console(width: int = WIDTH) -> Console:
    """What a benchmark prints on: ``width`` columns, or those that the terminal has."""
    found = Console()
    found.width = min(width, found.width) if found.is_terminal else width
    return found


def shown(result: dict[str, Any], table: Table) -> Console:
    """The console, with the heading and the table on it."""
    found = console()
    found.print(record.heading(result), highlight=False)
    found.print(table)
    return found


def save(on: Console, result: dict[str, Any], directory: Path, *name: str) -> None:
    """Write a result and say where it is."""
    on.print(f"written to {record.save(result, directory, *name)}", soft_wrap=True)


def child(module: str, *arguments: str, timeout: float, fresh_caches: bool = False) -> Any:
    """What the command prints last, as JSON, in a new process.

    Raises:
        subprocess.SubprocessError: it failed, or took longer than ``timeout`` seconds.
    """
    with tempfile.TemporaryDirectory() as fresh:
        caches = {
            "TORCHGRAPH_CACHE_DIR": fresh,
            "TORCHINDUCTOR_CACHE_DIR": str(Path(fresh, "inductor")),
        }
        done = subprocess.run(
            [sys.executable, "-m", f"benchmarks.{module}", *arguments],
            cwd=_ROOT,
            env={**os.environ, **(caches if fresh_caches else {})},
            capture_output=True,
            text=True,
            timeout=timeout,
            check=True,
        )
    return json.loads(done.stdout.splitlines()[-1])


def child_or_error(module: str, *arguments: str, timeout: float) -> dict[str, Any]:
    """What `child` gives; ``{"error": ...}`` when it failed."""
    try:
        found: dict[str, Any] = child(module, *arguments, timeout=timeout)
    except subprocess.SubprocessError as error:
        return {"error": last_words(error)}
    return found


def last_words(error: subprocess.SubprocessError) -> str:
    """The last line that a process wrote before it failed."""
    return str(getattr(error, "stderr", None) or error).strip().splitlines()[-1]
