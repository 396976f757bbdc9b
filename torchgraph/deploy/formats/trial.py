"""A file that was made runs once beside the step in torch, before it is handed out."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.export import ExportedProgram
from torch.export.graph_signature import ConstantArgument, OutputKind

from ..._torch import pytree
from ...errors import ExportWarning, NotExportable
from ...lines import warn
from .examples import Tensors, call, calls
from .names import result_names
from .reasons import reason

_SHARES = {torch.float16: 1e-2, torch.bfloat16: 5e-2}
"""By the dtype of what is rounded, how far a result may be off, as a share of its largest value."""
_SHARE = 1e-5
_ROUNDING = 1e-3
"""Up to here rounding of a deep model may lead: it is said, and the file is written."""
_FEW = 0.01
"""So many integers, such as indices of the largest, may be others where two are nearly equal."""


def tried(
    program: ExportedProgram,
    run: Callable[[Tensors], Sequence[torch.Tensor]],
    given: Sequence[torch.Tensor] | None,
    where: str,
    fix: str,
) -> None:
    """Run a file on the arguments of the export, on others like them, and on another free batch.

    A step that draws random numbers is run, not compared: another library draws others.

    Args:
        run: what the file computes of the tensors of a call, in order.
        given: the tensors of the user's call; None where only their shapes are known.
        where: what runs the file, such as ``onnxruntime``.
        fix: the way out.

    Raises:
        NotExportable: it does not run, or a result differs by more than rounding, which is a
            warning; names it, and by how much.
    """
    names, share = result_names(program, ()), _share(program)
    step = program.module()
    for tensors, made_up in calls(program, given):
        expected, random = _by_torch(program, step, tensors, made_up)
        if expected is None:
            continue
        try:
            got = run(tensors)
        except Exception as error:  # of another library, or of compiled code
            raise NotExportable(
                f"{where} cannot run the step that was exported: {reason(error)}.", fix=fix
            ) from error
        for name, mine, its in zip(names, expected, got, strict=True):
            said, wrong = ("", False) if random else _difference(mine, its, share, made_up)
            what = f"{where} computes {name} otherwise than torch: {said}."
            if wrong:
                raise NotExportable(what, fix=fix)
            if said:
                warn(f"{what} It may be rounding.", ExportWarning)


def tensor_results(program: ExportedProgram, results: Any) -> Tensors:
    """The tensors among the results of a call; a size is given as a tensor."""
    specs = program.graph_signature.output_specs
    users = [one.arg for one in specs if one.kind is OutputKind.USER_OUTPUT]
    leaves = pytree.tree_leaves(results)
    return [
        torch.as_tensor(leaf)
        for leaf, one in zip(leaves, users, strict=True)
        if not isinstance(one, ConstantArgument)
    ]


def _by_torch(
    program: ExportedProgram, step: Callable[..., Any], tensors: Tensors, made_up: bool
) -> tuple[Tensors | None, bool]:
    """The results of the step in torch, and whether it draws; None where torch raises."""
    args, kwargs = call(program, [one.clone() for one in tensors])
    devices = sorted({one.device.index or 0 for one in tensors if one.is_cuda})
    try:
        with torch.random.fork_rng(devices=devices), torch.no_grad():
            before = _random_state(devices)
            found = tensor_results(program, step(*args, **kwargs))
            states = zip(before, _random_state(devices), strict=True)
            return found, not all(torch.equal(one, other) for one, other in states)
    except Exception as error:  # an index that is too large, say, among values that are made up
        if made_up:
            return None, False
        raise NotExportable(f"The step does not run on args=: {reason(error)}.") from error


def _random_state(devices: Sequence[int]) -> Tensors:
    return [torch.get_rng_state(), *(torch.cuda.get_rng_state(one) for one in devices)]


def _share(program: ExportedProgram) -> float:
    """The relative tolerance of the coarsest dtype in the step."""
    found = {
        value.dtype
        for node in program.graph.nodes
        for value in pytree.tree_leaves(node.meta.get("val"))
        if isinstance(value, torch.Tensor)
    }
    return max(_SHARES.get(dtype, _SHARE) for dtype in {*found, torch.float32})


def _difference(
    expected: torch.Tensor, got: torch.Tensor, share: float, made_up: bool
) -> tuple[str, bool]:
    """The difference in words, empty for none, and whether it is more than rounding.

    A NaN that torch gives for made-up arguments is equal to anything.
    """
    got = got.to(expected.device)
    for what in ("dtype", "shape"):
        mine, its = getattr(expected, what), getattr(got, what)
        if mine != its:
            return f"its {what} is {its}, and not {mine}", True
    kind = torch.complex128 if expected.is_complex() else torch.float64
    mine, its = expected.to(kind), got.to(kind)
    exact = not (expected.is_floating_point() or expected.is_complex())
    size = float(mine[mine.isfinite()].abs().max()) if mine.isfinite().any() else 0.0
    off = (mine - its).abs()

    def alike(share: float) -> torch.Tensor:
        near = off <= (0.0 if exact else share * size)
        return (mine == its) | near | (mine.isnan() & (its.isnan() | made_up))

    close = alike(share)
    count = int((~close).sum())
    if not count:
        return "", False
    few = exact and count <= _FEW * close.numel()
    worst = int(off.nan_to_num(torch.inf).where(~close, -1.0).argmax())
    words = (
        f"{count} of {close.numel()} values differ; one is {its.flatten()[worst].item():.6g}, "
        f"and in torch {mine.flatten()[worst].item():.6g}"
    )
    return words, not few and not alike(max(share, _ROUNDING)).all()
