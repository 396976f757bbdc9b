"""torch.export's ExportedProgram, put together from a graph and what is known of it."""

from __future__ import annotations

import io
import logging
import sys
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stderr
from typing import Any

import torch
from torch import fx
from torch.export import ExportedProgram, ModuleCallEntry, ModuleCallSignature
from torch.export.graph_signature import (
    ConstantArgument,
    ExportGraphSignature,
    InputSpec,
    OutputKind,
    OutputSpec,
    TensorArgument,
)

from .arithmetic import DTYPES

PARAMETER_MUTATION: OutputKind = getattr(
    OutputKind, "PARAMETER_MUTATION", OutputKind.BUFFER_MUTATION
)
"""What says that a step writes a parameter."""


def exported_program(
    root: fx.GraphModule,
    graph: fx.Graph,
    specs: tuple[Sequence[InputSpec], Sequence[OutputSpec]],
    trees: tuple[Any, Any],
    tensors: tuple[Mapping[str, torch.Tensor], Mapping[str, torch.Tensor]],
    examples: tuple[tuple[Any, ...], dict[str, Any]],
) -> ExportedProgram:
    """An ExportedProgram of a flat functional graph, verified by torch.

    Args:
        root: holds the modules that nodes of the graph name.
        specs: of the inputs in the order of placeholders, of the outputs in theirs.
        trees: pytree specs of ``(args, kwargs)`` and of what is returned.
        tensors: states and constants by the targets of their input specs.
        examples: arguments.
    """
    inputs, outputs = list(specs[0]), list(specs[1])
    signature = ModuleCallSignature(inputs=[], outputs=[], in_spec=trees[0], out_spec=trees[1])
    return ExportedProgram(
        root,
        graph,
        ExportGraphSignature(inputs, outputs),
        dict(tensors[0]),
        {},
        [ModuleCallEntry("", signature)],
        example_inputs=examples,
        constants=dict(tensors[1]),
    )


_LOGS = (
    *("torch.onnx._internal.exporter", "torch.fx.experimental.symbolic_shapes"),
    *("onnxscript", "onnx_ir"),
)


@contextmanager
def quiet() -> Iterator[None]:
    """Silence the log messages of torch's exporters in the block."""
    loggers = [logging.getLogger(name) for name in _LOGS]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            for category in (FutureWarning, DeprecationWarning, UserWarning):
                warnings.simplefilter("ignore", category)
            yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)


@contextmanager
def without_graphs() -> Iterator[None]:
    """Drop the graph that a failing torch.export prints; other output stays."""
    held, graph = io.StringIO(), None
    try:
        with redirect_stderr(held):
            yield
    except Exception as error:  # whatever it is goes on
        graph = getattr(error, "partial_fx_graph", None)
        raise
    finally:
        said = held.getvalue()
        sys.stderr.write(said if graph is None else said.replace(f"{graph}\n", ""))


def opened_again(program: ExportedProgram) -> ExportedProgram:
    """``program`` as a reader of its file has it: with fake values of torch's own making."""
    file = io.BytesIO()
    with quiet():
        torch.export.save(program, file)
        file.seek(0)
        return torch.export.load(file)


def with_tensors(program: ExportedProgram) -> ExportedProgram:
    """``program``, changed: numbers among its results are tensors without dimensions.

    AOTInductor returns tensors alone: it makes such of integers, and fails at a float.
    """
    graph = program.graph
    output = graph.output_node()
    results = list(output.args[0])
    for number, spec in enumerate(program.graph_signature.output_specs):
        dtype = DTYPES.get(type(results[number]))
        if not isinstance(spec.arg, ConstantArgument) or dtype is None:
            continue
        with graph.inserting_before(output):
            made = graph.call_function(
                torch.ops.aten.full.default, ([], results[number]), {"dtype": dtype}
            )
        made.meta["val"] = torch.empty((), dtype=dtype, device="meta")
        results[number], spec.arg = made, TensorArgument(made.name)
    output.args = (tuple(results),)
    program.graph_module.recompile()
    return program
