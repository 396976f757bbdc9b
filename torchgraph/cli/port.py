"""``torchgraph port``: scripts for OneFlow are rewritten, or shown as they would be."""

from __future__ import annotations

import importlib
from pathlib import Path

import click
from rich.console import Console
from rich.syntax import Syntax
from rich.text import Text

from ..debug.screen import printable

_NEEDS = "libcst"


def port(console: Console, root: Path, *, write: bool) -> int:
    """Print a diff and what is left to do; 0 when nothing is."""
    try:
        importlib.import_module(_NEEDS)
    except ImportError:
        said = (
            "Scripts are read by libcst, which is not installed: "
            "pip install 'torch-nn-graph[oneflow]'."
        )
        console.print(Text(said, "bold red"))
        return 2
    # Only here: it takes torch's classes and libcst, which no other command needs.
    folders = importlib.import_module("torchgraph.oneflow._port.codemod.folders")
    report = importlib.import_module("torchgraph.oneflow._port.codemod.report")
    outcome = folders.port(root)
    if write:
        folders.write(outcome)
    else:
        _show(console, report.diff(outcome.files))
    _tell(console, report.summary(outcome, root, console.width, is_written=write))
    return 0 if outcome.is_done else 1


def _show(console: Console, diff: str) -> None:
    if not diff:
        return
    if console.is_terminal:
        console.print(Syntax(_visible(diff), "diff", theme="ansi_dark", background_color="default"))
        console.print()
    else:
        click.echo(diff.encode("utf-8", "surrogateescape"))


def _tell(console: Console, summary: str) -> None:
    if not console.is_terminal:
        click.echo(printable(_visible(summary)))
        return
    for line in _visible(summary).splitlines():
        console.print(Text(line, "" if line.startswith(" ") else "bold"), soft_wrap=True)


def _visible(text: str) -> str:
    """Escape control sequences, so that those of a script do not reach the terminal."""
    return "".join(one if one.isprintable() or one in "\n\t" else ascii(one)[1:-1] for one in text)
