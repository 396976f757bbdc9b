"""Steps that a GradScaler skips: each state that an optimizer writes keeps its old value then."""

from __future__ import annotations

import operator
from collections.abc import Collection, Mapping
from dataclasses import replace

import torch
from torch import fx

from .. import library
from ..errors import NotSupported
from ..ir import names
from ..ir.program import OutputKind, Program
from ..ir.rewriter import Rewriter


def keep_skipped(program: Program, written: Mapping[str, Collection[int]]) -> None:
    """Choose between the old and the new states by the SKIP outputs, parameter by parameter.

    What an optimizer keeps in Python numbers, and what it creates, is left to whoever runs the
    program. The BEFORE outputs go. ``written``: the tensors that the optimizers' steps, with their
    hooks, write, and the numbers of those optimizers.

    Raises:
        NotSupported: two optimizers write one tensor.
    """
    outputs = program.returns()
    before = {out.target: value for out, value in outputs if out.kind is OutputKind.BEFORE}
    found = {out.target: value for out, value in outputs if out.kind is OutputKind.SKIP}
    if not found:
        return
    _drop(program, OutputKind.BEFORE)
    edit = Rewriter(program, "capture")
    old = {fqn: mark.args[0] for fqn, mark in before.items()}
    for mark in before.values():
        edit.replace(mark, mark.args[0])
    states = {**{spec.fqn: node for spec, node in program.inputs()}, **old}
    order = {node: position for position, node in enumerate(program.nodes)}
    for (optimizer, *_), places in _by_parameter(program, written).items():
        if optimizer in found:
            _keep(program, edit, places, states, found[optimizer], order)


def _drop(program: Program, kind: OutputKind) -> None:
    kept = [(out, value) for out, value in program.returns() if out.kind is not kind]
    program.output.args = (tuple(value for _, value in kept),)
    program.signature = replace(program.signature, outputs=tuple(out for out, _ in kept))


def _by_parameter(
    program: Program, written: Mapping[str, Collection[int]]
) -> dict[tuple[str, ...], list[int]]:
    """(optimizer, parameter, where it is) -> the places of the tensors in the output tuple."""
    owners: dict[str, str] = {}
    for fqn, numbers in written.items():
        if len(numbers) > 1:
            raise NotSupported(
                f"Under a grad scaler, which skips each optimizer on its own, {fqn} is written by "
                "the steps of two optimizers.",
                fix="write it in the step hook of one optimizer, or outside of the Graph.",
            )
        owners[fqn] = names.optimizer(min(numbers))
    found: dict[tuple[str, ...], list[int]] = {}
    for place, (out, value) in enumerate(program.returns()):
        if out.kind is not OutputKind.UPDATE or not _is_tensor(value):
            continue
        owner = names.optimizer_of(out.target) or owners.get(out.target, "")
        parameter = names.parameter_of(out.target) or out.target
        new = value.meta["val"]
        # A step counter apart from the rest: in a CUDA Graph the host keeps it.
        where = "counter" if new.ndim == 0 and new.device.type == "cpu" else str(new.device)
        found.setdefault((owner, parameter, where), []).append(place)
    return found


def _is_tensor(value: object) -> bool:
    return isinstance(value, fx.Node) and isinstance(value.meta.get("val"), torch.Tensor)


def _keep(
    program: Program,
    edit: Rewriter,
    places: list[int],
    states: Mapping[str, fx.Node],
    found: fx.Node,
    order: Mapping[fx.Node, int],
) -> None:
    """Emit one choice for the states of a parameter, right after the last is computed."""
    old = [states[program.signature.outputs[place].target] for place in places]
    new = [program.results[place] for place in places]
    changed = [i for i in range(len(places)) if old[i] is not new[i]]
    if not changed:
        return
    old, new = [old[i] for i in changed], [new[i] for i in changed]
    last = max([*old, *new, found, program.placeholders[-1]], key=order.__getitem__)
    at = last.next
    kept = edit.call(library.keep, (old, new, found), before=at, like=new[0])
    edit.outputs(
        {
            places[i]: edit.call(operator.getitem, (kept, j), before=at, like=new[j])
            for j, i in enumerate(changed)
        }
    )
