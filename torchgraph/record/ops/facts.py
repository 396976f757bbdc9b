"""Static facts about an op that the recorder needs, found once for each op."""

from __future__ import annotations

import functools
import re
from typing import NamedTuple

import torch

from ..._torch import OpOverload, schema_of
from ..._torch.distributed.wrappers import promises
from ..._torch.listening import decomposes
from ...ir import effects
from ..tape.tape import Args
from .generators import holds_state
from .rewritten import runs_in_parts

aten = torch.ops.aten
ITEM = aten._local_scalar_dense.default
EQUAL = aten.equal.default
LIFT = aten.lift_fresh.default
_READS = frozenset({ITEM, aten.item.default})
_READS_VALUES: dict[OpOverload, tuple[int, ...]] = {
    aten._pack_padded_sequence.default: (1,),
}
"""Ops whose kernels read a CPU tensor's values to decide about more than their results."""
_READS_FOR: dict[OpOverload, tuple[tuple[int, int], ...]] = {
    aten.convolution_backward.default: ((1, 1), (2, 0)),
}
"""(position, which result it is read for): where that is not wanted, its shape is all."""
_ADDS_TO = frozenset(f"aten::{name}" for name in ("addmm", "addmv", "addbmm", "baddbmm", "addr"))
_BY_MASK = frozenset({"aten::index", "aten::_unsafe_index"})
_EMPTY = re.compile(r"aten::(new_)?empty")
_BY_SHAPE = re.compile(r"aten::(new_|\w+_like$|_?resize|set_)|torchgraph::(bernoulli|normal)$")

_DRAWS_BY_SHAPE = frozenset(
    {
        *(aten.bernoulli.p, aten.uniform.default, aten.normal_functional.default),
        *(aten.random.default, aten.random.to, getattr(aten.random, "from")),
        *(aten.exponential.default, aten.geometric.default, aten.cauchy.default),
        aten.log_normal.default,
    }
)
"""Draws into a new tensor, as the dropout of a transform of torch.func."""


class Facts(NamedTuple):
    """The static facts about one op."""

    runs_whole: bool
    """True where it is only run and recorded: most ops of a step."""
    writes: tuple[tuple[int, str], ...]
    """(position, name) of each written argument, though its schema may not say so."""
    moves: bool
    """True where it changes which memory the tensor object has, and writes no element."""
    gives_item: bool
    """True where it returns the value of a tensor to Python."""
    gives_blank: bool
    """True where its result is uninitialized."""
    takes_generator: bool
    reads_no_data: bool
    """A view, or an op that takes a tensor for its shape alone."""
    sized_by_data: bool
    """True where its result sizes, or its kernel's path, depend on values."""
    sized_by_mask: bool
    """True where its result sizes depend on values if a mask indexes it."""
    of_users: bool
    """True for an op that is not torch's, which may draw without a tag."""
    begins: bool
    """True for an asynchronous collective, followed by a wait."""
    waits: bool
    """True for the wait of a collective: it returns its argument with new contents."""
    reads_for: tuple[tuple[int, int], ...]
    """(position, index in ``output_mask``) of arguments read for one result alone."""
    copies: bool
    """True where its result is its first argument's content, in another dtype or layout maybe."""
    adds_to: bool
    """True where ``beta`` scales the first argument, which is not read where that is 0."""
    reads_values: tuple[int, ...]
    """Positions of arguments whose values decide more than the results."""

    def sizes_depend_on(self, args: Args) -> bool:
        """True for a call whose result sizes depend on values."""
        if not self.sized_by_mask:
            return self.sized_by_data
        indices = args[1] if isinstance(args[1], (list, tuple)) else ()
        masks = (torch.bool, torch.uint8)
        return any(isinstance(index, torch.Tensor) and index.dtype in masks for index in indices)


@functools.cache
def facts(op: OpOverload) -> Facts:
    """The facts about ``op``."""
    schema = schema_of(op)
    view = any(returned.alias_info is not None for returned in schema.returns)
    moves = torch.Tag.inplace_view in op.tags
    takes_generator = any(map(holds_state, schema.arguments))
    apart = (
        op.namespace in ("profiler", "prim", "c10d"),
        decomposes(op, "cpu") or decomposes(op, "cuda"),
        runs_in_parts(op),
        op is EQUAL or op is LIFT,
        takes_generator,
        effects.of_target(op).random,
        moves,
        promises(op),
    )
    return Facts(
        runs_whole=not any(apart),
        writes=() if moves else _writes(op),
        moves=moves,
        gives_item=op in _READS,
        gives_blank=bool(_EMPTY.match(schema.name)),
        takes_generator=takes_generator,
        reads_no_data=(view and not schema.is_mutable)
        or bool(_BY_SHAPE.match(schema.name))
        or op in _DRAWS_BY_SHAPE,
        sized_by_data=torch.Tag.dynamic_output_shape in op.tags or op in _READS_VALUES,
        sized_by_mask=schema.name in _BY_MASK,
        of_users=effects.of_users(op) and not effects.of_target(op).random,
        begins=effects.of_target(op).communicates,
        waits=effects.waits(op),
        reads_for=_READS_FOR.get(op, ()),
        copies=schema.name in ("aten::_to_copy", "aten::clone"),
        adds_to=schema.name in _ADDS_TO,
        reads_values=_READS_VALUES.get(op, ()),
    )


def _writes(op: OpOverload) -> tuple[tuple[int, str], ...]:
    lies = schema_of(op).name in effects.LYING_SCHEMAS
    return tuple(
        (position, argument.name)
        for position, argument in enumerate(schema_of(op).arguments)
        if (lies and argument.name.startswith("running"))
        or (argument.alias_info is not None and argument.alias_info.is_write)
    )
