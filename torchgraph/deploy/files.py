"""Exported programs as files: each is made beside its path, and replaces it as a whole."""

from __future__ import annotations

import os
import shutil
import tempfile
import zipfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import torch
from torch.export import ExportedProgram
from torch.export.graph_signature import OutputKind

from .._torch.inductor import compile_ahead, load_ahead
from ..artifact.files import replaced
from ..errors import NotExportable
from .assembled import PARAMETER_MUTATION, opened_again, quiet, with_tensors
from .exported import Exportable
from .formats import onnx_model
from .formats.described import FILE, TABLE, bytes_of, record, table
from .formats.examples import call
from .formats.names import argument_names
from .formats.reasons import line_of, reason
from .formats.trial import tensor_results, tried

Build = Callable[..., object]


def write(
    program: ExportedProgram,
    path: str,
    format: str,
    description: str,
    build: Build,
    given: Sequence[torch.Tensor] | None = None,
) -> None:
    """Write a program of `build` in one of the formats; ``description`` goes with it.

    Args:
        given: the tensors of a call, on which the file is tried out before it is there.
    """
    if format != "pt2":
        _check_still(program, format)
    if format == "pt2":
        with replaced(path) as file, quiet(), _writable(program):
            torch.export.save(program, file, extra_files={FILE: description})
    elif format == "aoti":
        with _beside(path, "model.pt2") as made:
            names = argument_names(program, build)
            with _writable(program):
                opened = opened_again(program)
            _compile(with_tensors(opened), made, {FILE: description}, names)
            _try_out(program, made, given)
    else:
        with _beside(path, "model.onnx") as made:
            onnx_model.write(program, made, build, **{FILE: description})
            onnx_model.try_out(program, made, given)


def write_states(one: Exportable, path: str, description: str, build: Build) -> None:
    """Compile a step that takes its states and writes them; their values lie in the package."""
    with _beside(path, "model.pt2") as made:
        lifted = one.lifted()
        names = argument_names(lifted, build, [state.name for state in one.states])
        _compile(with_tensors(opened_again(lifted)), made, {FILE: description}, names)
        with zipfile.ZipFile(made, "a", zipfile.ZIP_STORED) as package:
            root = package.namelist()[0].partition("/")[0]
            contents = {f"extra/{FILE}": description.encode(), TABLE: table(one.states).encode()}
            contents |= {record(i): bytes_of(state) for i, state in enumerate(one.states)}
            for name, content in contents.items():
                package.writestr(zipfile.ZipInfo(f"{root}/{name}"), content)


@contextmanager
def _writable(program: ExportedProgram) -> Iterator[None]:
    """Raise NotExportable for what torch cannot write to a file."""
    try:
        yield
    except (OSError, NotExportable):
        raise
    except Exception as error:  # its serializer raises what comes, KeyError and AssertionError too
        raise NotExportable(
            f"torch cannot write the step to a file: {reason(error)}.",
            where=line_of(error, program),
            fix="compute sizes by +, -, *, // and torch's ops, or export for one size.",
        ) from error


def _check_still(program: ExportedProgram, format: str) -> None:
    """Raise NotExportable for a state that is written: neither format writes what it holds."""
    kinds = (OutputKind.BUFFER_MUTATION, PARAMETER_MUTATION)
    with quiet():  # without ops that write: then the signature says what is written
        specs = program.run_decompositions({}).graph_signature.output_specs
    written = [one.target for one in specs if one.kind in kinds]
    if written:
        raise NotExportable(
            f"The step writes {written[0]}, and format={format!r} would lose that.",
            fix="model.eval() before, if these are the statistics of a batch norm; or "
            'format="pt2".',
        )


def _compile(
    program: ExportedProgram, path: str, metadata: dict[str, str], names: Sequence[str]
) -> None:
    with quiet():
        try:
            compile_ahead(program, path, metadata, names)
        except Exception as error:  # a compiler that is missing or fails, an op without a kernel
            raise NotExportable(
                f"AOTInductor cannot compile the step: {type(error).__name__}: {reason(error)}.",
                fix='install a C++ compiler if it misses one, or use format="pt2".',
            ) from error


def _try_out(program: ExportedProgram, path: str, given: Sequence[torch.Tensor] | None) -> None:
    """Run a package beside the step in torch."""
    package = load_ahead(path)

    def run(tensors: list[torch.Tensor]) -> list[torch.Tensor]:
        args, kwargs = call(program, tensors)
        return tensor_results(program, package(*args, **kwargs))

    tried(program, run, given, "the compiled package", 'use format="pt2", or compute it otherwise.')


@contextmanager
def _beside(path: str, name: str) -> Iterator[str]:
    """A path to write to; what is there at the end goes to ``path``."""
    with tempfile.TemporaryDirectory(prefix="torchgraph-export-") as folder:
        made = os.path.join(folder, name)
        yield made
        with replaced(path) as file, Path(made).open("rb") as source:
            shutil.copyfileobj(source, file)
