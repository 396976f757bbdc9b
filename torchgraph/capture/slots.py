"""Optimizer slots that the traced step created: made for real when their first value is known.

Adam fills its moments with zeros and then updates them; the fill depends on no gradient, so it is
run now, the slot becomes an input, and the program serves every later step too. SGD's momentum
starts as a clone of the first gradient; such a slot stays an output and the program serves that one
step. So do the slots of an optimizer that is neither torch's nor ours: one trace cannot tell where
its first values end and its updates begin.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import fx

from .. import effects
from ..optim.rules import allocates_slots
from ..program import OutputKind, Role
from .standins import number_tensor
from .step import Leaf
from .trace import Recording
from .update import Created

aten = torch.ops.aten
_READS_METADATA_ONLY = frozenset(
    {
        aten.zeros_like.default,
        aten.ones_like.default,
        aten.full_like.default,
        aten.new_zeros.default,
        aten.new_ones.default,
        aten.new_full.default,
    }
)
_UNSET = frozenset(
    {
        aten.empty.memory_format,
        aten.empty_like.default,
        aten.empty_strided.default,
        aten.new_empty.default,
        aten.new_empty_strided.default,
    }
)


class NotKnownYet(Exception):
    """The first value depends on the data of the step."""


def make_slots(
    recording: Recording, optimizers: Sequence[torch.optim.Optimizer]
) -> list[tuple[Created, torch.Tensor]]:
    """Make each created slot of known first value an input of the recording; returns the values."""
    made: list[tuple[Created, torch.Tensor]] = []
    if not recording.creates:
        return made
    first_values = _FirstValues(recording)
    *_, last = (node for node in recording.gm.graph.nodes if node.op == "placeholder")
    for new in recording.creates:
        if not allocates_slots(optimizers[new.optimizer]):
            continue
        creator = _origin(recording.creators.get(id(new.value)))
        try:
            value = first_values.of(creator)
        except NotKnownYet:
            continue
        made.append((new, value))
        last = _make_input(recording, new, creator, value, last)
    _drop_outputs(recording, {new.fqn for new, _ in made})
    return made


class _FirstValues:
    """Evaluates creation ops on the live parameters, as eager's first step would."""

    def __init__(self, recording: Recording) -> None:
        placeholders = (n for n in recording.gm.graph.nodes if n.op == "placeholder")
        self._leaves = dict(zip(placeholders, recording.inputs, strict=True))
        self._root = recording.gm

    def of(self, node: fx.Node | None) -> torch.Tensor:
        """A fresh tensor. Raises NotKnownYet."""
        if node is None or node.op != "call_function" or not _allocates(node):
            raise NotKnownYet
        if node.target in _UNSET:
            raise NotKnownYet  # the step itself puts the first value there
        with torch.no_grad():
            value = self._evaluate(node)
        assert isinstance(value, torch.Tensor)
        return value

    def _evaluate(self, node: fx.Node) -> Any:
        if node.op == "placeholder":
            leaf = self._leaves[node]
            if leaf.role in (Role.INPUT, Role.FREE):
                raise NotKnownYet
            return leaf.value if isinstance(leaf.value, torch.Tensor) else number_tensor(leaf.value)
        if node.op == "get_attr":
            return getattr(self._root, str(node.target))
        if not effects.of(node).pure:
            raise NotKnownYet
        target: Any = node.target
        if target in _READS_METADATA_ONLY:
            like = node.args[0]
            assert isinstance(like, fx.Node)
            rest = fx.map_arg(node.args[1:], self._evaluate)
            return target(_empty(like), *rest, **fx.map_arg(node.kwargs, self._evaluate))
        args = fx.map_arg(node.args, self._evaluate)
        return target(*args, **fx.map_arg(node.kwargs, self._evaluate))


def _empty(node: fx.Node) -> torch.Tensor:
    fake = node.meta["val"]
    return torch.empty_strided(fake.shape, fake.stride(), dtype=fake.dtype, device=fake.device)


def _origin(node: fx.Node | None) -> fx.Node | None:
    """The node that allocated the memory, when ``node`` is but an alias that nobody shares."""
    while node is not None and node.target is aten.detach.default:
        source = node.args[0]
        if not isinstance(source, fx.Node) or len(source.users) > 1:
            break
        node = source
    return node


def _allocates(node: fx.Node) -> bool:
    schema = getattr(node.target, "_schema", None)
    return schema is not None and all(ret.alias_info is None for ret in schema.returns)


def _make_input(
    recording: Recording, new: Created, creator: Any, value: torch.Tensor, last: fx.Node
) -> fx.Node:
    """Put a placeholder after ``last`` in the creator's place; returns it."""
    graph = recording.gm.graph
    with graph.inserting_after(last):
        slot = graph.placeholder(f"slot_{len(recording.inputs)}")
    slot.meta = dict(creator.meta)
    creator.replace_all_uses_with(slot)
    graph.erase_node(creator)
    recording.inputs.append(Leaf(new.fqn, Role.SLOT, {new.key: value}, (new.key,), value))
    return slot


def _drop_outputs(recording: Recording, made: set[str]) -> None:
    """A slot that is an input now is updated like any other, and no longer created."""
    gone = {
        position
        for position, out in enumerate(recording.outputs)
        if out.kind is OutputKind.CREATE and out.target in made
    }
    output = next(iter(reversed(recording.gm.graph.nodes)))
    results: Any = output.args[0]
    output.args = ([value for i, value in enumerate(results) if i not in gone],)
    recording.outputs = [out for i, out in enumerate(recording.outputs) if i not in gone]
