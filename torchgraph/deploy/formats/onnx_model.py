"""A program as an ONNX model: made by torch.onnx, named by us, run once in onnxruntime."""

from __future__ import annotations

import ctypes
import importlib
import importlib.util
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.export import ExportedProgram

from ..._torch import pytree
from ...errors import ExportWarning, NotExportable, NotSupported
from ...lines import warn
from ..assembled import opened_again, quiet
from .names import argument_names, result_names
from .reasons import line_of, reason
from .trial import tried

_FIX = 'use format="pt2" or "aoti", or compute it otherwise.'


def write(program: ExportedProgram, path: str, build: Callable[..., object], **held: str) -> None:
    """Write the model to ``path``, with ``held`` in its metadata.

    Raises:
        NotSupported: a package is missing.
        NotExportable: torch.onnx cannot; names the user's line where it is known.
    """
    missing = [name for name in ("onnx", "onnxscript") if importlib.util.find_spec(name) is None]
    if missing:
        raise NotSupported(
            f'format="onnx" needs {" and ".join(missing)}.',
            fix="pip install 'torch-nn-graph[onnx]'.",
        )
    with quiet():
        try:
            found: Any = torch.onnx.export(
                opened_again(program),
                dynamo=True,
                external_data=False,
                verbose=False,
                dynamic_shapes=_dimension_names(program),
            )
            assert found is not None
        except Exception as error:  # an op, a dtype or a size that it does not know
            raise NotExportable(
                f"torch.onnx cannot write the step: {reason(error)}.",
                where=line_of(error, program),
                fix=_FIX,
            ) from error
        inputs = argument_names(program, build)
        _rename(found.model, inputs, result_names(program, inputs))
        found.model.metadata_props.update(held)
        found.save(path)


def try_out(program: ExportedProgram, path: str, given: Sequence[torch.Tensor] | None) -> None:
    """Run the model beside the step in torch, where onnxruntime is installed.

    Raises:
        NotExportable: onnxruntime cannot load or run it, or a result differs.
    """
    if importlib.util.find_spec("onnxruntime") is None:
        warn(
            "The ONNX file was not run beside the step, since there is no onnxruntime: what "
            f"torch.onnx wrote may compute something else.\n  Fix: {ExportWarning.fix}",
            ExportWarning,
        )
        return
    runtime: Any = importlib.import_module("onnxruntime")
    options = runtime.SessionOptions()
    options.log_severity_level = 4
    try:
        session = runtime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    except Exception as error:  # classes of its own, below Exception alone
        said = reason(error).replace(path, "the file")
        raise NotExportable(
            f"onnxruntime cannot load what torch.onnx wrote: {said}.",
            fix=_FIX,
        ) from error
    names = [one.name for one in session.get_inputs()]

    def run(tensors: list[torch.Tensor]) -> list[torch.Tensor]:
        feed = {name: _given(runtime, one) for name, one in zip(names, tensors, strict=True)}
        return [_taken(one) for one in session.run_with_ort_values(None, feed)]

    tried(program, run, given, "onnxruntime", _FIX)


def _given(runtime: Any, tensor: torch.Tensor) -> Any:
    value = tensor.detach().cpu().contiguous()
    if value.dtype == torch.bfloat16:  # which numpy lacks
        bits = value.view(torch.int16).numpy()
        return runtime.OrtValue.ortvalue_from_numpy_with_onnx_type(bits, 16)
    return runtime.OrtValue.ortvalue_from_numpy(value.numpy())


def _taken(value: Any) -> torch.Tensor:
    if value.data_type() != "tensor(bfloat16)":
        return torch.from_numpy(value.numpy().copy())
    content = bytearray(ctypes.string_at(value.data_ptr(), value.tensor_size_in_bytes()))
    flat = torch.frombuffer(content, dtype=torch.bfloat16) if content else torch.empty(0)
    return flat.to(torch.bfloat16).reshape(value.shape())


def _rename(model: Any, inputs: Sequence[str], outputs: Sequence[str]) -> None:
    """Name what the model takes and gives; what bears such a name inside gets another one."""
    graph: Any = model.graph
    ir: Any = importlib.import_module("onnxscript").ir
    taken = {*inputs, *outputs}
    outer = [*graph.inputs, *graph.outputs]
    inner = [*graph.initializers.values()]
    for node in ir.traversal.RecursiveGraphIterator(graph):
        inner += node.outputs
    known = {one.name for one in [*outer, *inner]} | taken
    own = {id(one) for one in outer}
    for value in inner:
        if value.name in taken and id(value) not in own:
            value.name = next(
                name for i in range(len(known) + 1) if (name := f"{value.name}_{i}") not in known
            )
            known.add(value.name)
    for values, names in ((graph.inputs, inputs), (graph.outputs, outputs)):
        for value, name in zip(values, names, strict=True):
            value.name = name


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
