"""``python -m torchgraph.oneflow``: run a script for OneFlow, unchanged."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

import click

from ..distributed.words.process import init
from .devices.on_cpu import read_cuda_as_cpu
from .modules import import_as_oneflow
from .tensors import dialect


@click.command(context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False})
@click.option("--cpu", is_flag=True, help="Where the script says cuda, the CPU is meant.")
@click.option("-m", "as_module", is_flag=True, help="SCRIPT is the name of a module.")
@click.argument("script")
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def main(cpu: bool, as_module: bool, script: str, arguments: tuple[str, ...]) -> None:
    """Run SCRIPT with ARGUMENTS: `import oneflow` gives torchgraph.oneflow in it.

    \b
    python -m torchgraph.oneflow train.py --epochs 3
    torchrun --nproc-per-node 2 -m torchgraph.oneflow train.py
    """
    init()  # OneFlow does it as it is imported
    import_as_oneflow()
    dialect.all_scripts_speak()
    if cpu:
        read_cuda_as_cpu()
    sys.argv = [script, *arguments]
    sys.path[0] = str(Path.cwd() if as_module else Path(script).resolve().parent)
    if as_module:
        runpy.run_module(script, run_name="__main__", alter_sys=True)
    else:
        runpy.run_path(script, run_name="__main__")
