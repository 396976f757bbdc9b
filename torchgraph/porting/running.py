"""``python -m torchgraph.oneflow``: run a script for OneFlow, unchanged."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

import click

from ..distributed.words.process import init
from .devices.on_cpu import read_cuda_as_cpu
from .modules import import_as_oneflow
from .processes import begin_with
from .tensors import dialect


@click.command(context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False})
@click.option("--cpu", is_flag=True, help="Where the script says cuda, the CPU is meant.")
@click.option("-m", "as_module", is_flag=True, help="SCRIPT is the name of a module.")
@click.argument("script")
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def command(**_chosen: object) -> None:
    """Run SCRIPT with ARGUMENTS: `import oneflow` gives torchgraph.oneflow in it.

    \b
    python -m torchgraph.oneflow train.py --epochs 3
    torchrun --nproc-per-node 2 -m torchgraph.oneflow train.py
    """


def main() -> None:
    """Read the command line, then run the script, whose errors are no business of click's."""
    try:
        chosen = command.make_context("python -m torchgraph.oneflow", sys.argv[1:]).params
        if not chosen["as_module"] and not Path(chosen["script"]).exists():
            raise click.UsageError(f"There is no file {chosen['script']}.")
    except click.exceptions.Exit as error:  # --help
        sys.exit(error.exit_code)
    except click.ClickException as error:
        error.show()
        sys.exit(error.exit_code)
    run(**chosen)


def begin(cpu: bool) -> None:
    """Make this process, and those that it spawns, one for OneFlow's scripts."""
    import_as_oneflow()
    dialect.all_scripts_speak()
    if cpu:
        read_cuda_as_cpu()
    begin_with(begin, cpu)


def run(cpu: bool, as_module: bool, script: str, arguments: tuple[str, ...]) -> None:
    """Run a script, or a module, as OneFlow would."""
    init()  # OneFlow does it as it is imported
    begin(cpu)
    sys.argv = [script, *arguments]
    sys.path[0] = str(Path.cwd() if as_module else Path(script).resolve().parent)
    if as_module:
        runpy.run_module(script, run_name="__main__", alter_sys=True)
    else:
        runpy.run_path(script, run_name="__main__")
