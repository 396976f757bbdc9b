"""An inference step with dimensions that a call may choose: torch.export's own trace of `build`.

A recorded program has the sizes of its batch in it, as ``view([4, -1])``.
"""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch import nn
from torch.export import Dim, ExportedProgram, ShapesCollection

from .._torch import pytree
from ..calls.runner import Runner
from ..errors import NotExportable
from ..record.amp import Autocast
from . import own_ops
from .assembled import quiet, without_graphs
from .captured import examples
from .formats.reasons import reason, suggested


class _Step(nn.Module):
    """The modules of a Graph, under their names, and its `build`."""

    def __init__(self, modules: dict[str, nn.Module], build: Any) -> None:
        super().__init__()
        for name, module in modules.items():
            self.add_module(name, module)
        self.forward = build


def traced(
    runner: Runner, given: tuple[tuple[Any, ...], dict[str, Any]] | None, shapes: Any
) -> ExportedProgram:
    """The program that torch.export makes of `build`; side effects on objects are undone.

    Args:
        shapes: as for `torch.export.export`; True: the first dimension of each argument, together.

    Raises:
        NotExportable: torch.export cannot follow; the cause is attached.
    """
    options = runner.live.options
    if options.amp is not None and options.autocast is None:
        raise NotExportable(
            "enable_amp(policy='oneflow') colours a recorded program; a trace with a dynamic "
            "dimension has none.",
            fix="enable_amp(policy='autocast'), or export without a dynamic dimension.",
        )
    args, kwargs = examples(runner) if given is None else given
    call = runner.live.inputs.bind(args, kwargs, whole=True)
    with runner.programs.undone(call) as step, runner.live.building(patched=False):
        autocast = Autocast(options.autocast, [leaf.value for leaf in step.leaves])
        build = autocast.eager(runner.live.build)
        module = _Step(dict(step.roots), functools.wraps(runner.live.build)(build))
        if shapes is True:
            shapes, args, kwargs = _batches(args, kwargs)
        try:
            with quiet(), without_graphs(), torch.no_grad():
                found = torch.export.export(
                    module, args, kwargs, dynamic_shapes=shapes, strict=False
                )
        except Exception as error:  # of torch's tracer, or of `build` where a size is free
            raise NotExportable(
                f"torch.export cannot trace build with a dynamic dimension: {reason(error)}.",
                fix=_way_out(error),
            ) from error
    return _without_marks(found)


def described_trace(program: ExportedProgram, name: str) -> dict[str, Any]:
    """The description of what `traced` made."""
    sizes = {node.name: node.meta.get("val") for node in program.graph.find_nodes(op="placeholder")}
    return {
        "format": 1,
        "torch": torch.__version__,
        "graph": name,
        "arguments": [
            {
                "name": one,
                "dtype": str(value.dtype).removeprefix("torch."),
                "shape": [size if type(size) is int else str(size) for size in value.shape],
                "strides": [size if type(size) is int else str(size) for size in value.stride()],
            }
            for one in program.graph_signature.user_inputs
            if isinstance(value := sizes.get(str(one)), torch.Tensor)
        ],
        "states": [*program.state_dict],
    }


def _batches(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, Any, Any]:
    """Dimension 0 as one for all tensors that have as many rows, and examples of at least 2."""
    leaves, spec = pytree.tree_flatten((args, kwargs))
    sizes = [leaf.shape[0] for leaf in leaves if isinstance(leaf, torch.Tensor) and leaf.ndim]
    if not sizes:
        raise NotExportable(
            "No argument of build has a dimension for a batch.", fix="leave out dynamic_batch."
        )
    batch, shapes = Dim("batch"), ShapesCollection()
    for number, leaf in enumerate(leaves):
        if isinstance(leaf, torch.Tensor) and leaf.ndim and leaf.shape[0] == sizes[0]:
            if sizes[0] == 1:  # which a trace would take for a constant
                leaves[number] = leaf = torch.cat([leaf, leaf])
            shapes[leaf] = {0: batch}
    return shapes, *pytree.tree_unflatten(leaves, spec)


def _without_marks(program: ExportedProgram) -> ExportedProgram:
    """The program without torchgraph's own ops, such as ``tg.depend``."""
    graph = program.graph
    for node in list(graph.nodes):
        if node.target in own_ops.PASSED_ON:
            node.target, node.args = torch.ops.aten.alias.default, node.args[:1]
    program.graph_module.recompile()
    return program


def _way_out(error: Exception) -> str:
    """The fix to suggest for an error of torch.export."""
    text, one_size = str(error), "without dynamic_batch and dynamic_shapes, for one size."
    if "pytree" in text or "output type" in text or "register_dataclass" in text:
        return (
            "return tensors, numbers, and dicts, lists and tuples of them, or make the class known "
            "with torch.export.register_dataclass."
        )
    found = suggested(error)
    if "Dim(" in found:
        return f"give the dimension such limits by dynamic_shapes= ({found}), or export {one_size}"
    return f"leave what depends on the size to torch's ops, or export {one_size}"
