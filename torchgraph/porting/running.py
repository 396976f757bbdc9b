"""``python -m torchgraph.oneflow``: run a script for OneFlow, unchanged."""

from __future__ import annotations

import io
import os
import runpy
import sys
from importlib.machinery import SourceFileLoader
from multiprocessing import spawn
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import click

from ..distributed.words.process import init
from .devices.on_cpu import is_cuda_the_cpu, read_cuda_as_cpu
from .modules import import_as_oneflow
from .tensors import dialect

_STDIN = "-"


class _Asked(NamedTuple):
    """What the command line says."""

    cpu: bool
    as_module: bool
    script: str
    arguments: tuple[str, ...]


@click.command(context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False})
@click.option("--cpu", is_flag=True, help="Where the script says cuda, the CPU is meant.")
@click.option("-m", "as_module", is_flag=True, help="SCRIPT is the name of a module.")
@click.argument("script")
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
@click.pass_context
def _asked(
    context: click.Context, cpu: bool, as_module: bool, script: str, arguments: tuple[str, ...]
) -> None:
    """Run SCRIPT with ARGUMENTS: `import oneflow` gives torchgraph.oneflow in it.

    \b
    python -m torchgraph.oneflow train.py --epochs 3
    torchrun --nproc-per-node 2 -m torchgraph.oneflow train.py

    SCRIPT may be a folder or a zip file with a __main__.py, or - for the standard input.
    """
    if not as_module and script != _STDIN and not os.path.exists(script):
        raise click.UsageError(f"there is no file {script!r}.")
    context.obj.append(_Asked(cpu, as_module, script, arguments))


def main() -> None:
    """Run the script of the command line.

    What it raises is Python's to show, an interrupt too: click has left the stack.
    """
    asked: list[_Asked] = []
    try:
        _asked.main(prog_name="python -m torchgraph.oneflow", obj=asked)
    except SystemExit:
        if not asked:
            raise
    cpu, as_module, script, arguments = asked[0]
    init()  # OneFlow does it as it is imported
    as_scripts_are(cpu)
    _let_children_be_the_same()
    sys.argv = [script, *arguments]
    here = as_module or script == _STDIN
    sys.path[0] = str(Path.cwd() if here else Path(script).resolve().parent)
    if as_module:
        runpy.run_module(script, run_name="__main__", alter_sys=True)
    elif script == _STDIN:
        _run(sys.stdin.read(), "<stdin>")
    elif os.path.isdir(script) or script.endswith((".pyz", ".zip", ".pyc")):
        runpy.run_path(script, run_name="__main__")
    else:
        with io.open_code(os.path.abspath(script)) as file:
            _run(file.read(), script)


def as_scripts_are(cpu: bool) -> None:
    """Make this process one in which ``import oneflow`` works, and all scripts speak it."""
    import_as_oneflow()
    dialect.all_scripts_speak()
    if cpu:
        read_cuda_as_cpu()


def _run(text: str | bytes, name: str) -> None:
    """As Python does it: the module stays, for threads and for what runs at exit."""
    module = ModuleType("__main__")
    if name != "<stdin>":
        loader = SourceFileLoader("__main__", name)
        vars(module).update(__file__=name, __loader__=loader, __cached__=None)
    vars(module)["__builtins__"] = vars(sys.modules["__main__"])["__builtins__"]
    sys.modules["__main__"] = module
    exec(compile(text, name, "exec", dont_inherit=True), vars(module))


def _let_children_be_the_same() -> None:
    """What `multiprocessing` spawns imports the script anew, before anything of it runs."""
    known = spawn.get_preparation_data

    def prepared(name: str) -> dict[str, Any]:
        return {**known(name), "torchgraph": _Prepares(is_cuda_the_cpu())}

    spawn.get_preparation_data = prepared


class _Prepares:
    """Prepares the process in which it is unpickled."""

    def __init__(self, cpu: bool) -> None:
        self._cpu = cpu

    def __reduce__(self) -> Any:
        return as_scripts_are, (self._cpu,)
