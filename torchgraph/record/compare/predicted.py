"""Prediction of the next recording from a call in which the optimizer makes its slots.

The first step of Adam fills its moments with zeros, and continues as every later step. Without the
ops that fill them, and with them among the inputs, its tape is the next one's. The next call
confirms or refutes the prediction, which it is compared with like any recording.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import accumulate
from typing import Any

import torch

from ..._torch.distributed.held import local
from ...ir.aliasing import has_strides
from ...live.step import Leaf
from ...structure.nested import map_nested
from ..tape.tape import Entry, Outs, Ref, Tape, TensorLayout
from .outcome import Outcome

aten = torch.ops.aten
_FILLS = frozenset({
    aten.full.default,
    aten.full_like.default,
    aten.lift_fresh.default,
    aten.new_full.default,
    aten.new_ones.default,
    aten.new_zeros.default,
    aten.ones.default,
    aten.ones_like.default,
    aten.zeros.default,
    aten.zeros_like.default,
})  # fmt: skip
"""Ops whose results depend on no other tensor's values, which later steps replace."""


def predicted(outcome: Outcome) -> Outcome | None:
    """``outcome`` as a step that finds the slots which this one made.

    None where it leaves anything else behind that it did not find, or fills a slot with values of
    its own, such as SGD's first momentum: then the next step does something else.
    """
    made = _made(outcome)
    if made is None:
        return None
    values, tape = set(made.values()), outcome.tape
    kept = [not (_is_of(entry.outs, values) and entry.target in _FILLS) for entry in tape.entries]
    if kept.count(False) != len(values):
        return None
    number = _renumbered(outcome, made)
    index = {leaf.fqn: place for leaf, place in outcome.leaves} | made
    if any(_is_laid_anew(leaf, tape.layouts[index[leaf.fqn]]) for leaf in outcome.after.leaves):
        return None
    leaves = [(leaf, number[index[leaf.fqn]]) for leaf in outcome.after.leaves]
    others = outcome.leaves[len(outcome.step.leaves) :]
    return replace(
        outcome,
        step=outcome.after,
        tape=_without(tape, kept, number, values),
        leaves=leaves + [(leaf, number[place]) for leaf, place in others],
        outputs=[(spec, _moved(value, number)) for spec, value in outcome.outputs],
    )


def first_values(outcome: Outcome) -> dict[str, torch.Tensor]:
    """The initial values of slots that a step makes and `predicted` makes inputs."""
    made = {index: fqn for fqn, index in (_made(outcome) or {}).items()}
    tensors: dict[int, Any] = {place: leaf.value for leaf, place in outcome.leaves}
    tensors.update(outcome.tape.constants)
    found: dict[str, torch.Tensor] = {}
    for entry in outcome.tape.entries:
        if isinstance(entry.outs, int) and entry.outs in made and entry.target in _FILLS:
            given = entry.args, entry.kwargs
            args, kwargs = map_nested(given, Ref, lambda ref: tensors[ref.index])
            found[made[entry.outs]] = entry.target(*args, **kwargs).clone()
    return found


def _made(outcome: Outcome) -> dict[str, int] | None:
    """The values of all places that the step has added, if these are tensors alone."""
    before, after = outcome.step.names(), outcome.after.names()
    fails = outcome.eager or outcome.relaid or outcome.strays or outcome.adopted or outcome.written
    if fails or not outcome.stepped or before - after:
        return None
    statics = {static.fqn for static in outcome.after.statics}
    new = after - before - statics
    made = {fqn: index for fqn, index in outcome.made.items() if fqn in new}
    inputs = {index for _, index in outcome.leaves}
    own = len(set(made.values()) - inputs) == len(made)
    return made if made and own and len(made) == len(new) else None


def _renumbered(outcome: Outcome, made: dict[str, int]) -> list[int]:
    """New numbers of values, on a tape that begins with the leaves after the step."""
    index = {leaf.fqn: place for leaf, place in outcome.leaves} | made
    order = [index[leaf.fqn] for leaf in outcome.after.leaves]
    first = set(order)
    order += [value for value in range(len(outcome.tape.layouts)) if value not in first]
    number = [0] * len(order)
    for now, before in enumerate(order):
        number[before] = now
    return number


def _without(tape: Tape, kept: list[bool], number: list[int], values: set[int]) -> Tape:
    """``tape`` with the entries that are ``kept``; ``values`` are inputs of it."""
    place = [0, *accumulate(kept)]
    others = accumulate((value not in values for value in range(len(number))), initial=0)
    known = [len(values) + count for count in others]
    layouts: list[TensorLayout | None] = [None] * len(number)
    for value, layout in enumerate(tape.layouts):
        layouts[number[value]] = layout
    entries = [
        Entry(
            entry.target,
            _moved(entry.args, number),
            _moved(entry.kwargs, number),
            map_nested(entry.outs, int, number.__getitem__),
            entry.provenance,
            entry.number,
        )
        for entry, stays in zip(tape.entries, kept, strict=True)
        if stays
    ]
    constants = {number[v]: held for v, held in tape.constants.items() if v not in values}
    expectations = [
        one._replace(place=place[one.place], looked_at=number[one.looked_at])
        for one in tape.expectations
    ]
    steps = [
        step._replace(
            start=place[step.start],
            end=place[step.end],
            values=known[step.values],
            values_after=known[step.values_after],
            gradients={name: number[value] for name, value in step.gradients.items()},
        )
        for step in tape.steps
    ]
    return Tape(layouts, entries, constants, expectations, steps)


def _is_laid_anew(leaf: Leaf, met: TensorLayout | None) -> bool:
    """True for a state that the step leaves in another shape or layout than it was met in."""
    held = leaf.value
    if met is None or not isinstance(held, torch.Tensor) or not has_strides(held):
        return False
    now = local(held)
    return (met.shape, met.stride, met.dtype) != (tuple(now.shape), now.stride(), now.dtype)


def _moved(value: object, number: list[int]) -> Any:
    """Arguments with the same values under their new numbers."""
    return map_nested(value, Ref, lambda ref: Ref(number[ref.index]))


def _is_of(outs: Outs, values: set[int]) -> bool:
    return isinstance(outs, int) and outs in values
