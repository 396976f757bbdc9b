"""State changes by rebinding: buffers, ``p.data = q``, rotated slots; recorded as copies."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import chain

import torch

from .._torch.functorch import is_wrapped
from .._torch.listening import not_listening
from ..ir.program import Role
from ..live.step import Leaf, Step
from .ops.memory import Memory
from .ops.recorder import Recorder
from .tape.tape import TensorLayout


def escaped(step: Step, left: Iterable[tuple[str, object]]) -> str:
    """The name of a wrapped tensor of an ended torch.func transform; mostly empty.

    ``left``: the results and stored tensors, with names.
    """
    states = ((leaf.fqn, leaf.now()) for _, leaf in step.tensors())
    named = (
        (name, value) for name, value in chain(left, states) if isinstance(value, torch.Tensor)
    )
    return next((name for name, tensor in named if is_wrapped(tensor)), "")


def ends(
    step: Step, recorder: Recorder, index: Sequence[int], free: Sequence[tuple[Leaf, int]]
) -> None:
    """Record copies of final values into the states whose tensors were rebound.

    All new values are read before the first is written.

    Args:
        index: the leaves' values on the tape.
        free: tensors from outside, each with its value.
    """
    if recorder.gave_up:
        return
    moved: list[tuple[int, torch.Tensor]] = []
    states = [(leaf, index[position]) for position, leaf in step.tensors()]
    states += [(leaf, place) for leaf, place in free if leaf.role is Role.FREE]
    owned = {place for _, place in states}
    for leaf, place in states:
        now = leaf.now()
        if not isinstance(now, torch.Tensor) or not _alike(now, leaf.value):
            continue  # that is another structure
        if now is not leaf.value and now.is_inference():
            recorder.give_up(f"{leaf.fqn} is made an inference tensor, which no program writes")
            return
        with not_listening():
            value = now.detach()
        known = recorder.index(value)
        if known != place:
            moved.append((place, value.clone() if known in owned else value))
    for place, value in moved:
        recorder.write(place, value)


def made(step: Step, after: Step, memory: Memory) -> dict[str, int]:
    """By name, the values of tensors that became states, from ``after``."""
    known = step.names()
    new = ((leaf.fqn, memory.find(leaf.value)) for _, leaf in after.tensors())
    return {fqn: value for fqn, value in new if value is not None and fqn not in known}


def relaid(
    recorder: Recorder, leaves: Sequence[tuple[Leaf, int]], given: Sequence[torch.Tensor]
) -> str:
    """The first state or argument whose dtype, shape or strides the step changed.

    Or the first argument with other memory, which no program gives the caller's tensor.
    ``given``: the arguments. A micro-batch is none of them, and is gone after the step.
    """
    lasting = {id(tensor) for tensor in given}
    for leaf, index in leaves:
        met = recorder.tape.layouts[index]
        if met is None or (leaf.role is Role.INPUT and id(leaf.value) not in lasting):
            continue
        now = recorder.memory.layout(leaf.value)
        moved = leaf.role is Role.INPUT and (met.storage, met.offset) != (now.storage, now.offset)
        if moved or _way(met) != _way(now):
            return leaf.fqn
    return ""


def _way(layout: TensorLayout) -> tuple[object, ...]:
    return (layout.shape, layout.stride, layout.dtype)


def _alike(now: torch.Tensor, before: torch.Tensor) -> bool:
    """True for the same shape, dtype and device; else the structure is another one."""
    return (now.shape, now.dtype, now.device) == (before.shape, before.dtype, before.device)
