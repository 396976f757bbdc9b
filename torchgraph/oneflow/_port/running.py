"""``python -m torchgraph.oneflow``: run a script for OneFlow, unchanged."""

from __future__ import annotations

import io
import runpy
import sys
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import ModuleType

import click

from ...distributed.words.process import init
from .devices.on_cpu import read_cuda_as_cpu
from .dialect import speakers
from .modules import import_as_oneflow
from .processes import begin_with

_STDIN = "-"


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

    SCRIPT may be a folder or a zip file with a __main__.py, or - for the standard input.
    """


def main() -> None:
    """Read the command line, then run the script, whose errors are no business of click's."""
    try:
        chosen = command.make_context("python -m torchgraph.oneflow", sys.argv[1:]).params
        is_file = not chosen["as_module"] and chosen["script"] != _STDIN
        if is_file and not Path(chosen["script"]).exists():
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
    speakers.all_scripts_speak()
    if cpu:
        read_cuda_as_cpu()
    begin_with(begin, cpu)


def run(cpu: bool, as_module: bool, script: str, arguments: tuple[str, ...]) -> None:
    """Run a script, or a module, as OneFlow would."""
    init()  # OneFlow does it as it is imported
    begin(cpu)
    sys.argv = [script, *arguments]
    here = as_module or script == _STDIN
    sys.path[0] = str(Path.cwd() if here else Path(script).resolve().parent)
    if as_module:
        runpy.run_module(script, run_name="__main__", alter_sys=True)
    elif script == _STDIN:
        _run(sys.stdin.read(), "<stdin>")
    elif Path(script).is_dir() or script.endswith((".pyz", ".zip", ".pyc")):
        runpy.run_path(script, run_name="__main__")
    else:
        with io.open_code(str(Path(script).resolve())) as file:
            _run(file.read(), script)


def _run(text: str | bytes, name: str) -> None:
    """Python leaves the module where it is, for threads and for what runs at exit; so does this."""
    module = ModuleType("__main__")
    if name != "<stdin>":
        loader = SourceFileLoader("__main__", name)
        vars(module).update(__file__=name, __loader__=loader, __cached__=None)
    vars(module)["__builtins__"] = vars(sys.modules["__main__"])["__builtins__"]
    sys.modules["__main__"] = module
    exec(compile(text, name, "exec", dont_inherit=True), vars(module))
