"""In-place collectives: run as they are, recorded in functional form.

``dist.all_reduce(t)`` holds a process group, which no program may. The tape has the functional
collective, which names the group, its wait, and the copy of the result into ``t``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

import torch

from ..._torch import OpOverload
from ..._torch.distributed import collectives
from ..._torch.listening import not_listening
from ...distributed.errors import UnknownCollective
from ...errors import NoProgram
from ..tape.tape import Args, Kwargs, Ref, Tape
from .memory import Memory

aten = torch.ops.aten


class _Recorder(Protocol):
    memory: Memory
    tape: Tape

    def index(self, tensor: torch.Tensor) -> int: ...
    def writes(self, op: OpOverload, tensor: torch.Tensor) -> None: ...
    def note(self, op: Any, args: Args, kwargs: Kwargs, outs: Any) -> None: ...
    def unwritten(self, op: OpOverload, args: Args, kwargs: Kwargs) -> object: ...
    def refuse(self, error: NoProgram) -> None: ...


class _Functional(NamedTuple):
    """A functional collective, and the tensors into which its result is copied."""

    name: str
    source: torch.Tensor
    rest: tuple[object, ...]
    shape: tuple[int, ...]
    into: Sequence[torch.Tensor]


def communicate(
    recorder: _Recorder, op: OpOverload, args: tuple[Any, ...], kwargs: Kwargs
) -> object:
    """Run a collective of ``c10d``, and record it."""
    form = _FORMS.get(op.name().removeprefix("c10d::")) if collectives.unboxes() else None
    calls = None if form is None else form(*args)
    if calls is None or not all(map(_is_dense, calls)):
        recorder.refuse(
            UnknownCollective(
                f"the step calls the collective {op.name()}, which holds a process group, and no "
                "program may."
            )
        )
        return recorder.unwritten(op, args, kwargs)
    sources = [recorder.index(call.source) for call in calls]
    places = [[recorder.index(tensor) for tensor in call.into] for call in calls]
    for call in calls:
        functional = getattr(collectives.ops(), call.name).default
        recorder.tape.collectives.record_sent(functional, (call.source, *call.rest))
        for tensor in call.into:
            recorder.writes(op, tensor)
    with not_listening():
        out = op(*args, **kwargs)
    for call, source, into in zip(calls, sources, places, strict=True):
        _note(recorder, call, source, into)
    return out


def _is_dense(call: _Functional) -> bool:
    tensors = (call.source, *call.into)
    return all(t.layout is torch.strided and t.is_contiguous() for t in tensors)


def _note(recorder: _Recorder, call: _Functional, source: int, into: Sequence[int]) -> None:
    ops = collectives.ops()
    with not_listening():
        blank = torch.empty(call.shape, dtype=call.source.dtype, device=call.source.device)
        whole = blank.chunk(len(call.into)) if len(call.into) > 1 else [blank]
        parts = [part.view(t.shape) for part, t in zip(whole, call.into, strict=True)]
    begun, functional = recorder.memory.new(blank), getattr(ops, call.name).default
    recorder.note(functional, (Ref(source), *call.rest), {}, begun)
    produced = recorder.memory.new(blank)
    recorder.note(ops.wait_tensor.default, (Ref(begun),), {}, produced)
    for place, part in zip(into, parts, strict=True):
        recorder.note(aten.copy_.default, (Ref(place), Ref(recorder.index(part))), {}, place)


def _all_reduce(
    tensors: list[torch.Tensor], group: object, how: object, sparse: object, *_: object
) -> list[_Functional] | None:
    name, known = collectives.reduction(), collectives.unboxed(group)
    if name is None or sparse is not None:
        return None
    return [_Functional("all_reduce", t, (name, known.group_name), t.shape, [t]) for t in tensors]


def _broadcast(
    tensors: list[torch.Tensor], group: object, root: int, *_: object
) -> list[_Functional]:
    name = collectives.unboxed(group).group_name
    return [_Functional("broadcast", t, (root, name), t.shape, [t]) for t in tensors]


def _gathered(source: torch.Tensor, group: object, into: list[torch.Tensor]) -> _Functional:
    known = collectives.unboxed(group)
    with not_listening():
        source = source.view(1) if source.ndim == 0 else source
    shape = (source.shape[0] * known.size(), *source.shape[1:])
    rest = (known.size(), known.group_name)
    return _Functional("all_gather_into_tensor", source, rest, shape, into)


def _all_gather(
    outputs: list[list[torch.Tensor]], inputs: list[torch.Tensor], group: object, *_: object
) -> list[_Functional] | None:
    found = [
        _gathered(one, group, into)
        for one, into in zip(inputs, outputs, strict=True)
        if all(tensor.shape == one.shape for tensor in into)
    ]
    return found if len(found) == len(inputs) else None


def _all_gather_base(
    output: torch.Tensor, source: torch.Tensor, group: object, *_: object
) -> list[_Functional]:
    return [_gathered(source, group, [output])]


def _reduce_scatter_base(
    output: torch.Tensor, source: torch.Tensor, group: object, how: object, *_: object
) -> list[_Functional] | None:
    name, known = collectives.reduction(), collectives.unboxed(group)
    if name is None or source.ndim == 0 or source.shape[0] % known.size():
        return None
    rest = (name, known.size(), known.group_name)
    shape = (source.shape[0] // known.size(), *source.shape[1:])
    return [_Functional("reduce_scatter_tensor", source, rest, shape, [output])]


_FORMS: dict[str, Callable[..., list[_Functional] | None]] = {
    "allreduce_": _all_reduce,
    "broadcast_": _broadcast,
    "allgather_": _all_gather,
    "_allgather_base_": _all_gather_base,
    "_reduce_scatter_base_": _reduce_scatter_base,
}
