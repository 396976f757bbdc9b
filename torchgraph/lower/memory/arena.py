"""Arena: the one block in which the temporaries of a lowered program lie, each in its slot.

Into a slot goes what an op can be told where to write: by an ``out=`` form that gives the same
bits, or by a copy that is a copy anyway. Everything else is outside: torch allocates it. The block
is allocated when a step begins and given back when it ends, so that a Graph that is not running
holds none of it. What the caller gets is never in it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch import fx

from ..._torch import OpOverload, schema_of
from ...ir import effects
from ...ir.batch_norms import is_batch_norm
from ...ir.program import Program
from ...ir.values import is_contiguous, sized_by_data
from ..inplace.forms import OutForm, minds_form, out_form
from ..lifetimes import Allocation, Lifetimes, live_bytes, most, results
from . import slots

aten = torch.ops.aten

_LEAST_BYTES = 1024
"""A smaller value costs more to name than it takes."""

_SIZES = 12
"""The number of block sizes that are tried."""
_SLACK = 0.01
_NO_ROOM = "no room that pays"

COPIES = frozenset({aten.clone.default, aten._to_copy.default})
"""Written into a slot by ``copy_``."""

_BY_OFFSET = frozenset({aten.as_strided.default, aten.as_strided_scatter.default})

# Ops whose two forms run the same kernel, besides elementwise ones.
_SAME_KERNEL = frozenset(
    {
        *("addmm", "amax", "amin", "baddbmm", "bmm", "cat", "mean", "mm", "sum"),
        *("_log_softmax", "_log_softmax_backward_data", "_softmax", "_softmax_backward_data"),
        *("avg_pool2d", "gather", "index", "max_pool2d_with_indices", "nll_loss_backward"),
        *("max_pool2d_with_indices_backward", "native_batch_norm", "_native_batch_norm_legit"),
    }
)


class Outside(NamedTuple):
    """Values left out of the arena for one reason: their number and the peak of their bytes."""

    reason: str
    values: int
    nbytes: int


@dataclass(frozen=True)
class Arena:
    """The layout of one block: the offsets of the values that lie in it."""

    nbytes: int = 0
    offsets: dict[fx.Node, tuple[int, ...]] = field(default_factory=dict)
    """Call -> an offset for each of its results."""
    way: str = ""
    outside: tuple[Outside, ...] = ()
    peak: int = 0
    """The block, what is outside, and what kernels take, at the most."""


def form_of(node: fx.Node) -> OutForm | None:
    """The form of a call that writes into slots; None where there is none with the same bits."""
    if not isinstance(node.target, OpOverload) or effects.of(node).random:
        return None
    name = schema_of(node.target).name.removeprefix("aten::")
    if torch.Tag.pointwise not in node.target.tags and name not in _SAME_KERNEL:
        return None
    if is_batch_norm(node.target) and not is_contiguous(node.args[0].meta["val"]):  # type: ignore[union-attr]  # a node
        return None  # given where to write, it goes through the elements in another order
    return None if minds_form(node) else out_form(node.target)


def lay_out(
    program: Program,
    workspaces: Mapping[fx.Node, int],
    *,
    try_all: bool,
    improve: bool,
    limit: int,
) -> Arena:
    """The arena of a lowered program.

    A large block is idle where most of what is taken at a time is outside, so several sizes are
    tried: the largest wins whose planned peak is at most `_SLACK` above the least, and no more than
    that of the greedy layout or ``limit``. It is empty where any block would cost more.

    Args:
        workspaces: what kernels take besides.
        try_all: all ways of `slots`, not only the first.
        improve: search on from the best.
    """
    plan = _Sizes(Lifetimes(program), workspaces)
    fit = plan.fit
    bound = slots.least(fit, plan.length)
    greedy = layout = slots.place(fit, "mem_size_first")
    if try_all:
        layout = slots.best(fit)
    if improve:
        layout = slots.improve(layout, bound)
    found = [plan.arena(greedy), plan.arena(layout)]
    limit = min(limit, found[0].peak)
    crowd = plan.crowd()
    way, _, compact = layout.way.removesuffix(", improved").partition(", ")
    for size in (slots.least(crowd, plan.length), *(bound * n // _SIZES for n in range(_SIZES))):
        smaller = slots.place(fit, way, compact=bool(compact), limit=size, first=crowd)
        found.append(plan.arena(smaller))
    limit = min(limit, int(min(arena.peak for arena in found) * (1 + _SLACK)))
    return max((a for a in found if a.peak <= limit), key=lambda arena: arena.nbytes)


class _Sizes:
    """The sizes of arena layouts for one program."""

    def __init__(self, lifetimes: Lifetimes, workspaces: Mapping[fx.Node, int]) -> None:
        self.length = len(lifetimes.nodes)
        self._lifetimes = lifetimes
        self._workspaces = workspaces
        self._reasons = {value: _why_not(lifetimes, value) for value in lifetimes.values}
        self._reasons |= dict.fromkeys(_by_offset(lifetimes), "read at an offset into its memory")
        self.fit = [value for value in lifetimes.values if not self._reasons[value]]

    def crowd(self) -> list[Allocation]:
        """The values that fit in the arena and are alive at the peak."""
        live = live_bytes(self._lifetimes.values, self.length)
        nodes = self._lifetimes.nodes
        taken = [n + self._workspaces.get(node, 0) for n, node in zip(live, nodes, strict=True)]
        at = taken.index(max(taken))
        return [value for value in self.fit if value.born <= at <= value.dies]

    def arena(self, layout: slots.OffsetAssignment) -> Arena:
        """The arena with the offsets of ``layout``."""
        offsets: dict[fx.Node, tuple[int, ...]] = {}
        for node in dict.fromkeys(value.node for value in layout.offsets):
            own = _results(self._lifetimes, node)
            if all(value in layout.offsets for value in own):  # all of its results, or none
                offsets[node] = tuple(layout.offsets[value] for value in own if value is not None)
        others = [value for value in self._lifetimes.values if value.node not in offsets]
        size = layout.nbytes if offsets else 0
        live = live_bytes(others, self.length)
        peak = size + most(live, self._lifetimes, self._workspaces)
        return Arena(size, offsets, layout.way, self._outside(others), peak)

    def _outside(self, others: Sequence[Allocation]) -> tuple[Outside, ...]:
        told: dict[str, list[Allocation]] = {}
        for value in others:
            told.setdefault(self._reasons[value] or _NO_ROOM, []).append(value)
        return tuple(
            Outside(reason, len(values), max(live_bytes(values, self.length)))
            for reason, values in told.items()
        )


def _results(lifetimes: Lifetimes, node: fx.Node) -> list[Allocation | None]:
    """The allocation of each result of a call; None for a result without one."""
    return [lifetimes.of(node, i) for i in range(len(results(node)))]


def _by_offset(lifetimes: Lifetimes) -> Iterator[Allocation]:
    """Allocations read by ``as_strided``, whose offset is from the storage, not from the slot."""
    for node in lifetimes.nodes:
        if node.target in _BY_OFFSET:
            yield from lifetimes.memory(node.all_input_nodes[0])


def _why_not(lifetimes: Lifetimes, value: Allocation) -> str:
    """The reason why a value cannot lie in a slot; empty when it can."""
    node = value.node
    own = _results(lifetimes, node)
    found = [each for each in own if each is not None]
    if len(found) < len(own):
        return "one of several results that are no memory of their own"
    if any(each.returned for each in found):
        return "returned"
    if sized_by_data(node) or not all(each.known for each in found):
        return "size known only at run time"
    if any(value.device.type != "cpu" for value in results(node)):
        return "on a GPU, whose allocator keeps a pool of its own"
    if sum(each.nbytes for each in found) < _LEAST_BYTES:
        return "small"
    if node.target not in COPIES and form_of(node) is None:
        return "made by ops without an out= form of the same bits"
    return "" if all(map(_is_dense, results(node))) else "laid out with gaps"


def _is_dense(value: torch.Tensor) -> bool:
    """True for a strided tensor whose elements fill its memory, one for one."""
    if value.layout is not torch.strided or value.storage_offset():
        return False
    return bool(value.untyped_storage().nbytes() == value.numel() * value.itemsize)
