"""Whether each op of a step gives the same bits again: before a program that differs is blamed.

Eager itself may be another from call to call: kernels that read memory that nobody has filled, that
go by addresses, or that add up in any order; ops of users that ask a clock. Each op of the recorded
step runs again over copies of what it was given, in memory that held something else before.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import fx

from .._torch import OpOverload, pytree, schema_of
from ..capture.graph_of import is_unset
from ..errors import SourceLine
from ..ir import bits, effects
from ..ir.aliasing import has_strides
from ..ir.copies import copied
from ..ir.program import Program
from ..ir.values import tensors_of
from ..live.inputs import Call
from ..lower.agreements import communicates
from ..random_state import TorchRandomState
from .bound import Bound
from .origin import line_of, op_of
from .run import Stop, arguments, walk
from .start import Start

_FILLS = (0x7F, 0x00, 0xFF)
"""Bytes that free memory is filled with: large numbers, zeros, NaN."""
_BLOCKS = 16
"""Blocks of each size that are filled: the allocator hands one of them out next."""
_MOST = 2**26
"""Bytes of the blocks of one size."""
_ALIGNMENT = 64
"""Bytes to which torch aligns memory on the CPU."""
AGAIN = "gives other bits when it is called again with the same arguments"
ELSEWHERE = "gives other bits where the same arguments lie elsewhere in memory"


class Unrepeated(NamedTuple):
    """An op that gives other bits for the same arguments."""

    op: str
    how: str
    where: SourceLine | None

    def __str__(self) -> str:
        at = f" (at {self.where})" if self.where else ""
        return f"eager does not repeat itself: {self.op} {self.how}{at}"


def unrepeated(replay: Bound, start: Start, call: Call) -> Unrepeated | None:
    """The first op of a step that does not repeat itself, as `first_unrepeated` finds it.

    ``start``: a start of the call, or what a run has left of it.
    """
    values = start.inputs(replay, replay.captured.side_effects.extended(call, start.places))
    return first_unrepeated(replay.captured.program, values)


def first_unrepeated(program: Program, values: Sequence[Any]) -> Unrepeated | None:
    """The first op of a program that does not repeat itself over ``values``, which stay.

    None where each does, and where it is unknown: in micro-batches, and among ranks.
    """
    if program.signature.micro_batches > 1 or communicates(program):
        return None
    for how, elsewhere in ((AGAIN, False), (ELSEWHERE, True)):
        found = _first(program, values, elsewhere)
        if found is not None:
            return Unrepeated(op_of(found), how, line_of(found))
    return None


def _first(program: Program, values: Sequence[Any], elsewhere: bool) -> fx.Node | None:
    found: list[fx.Node] = []
    known: list[Mapping[fx.Node, Any]] = [{}]

    def before(node: fx.Node, now: Mapping[fx.Node, Any]) -> None:
        known[0] = now

    def after(node: fx.Node, value: Any) -> Any:
        moved = _moving(node) if elsewhere else copied
        if _may_run_again(node) and not _repeats(node, known[0], value, moved):
            found.append(node)
            raise Stop
        return value

    gpus = {one.device for one in values if isinstance(one, torch.Tensor) and one.is_cuda}
    try:
        with TorchRandomState(gpus).kept(), torch.no_grad():
            walk(program, values, after, before=before)
    except Exception:  # then nothing is known
        return None
    return next(iter(found), None)


def _may_run_again(node: fx.Node) -> bool:
    if node.op != "call_function" or not effects.of(node).pure or is_unset(node.target):
        return False
    name = schema_of(node.target).name if isinstance(node.target, OpOverload) else ""
    return "as_strided" not in name  # it has an offset of its own


def _repeats(
    node: fx.Node, known: Mapping[fx.Node, Any], value: Any, moved: Callable[[Any], Any]
) -> bool:
    args, kwargs = arguments(node, known)
    expected = list(tensors_of(value))
    for fill in _FILLS if expected else ():
        given = pytree.tree_map_only(torch.Tensor, moved, (args, kwargs))
        _fill_free_memory([*expected, *tensors_of(given)], fill)
        assert callable(node.target)
        again = list(tensors_of(node.target(*given[0], **given[1])))
        if not all(map(bits.same, expected, again)):
            return False
    return True


def _fill_free_memory(like: list[torch.Tensor], fill: int) -> None:
    blocks = []
    for tensor in like:
        count = min(_BLOCKS, _MOST // max(tensor.nbytes, 1)) if has_strides(tensor) else 0
        for _ in range(count):
            blocks.append(torch.empty_like(tensor))
            memory: Any = blocks[-1].untyped_storage()
            memory.fill_(fill)


def _moving(node: fx.Node) -> Callable[[torch.Tensor], torch.Tensor]:
    """How to move an op's arguments: to another alignment for users' ops alone.

    Programs keep alignments, by which some CPUs' matrix products round.
    """
    return functools.partial(_moved, aligned=not effects.of_users(node.target))


def _moved(tensor: torch.Tensor, *, aligned: bool) -> torch.Tensor:
    """A copy with the same strides that begins further on in its memory."""
    if not has_strides(tensor) or not tensor.numel() or tensor.is_conj() or tensor.is_neg():
        plain: torch.Tensor = copied(tensor)
        return plain
    last = sum((n - 1) * step for n, step in zip(tensor.shape, tensor.stride(), strict=True))
    first = (_ALIGNMENT + tensor.data_ptr() % _ALIGNMENT) // tensor.itemsize if aligned else 1
    held = torch.empty(last + first + 1, dtype=tensor.dtype, device=tensor.device)
    made: torch.Tensor = held.as_strided(tensor.shape, tensor.stride(), first)
    made.copy_(tensor)
    return made
