"""Alias analysis, for passes that merge, drop or fold values, and for the verifier."""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import torch
from torch import fx, nn
from torch.fx.node import Argument
from torch.multiprocessing.reductions import StorageWeakRef

from .._torch import HigherOrderOperator, OpOverload, known_values, schema_of, storage_id
from .._torch.distributed.held import is_dtensor, local
from .._torch.functorch import is_wrapped
from .._torch.tensors import address_of
from . import effects
from .nodes import operand
from .program import Program
from .values import evaluate, mode_of, neutral, tensors_of, with_values

# Ops that return a view of their first argument although their schema does not say so.
_SILENT_VIEWS = frozenset(
    {
        "aten::_unsafe_view",
        "aten::unsafe_chunk",
        "aten::unsafe_split",
        "aten::unsafe_split_with_sizes",
    }
)


def alias_sources(node: fx.Node) -> list[fx.Node]:
    """The inputs whose memory the value of ``node`` may share; all inputs for an unknown target."""
    if node.op != "call_function":
        return []
    if node.target is operator.getitem:
        return _nodes_in(node.args[0])
    if not isinstance(node.target, (OpOverload, HigherOrderOperator)):
        return []  # a function on Python numbers
    positions = _alias_arguments(node.target)
    if positions is None:
        return node.all_input_nodes
    found: list[fx.Node] = []
    for position, name in positions:
        value = node.args[position] if position < len(node.args) else node.kwargs.get(name)
        found.extend(_nodes_in(value))
    return found


def storages_of(value: object) -> Iterator[int]:
    """The storages that the tensors of a value, or of a node's, lie in, each by its number."""
    return map(storage_id, tensors_of(value))


def aliases_input(node: fx.Node) -> bool:
    """True for a value in the memory of one that the node reads, as their storages tell."""
    if node.target is operator.getitem:
        return True
    own = set(storages_of(node))
    return any(storage in own for arg in node.all_input_nodes for storage in storages_of(arg))


def refresh_views(program: Program) -> None:
    """Give views the storage of what they show now: passes may have put it in a copy's place."""
    mode = mode_of(program)
    with neutral():
        for node in program.nodes:
            if node.target is operator.getitem:
                node.meta["val"] = operand(node).meta["val"][node.args[1]]
            elif any(_shows_elsewhere(node, source) for source in alias_sources(node)):
                args, kwargs = known_values(with_values((node.args, dict(node.kwargs))))
                node.meta["val"] = evaluate(mode, node.target, args, kwargs)


def _shows_elsewhere(node: fx.Node, source: fx.Node) -> bool:
    """True unless the value of ``node`` is known to lie in the memory of ``source``'s."""
    return set(storages_of(node)) != set(storages_of(source))


def escaping(program: Program) -> set[fx.Node]:
    """Nodes whose memory reaches an output, directly or through views."""
    found: set[fx.Node] = set()
    waiting = list(program.output.all_input_nodes)
    while waiting:
        node = waiting.pop()
        if node not in found:
            found.add(node)
            waiting.extend(alias_sources(node))
    return found


def memory_classes(program: Program) -> tuple[frozenset[str], ...]:
    """``output i``, ``input name`` and ``a constant``, grouped by shared memory.

    Groups of one are left out.
    """
    groups: dict[fx.Node, set[str]] = {}
    root = _memory_roots(program)
    for node in program.nodes:
        if node.op == "placeholder":
            groups.setdefault(root(node), set()).add(f"input {node.name}")
        elif node.op == "get_attr":
            groups.setdefault(root(node), set()).add("a constant")
    for index, result in enumerate(program.results):
        if isinstance(result, fx.Node) and holds_memory(result.meta.get("val")):
            groups.setdefault(root(result), set()).add(f"output {index}")
    return tuple(frozenset(group) for group in groups.values() if len(group) > 1)


def _memory_roots(program: Program) -> Callable[[fx.Node], fx.Node]:
    parent: dict[fx.Node, fx.Node] = {}

    def root(node: fx.Node) -> fx.Node:
        while node in parent:
            node = parent[node]
        return node

    items: dict[tuple[Argument, Argument], fx.Node] = {}
    for node in program.nodes:
        sources = alias_sources(node)
        if node.target is operator.getitem and not any(map(alias_sources, sources)):
            # The op made each of its results new: only the same item is the same memory.
            sources = [items.setdefault((node.args[0], node.args[1]), node)]
        for source in sources:
            if root(source) is not root(node):
                parent[root(node)] = root(source)
    return root


def holds_memory(value: object) -> bool:
    """True for a tensor and for a tuple or list that may hold one; False for numbers and None."""
    return isinstance(value, (torch.Tensor, tuple, list))


@functools.cache
def _alias_arguments(op: OpOverload | HigherOrderOperator) -> tuple[tuple[int, str], ...] | None:
    if isinstance(op, HigherOrderOperator) or torch.Tag.maybe_aliasing_or_mutating in op.tags:
        return None
    schema = schema_of(op)
    if schema.name in _SILENT_VIEWS | effects.WAITS:
        return ((0, "self"),)
    return tuple(
        (position, argument.name)
        for position, argument in enumerate(schema.arguments)
        if argument.alias_info is not None
    )


def _nodes_in(value: object) -> list[fx.Node]:
    if isinstance(value, fx.Node):
        return [value]
    if isinstance(value, (tuple, list)):
        return [item for item in value if isinstance(item, fx.Node)]
    return []


def restrided_inputs(program: Program) -> set[int]:
    """The inputs that ``as_strided`` reads: its offset counts from the start of the memory."""
    readers = [node for node in program.nodes if node.target is torch.ops.aten.as_strided.default]
    seen: set[fx.Node] = set()
    while readers:
        node = readers.pop()
        if node not in seen:
            seen.add(node)
            readers.extend(alias_sources(node))
    return {i for i, node in enumerate(program.placeholders) if node in seen}


def is_opaque(tensor: torch.Tensor) -> bool:
    """True for a subclass with a dispatch of its own: what it holds, only its class knows.

    A DTensor is none: it holds its local part.
    """
    kind = type(tensor)
    if kind is torch.Tensor or kind.__torch_dispatch__ == torch.Tensor.__torch_dispatch__:
        return False
    return not is_dtensor(tensor)


def class_of(tensor: torch.Tensor) -> type | None:
    """A user's class that adds no dispatch, so that `as_subclass` makes one; else None."""
    kind = type(tensor)
    if kind is torch.Tensor or issubclass(kind, nn.Parameter):
        return None
    return None if is_dtensor(tensor) or is_opaque(tensor) else kind


def without_class(tensor: torch.Tensor) -> torch.Tensor:
    """A tensor, or an alias of one of a user's class, for which no code of the class runs."""
    return tensor if class_of(tensor) is None else tensor.as_subclass(torch.Tensor)


def is_leaf(tensor: torch.Tensor) -> bool:
    """``tensor.is_leaf``; False for a view that torch has given up for a write under no_grad."""
    try:
        return tensor.is_leaf
    except RuntimeError:
        return False


def has_strides(tensor: torch.Tensor) -> bool:
    """True for a tensor that lies in its storage by sizes and strides: not sparse, not nested.

    Nor one that a transform of torch.func follows, which has no memory of its own.
    """
    tensor = local(tensor)
    plain = tensor.layout is torch.strided and not tensor.is_nested
    return plain and not is_wrapped(tensor)


def span(tensor: torch.Tensor) -> tuple[int, int]:
    """The first byte of a tensor in its storage, and the one behind its last."""
    tensor = local(tensor)
    first = int(tensor.storage_offset())
    pairs = zip(tensor.shape, tensor.stride(), strict=True)
    elements = sum((size - 1) * stride for size, stride in pairs) + 1 if tensor.numel() else 0
    return first * tensor.itemsize, (first + int(elements)) * tensor.itemsize


@dataclass(frozen=True)
class MemoryLocation:
    """A tensor's place in its storage; the storage's memory is not reused while this is kept."""

    storage: StorageWeakRef
    offset: int

    @classmethod
    def of(cls, tensor: torch.Tensor) -> MemoryLocation:
        """The location of ``tensor``."""
        tensor = local(tensor)
        return cls(StorageWeakRef(tensor.untyped_storage()), int(tensor.storage_offset()))

    def holds(self, tensor: torch.Tensor) -> bool:
        """True when ``tensor`` lies there."""
        tensor = local(tensor)
        there = tensor.storage_offset() == self.offset
        return there and address_of(tensor.untyped_storage()) == self.storage.cdata


def storages_overlap(tensors: Iterable[torch.Tensor], others: Iterable[torch.Tensor]) -> bool:
    """True when two storages of live tensors are one memory, as those of one NumPy array."""
    own, held = set(map(_addresses, tensors)), set(map(_addresses, others))
    reach_of_own = reach_of_held = 0  # where the furthest of those that began before ends
    for place in sorted(own | held):
        start, end, _ = place
        if start == end:
            continue
        if (place in own and start < reach_of_held) or (place in held and start < reach_of_own):
            return True
        reach_of_own = max(reach_of_own, end) if place in own else reach_of_own
        reach_of_held = max(reach_of_held, end) if place in held else reach_of_held
    return False


def _addresses(tensor: torch.Tensor) -> tuple[int, int, int]:
    """The start and end address of the tensor's storage, and the storage's id."""
    tensor = local(tensor)
    storage = tensor.untyped_storage()
    start = storage.data_ptr()
    return start, start + storage.nbytes(), storage_id(tensor)


def has_gaps(tensor: torch.Tensor) -> bool:
    """True where memory that is no element of a tensor lies between its elements."""
    begin, end = span(tensor)
    return end - begin > tensor.numel() * tensor.itemsize


def overlaps_itself(tensor: torch.Tensor) -> bool:
    """True where two elements may be the same memory."""
    reach = 0
    for stride, size in sorted(zip(tensor.stride(), tensor.shape, strict=True)):
        if size == 0:
            return False
        if size > 1 and stride <= reach:
            return True
        reach += (size - 1) * stride
    return False


def read_in_flight(nodes: Iterable[fx.Node]) -> Iterator[tuple[int, fx.Node | None]]:
    """(storage, the wait until which a collective reads it); no wait: until the program ends."""
    known = list(nodes)
    waits = waits_for(known)
    for node in known:
        # The others of a functional kind copy first, and read the copy.
        if effects.of(node).communicates and not effects.copies_first(node.target):
            for source in node.all_input_nodes:
                for storage in storages_of(source):
                    yield storage, waits.get(node)


def waits_for(nodes: Iterable[fx.Node]) -> dict[fx.Node, fx.Node]:
    """Each collective's first wait; collectives without one are left out.

    Until its wait a collective reads its argument and writes its result.
    """
    begun: dict[int, fx.Node] = {}
    found: dict[fx.Node, fx.Node] = {}
    for node in nodes:
        known = effects.of(node)
        if known.communicates:
            begun.update(dict.fromkeys(storages_of(node), node))
        elif known.waits:
            for storage in storages_of(node.all_input_nodes[0]):
                if storage in begun:
                    found.setdefault(begun[storage], node)
    return found
