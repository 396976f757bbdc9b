"""``tg.export``: a step as a file for other runtimes."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import torch

from .._torch import pytree
from ..artifact.saving import path_of
from ..blocks.holder import ModuleHolder
from ..errors import InvalidOption, NotExportable
from ..options.checking import OWN_CHECK, OneOf, checked, shown
from . import files
from .captured import captured_step
from .dynamic import described_trace, traced
from .formats.described import as_text, described

FORMATS = ("pt2", "aoti", "onnx")


@checked
def export(
    graph: Annotated[Any, OWN_CHECK],
    path: str | os.PathLike[str],
    format: Annotated[str, OneOf(FORMATS)] = "pt2",  # torch.onnx calls it so, too
    *,
    args: Sequence[Any] | None = None,
    kwargs: Mapping[str, Any] | None = None,
    dynamic_batch: bool = False,
    dynamic_shapes: Annotated[Any, OWN_CHECK] = None,
) -> None:
    """Write the step of a Graph to a file that runs without torchgraph and the model's source.

    A training step is written whole: forward, backward, update. Parameters, buffers, the
    optimizers' states and numbers are states of the file under their names in the Graph, a learning
    rate among them. Schedulers are not in it: who runs the step writes the rate. The Graph, its
    states and the random generators are as before; the file that was at ``path`` is replaced as a
    whole, or stays.

    Args:
        format: ``"pt2"``, for `torch.export.load`. ``"aoti"``: compiled for this kind of machine
            with AOTInductor, for C++ and Python; a training step takes its states as its first
            argument and writes them. ``"onnx"``: inference alone; needs ``torch-nn-graph[onnx]``.
        args, kwargs: of the call that is exported; without them, the last program is.
        dynamic_batch: of an inference step, the first dimension of its arguments is free.
        dynamic_shapes: of an inference step, as for `torch.export.export`, by `build`'s parameters.

    Raises:
        NotExportable: the step needs Python; names the user's line and the way out.
        NotCompiled: the Graph was not called, and there are no ``args``.
        CheckpointFileError: the path cannot be written.
    """
    if not isinstance(graph, ModuleHolder):
        raise InvalidOption(f"tg.export takes a Graph, not {shown(graph)}.")
    given = None if args is None and kwargs is None else (tuple(args or ()), dict(kwargs or {}))
    shapes = dynamic_shapes if dynamic_shapes is not None else dynamic_batch or None
    name = type(graph).__name__
    if graph.config.training and (shapes is not None or format == "onnx"):
        raise _inference_only(format)
    place = path_of(path)
    if shapes is not None:
        with graph._runner.live.lock.lock, graph._runner.live.signals:
            program = traced(graph._runner, given, shapes)
        text = as_text(described_trace(program, name))
        known = None if given is None else _tensors(program.example_inputs)
        files.write(program, place, format, text, graph.build, known)
        return
    with graph._runner.live.lock.lock, graph._runner.live.signals:
        call = None if given is None else graph._runner.live.inputs.bind(*given, whole=True)
        known = None if call is None else _tensors((call.args, call.kwargs))
        one, held = captured_step(graph._runner, given)
    text = as_text(described(one, name, held))
    if format == "aoti" and any(state.written for state in one.states):
        files.write_states(one, place, text, graph.build)
    else:
        files.write(one.whole(), place, format, text, graph.build, known)


def _tensors(tree: Any) -> list[torch.Tensor]:
    return [leaf for leaf in pytree.tree_leaves(tree) if isinstance(leaf, torch.Tensor)]


def _inference_only(format: str) -> NotExportable:
    if format == "onnx":
        return NotExportable(
            "A training step cannot be ONNX: onnxruntime trains no more, and ONNX has no mutation.",
            fix='use format="pt2" or "aoti", or export an evaluation Graph of the same modules.',
        )
    return NotExportable(
        "A training step is exported for one size: gradients of a mean, batch norm and the like "
        "have it in them.",
        fix="leave out dynamic_batch and dynamic_shapes; export a file for each size, or pad.",
    )
