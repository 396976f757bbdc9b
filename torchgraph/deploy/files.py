"""Exported programs as files: each is made beside its path, and replaces it as a whole."""

from __future__ import annotations

import importlib.util
import os
import shutil
import tempfile
import zipfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch.export import ExportedProgram
from torch.export.graph_signature import OutputKind, TensorArgument

from .._torch import pytree
from .._torch.inductor import compile_ahead
from ..artifact.files import replaced
from ..errors import NotExportable, NotSupported
from ..live.inputs import described
from .assembled import PARAMETER_MUTATION, opened_again, quiet
from .exported import Exportable
from .formats.described import FILE, TABLE, bytes_of, record, table
from .formats.names import argument_names

Build = Callable[..., object]


def write(program: ExportedProgram, path: str, format: str, description: str, build: Build) -> None:
    """Write a program of `build` in one of the formats; ``description`` goes with it."""
    if format != "pt2":
        _check_still(program, format)
    if format == "pt2":
        with replaced(path) as file, quiet():
            torch.export.save(program, file, extra_files={FILE: description})
    elif format == "aoti":
        with _beside(path, "model.pt2") as made:
            names = argument_names(program, build)
            _compile(opened_again(program), made, {FILE: description}, names)
    else:
        _write_onnx(program, path, description)


def write_states(one: Exportable, path: str, description: str, build: Build) -> None:
    """Compile a step that takes its states and writes them; their values lie in the package."""
    with _beside(path, "model.pt2") as made:
        lifted = one.lifted()
        names = argument_names(lifted, build, [state.name for state in one.states])
        _compile(opened_again(lifted), made, {FILE: description}, names)
        with zipfile.ZipFile(made, "a", zipfile.ZIP_STORED) as package:
            root = package.namelist()[0].partition("/")[0]
            contents = {f"extra/{FILE}": description.encode(), TABLE: table(one.states).encode()}
            contents |= {record(i): bytes_of(state) for i, state in enumerate(one.states)}
            for name, content in contents.items():
                package.writestr(zipfile.ZipInfo(f"{root}/{name}"), content)


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
                f"AOTInductor cannot compile the step: {type(error).__name__}: {error}",
                fix='install a C++ compiler if it misses one, or use format="pt2".',
            ) from error


def _write_onnx(program: ExportedProgram, path: str, description: str) -> None:
    missing = [name for name in ("onnx", "onnxscript") if importlib.util.find_spec(name) is None]
    if missing:
        raise NotSupported(
            f'format="onnx" needs {" and ".join(missing)}.', fix="pip install 'torchgraph[onnx]'."
        )
    with _beside(path, "model.onnx") as made, quiet():
        try:
            found: Any = torch.onnx.export(
                opened_again(program),
                dynamo=True,
                external_data=False,
                verbose=False,
                output_names=_result_names(program),
                dynamic_shapes=_dimension_names(program),
            )
        except Exception as error:
            raise NotExportable(
                f"torch.onnx cannot write the step: {error}", fix='use format="pt2" or "aoti".'
            ) from error
        assert found is not None
        found.model.metadata_props[FILE] = description
        found.save(made)


def _result_names(program: ExportedProgram) -> list[str]:
    """``out`` for ``{"out": tensor}``: where each tensor is in what the step returns."""
    signature, spec = program.graph_signature, program.call_spec.out_spec
    specs = [one for one in signature.output_specs if one.kind is OutputKind.USER_OUTPUT]
    tensors = [isinstance(one.arg, TensorArgument) for one in specs]
    paths = described(pytree.tree_unflatten(tensors, spec))
    names = ["_".join(["result", *filter(None, path.split("."))]) for path, _ in paths]
    return [name for name, tensor in zip(names, tensors, strict=True) if tensor]


def _dimension_names(program: ExportedProgram) -> Any:
    """For each argument its free dimensions by number, all under the name of their first place."""
    nodes = {node.name: node for node in program.graph.find_nodes(op="placeholder")}
    known: dict[str, str] = {}
    shapes = []
    for name in map(str, program.graph_signature.user_inputs):
        value: Any = nodes[name].meta.get("val") if name in nodes else None
        free: dict[int, str] = {}
        for number, size in enumerate(value.shape if isinstance(value, torch.Tensor) else ()):
            if type(size) is not int:
                first = "batch" if number == 0 else f"{name}_{number}"
                free[number] = known.setdefault(str(size), first)
        shapes.append(free or None)
    if not known:
        return None
    args, kwargs = pytree.tree_unflatten(shapes, program.call_spec.in_spec)
    return (*args, *kwargs.values())


@contextmanager
def _beside(path: str, name: str) -> Iterator[str]:
    """A path to write to; what is there at the end goes to ``path``."""
    with tempfile.TemporaryDirectory(prefix="torchgraph-export-") as folder:
        made = os.path.join(folder, name)
        yield made
        with replaced(path) as file, Path(made).open("rb") as source:
            shutil.copyfileobj(source, file)
