"""Writes ``tensors.json``: what OneFlow 0.9 gives for each expression in it.

Run it under Python 3.10 with ``oneflow==0.9.0`` and ``numpy<2``, from this folder:
``python tensors_with_oneflow.py``. To add an expression, add it to the file with null. An
expression that ends the process, as some do, stays null.
"""

import importlib
import json
import os
import subprocess
import sys
from pathlib import Path

from tensor_expressions import Bench

FILE = Path(__file__).with_name("tensors.json")


def evaluate(expressions, found):
    """Write a line of JSON for each expression, as far as the process lives."""
    flow = importlib.import_module("oneflow")
    bench = Bench(flow, flow)
    with found.open("a") as lines:
        for expression in expressions:
            try:
                value = bench.value(expression)
            except Exception as error:  # a result, too
                value = {"error": type(error).__name__}
            lines.write(json.dumps(value) + "\n")
            lines.flush()
    os._exit(0)


def main():
    expressions = list(json.loads(FILE.read_text()))
    if len(sys.argv) > 1:
        evaluate(expressions[int(sys.argv[1]) :], Path(sys.argv[2]))
    found = FILE.with_suffix(".lines")
    found.write_text("")
    while (done := found.read_text().count("\n")) < len(expressions):
        left = subprocess.run([sys.executable, __file__, str(done), str(found)], check=False)
        if left.returncode:
            with found.open("a") as lines:
                lines.write("null\n")
    values = [json.loads(line) for line in found.read_text().splitlines()]
    found.unlink()
    rows = [f"{json.dumps(e)}: {json.dumps(v)}" for e, v in zip(expressions, values, strict=True)]
    FILE.write_text("{\n" + ",\n".join(rows) + "\n}\n")


if __name__ == "__main__":
    main()
