"""Exported programs as files: each is made beside its path, and replaces it as a whole."""

from __future__ import annotations

import importlib.util
import os
import shutil
import tempfile
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch.export import ExportedProgram

from .._torch.export import compile_ahead, opened_again, quiet
from ..artifact.files import replaced
from ..errors import NotExportable, NotSupported
from .described import FILE, bytes_of, record, table
from .exported import Exportable

_TABLE = "states.tsv"
_EXTRA = "extra"
"""The folder of a package for what is not torch's."""


def write(program: ExportedProgram, path: str, format: str, description: str) -> None:
    """Write a program in one of the formats; ``description`` goes with it."""
    if format == "pt2":
        with replaced(path) as file, quiet():
            torch.export.save(program, file, extra_files={FILE: description})
    elif format == "aoti":
        with _beside(path, "model.pt2") as made:
            compile_ahead(opened_again(program), made, {FILE: description})
    else:
        _write_onnx(program, path, description)


def write_states(one: Exportable, path: str, description: str) -> None:
    """Compile a step that takes its states and writes them; their values lie in the package."""
    with _beside(path, "model.pt2") as made:
        compile_ahead(opened_again(one.lifted()), made, {FILE: description})
        with zipfile.ZipFile(made, "a", zipfile.ZIP_STORED) as package:
            root = package.namelist()[0].partition("/")[0]
            folder = f"{root}/{_EXTRA}"
            package.writestr(f"{folder}/{FILE}", description)
            package.writestr(f"{folder}/{_TABLE}", table(one.states))
            for number, state in enumerate(one.states):
                package.writestr(f"{folder}/{record(number)}", bytes_of(state))


def _write_onnx(program: ExportedProgram, path: str, description: str) -> None:
    missing = [name for name in ("onnx", "onnxscript") if importlib.util.find_spec(name) is None]
    if missing:
        raise NotSupported(
            f'format="onnx" needs {" and ".join(missing)}.', fix="pip install 'torchgraph[onnx]'."
        )
    with _beside(path, "model.onnx") as made:
        with quiet():
            try:
                found: Any = torch.onnx.export(
                    opened_again(program), dynamo=True, external_data=False, verbose=False
                )
            except Exception as error:
                raise NotExportable(f"torch.onnx cannot write the step: {error}") from error
            assert found is not None
            found.model.metadata_props[FILE] = description
            found.save(made)


@contextmanager
def _beside(path: str, name: str) -> Iterator[str]:
    """A path to write to; what is there at the end goes to ``path``."""
    with tempfile.TemporaryDirectory(prefix="torchgraph-export-") as folder:
        made = os.path.join(folder, name)
        yield made
        with replaced(path) as file, Path(made).open("rb") as source:
            shutil.copyfileobj(source, file)
