"""The commands and what they take."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import click
from rich.console import Console
from rich.text import Text

from .. import __version__
from ..debug.screen import OnAnyScreen, encoding_of_output, plain
from ..errors import GraphError, InvalidOption
from ..lower.inductor.cache.private import NotPrivate
from ..saved.shown import shown
from . import cache as kept
from .doctor import doctor as examined
from .port import port as ported


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return the exit status."""
    try:
        status = commands.main(arguments, prog_name="torchgraph", standalone_mode=False)
    except click.ClickException as error:
        error.show()
        return error.exit_code
    except click.Abort:
        return 1
    return int(status or 0)


@click.group()
@click.version_option(__version__, message="torchgraph %(version)s")
def commands() -> None:
    """OneFlow's nn.Graph for PyTorch."""


@commands.command()
def doctor() -> int:
    """Versions, devices and tools, and a self-test of two seconds."""
    return examined(Console())


@commands.command()
@click.argument("directory", type=click.Path())
@click.option("--depth", type=click.IntRange(min=0), help="Levels of modules; all by default.")
@click.option("--ops", multiple=True, metavar="NAME", help="Namespaces of ops besides torch's.")
def show(directory: str, depth: int | None, ops: tuple[str, ...]) -> int:
    """What a Graph that was saved in DIRECTORY takes, returns, holds and computes.

    Nothing of it is run.
    """
    console = Console()
    try:
        found = shown(directory, depth=depth, ops=ops)
        if console.is_terminal:
            console.print(OnAnyScreen(found))
        else:
            click.echo(plain(found, console.width, encoding_of_output()))
    except (GraphError, OSError) as error:
        console.print(Text(str(error), "bold red"))
        return 1
    return 0


@commands.command()
@click.argument("directory", type=click.Path(exists=True, path_type=Path))
@click.option("--write", is_flag=True, help="Change the files; by default a diff is printed.")
def port(directory: Path, *, write: bool) -> int:
    """Rewrite the scripts for OneFlow in DIRECTORY, or one file.

    Names that mean the same in torch become torch's, the others those of
    torchgraph.oneflow. The status is 1 when something is left to do by hand.
    """
    return ported(Console(), directory, write=write)


@commands.group()
def cache() -> None:
    """The compiled code that is kept on disk."""


@cache.command("list")
def listed() -> int:
    """Each entry: its size, its age, when it was used, by which torch."""
    return _about_the_cache(kept.show)


@cache.command()
@click.option("--to", metavar="SIZE", help="Such as 500MB; else TORCHGRAPH_CACHE_LIMIT.")
def prune(to: str | None) -> int:
    """Remove what was not used for the longest time."""
    return _about_the_cache(lambda console: kept.prune(console, to))


@cache.command()
@click.option("--yes", is_flag=True, help="Do not ask.")
def clear(*, yes: bool) -> int:
    """Remove everything that no process uses now."""
    return _about_the_cache(lambda console: kept.clear(console, unasked=yes))


def _about_the_cache(verb: Callable[[Console], int]) -> int:
    console = Console()
    try:
        return verb(console)
    except (NotPrivate, OSError) as error:
        console.print(Text(f"{error}. Nothing there is used, and nothing was removed.", "bold red"))
        return 1
    except InvalidOption as error:
        console.print(Text(str(error), "bold red"))
        return 2
