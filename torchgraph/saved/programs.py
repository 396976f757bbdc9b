"""Programs as plain values and tensors, and back."""

from __future__ import annotations

import operator
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from .._torch import fake_mode, graph_module
from ..artifact.tree import decoded, encoded
from ..errors import CheckpointDamaged, NotSavable
from ..guards import ValueGuard
from ..ir import bits
from ..ir.each import Each
from ..ir.program import PassRecord, Program, Signature, TensorMeta, provenance
from . import values
from .nodes import check_node

_VERBATIM = ("in_place", "recorded", "skipped_by", "recomputed", "stands_for")
"""Keys of ``meta`` whose values are plain."""

Constants = dict[str, torch.Tensor]


@dataclass(frozen=True)
class WrittenProgram:
    """A program without its tensors."""

    tree: object
    """Plain values of JSON."""
    constants: Constants
    """The constants that ``get_attr`` nodes read."""


def written(program: Program) -> WrittenProgram:
    """``program`` as text and tensors.

    Raises:
        NotSavable: it calls what no file can name; says where.
    """
    constants: Constants = {}
    return WrittenProgram(_encoded(_program(program, constants, "")), constants)


def written_guard(guard: ValueGuard) -> WrittenProgram:
    """The conditions of a program as text and tensors."""
    constants: Constants = {}
    nodes = _nodes(guard.gm, constants, "")
    tree = {"nodes": nodes, "fqns": guard.fqns, "expected": guard.expected}
    return WrittenProgram(_encoded(tree), constants)


class ProgramReader:
    """Reads programs that are to run in one process.

    Args:
        namespaces: those of ops that may be called.
    """

    def __init__(self, namespaces: frozenset[str]) -> None:
        self.mode = fake_mode()
        self._readers = values.readers(self.mode, namespaces)

    def value(self, tree: object) -> Any:
        """A value without nodes in it."""
        return decoded(tree, {}, self._readers)

    def program(self, tree: object, constants: Mapping[str, torch.Tensor]) -> Program:
        """The program that `written` was given."""
        return self._program(tree, constants)

    def guard(self, tree: object, constants: Mapping[str, torch.Tensor]) -> ValueGuard:
        """The guard that `written_guard` was given."""
        found = _fields(tree)
        gm = self._graph(found["nodes"], constants)
        return ValueGuard(gm, self.value(found["fqns"]), self.value(found["expected"]))

    def _program(self, tree: object, constants: Mapping[str, torch.Tensor]) -> Program:
        found = _fields(tree)
        signature, history = self.value(found["signature"]), self.value(found["history"])
        if not isinstance(signature, Signature) or not all(
            isinstance(record, PassRecord) for record in history
        ):
            raise CheckpointDamaged("a program has no signature.")
        return Program(self._graph(found["nodes"], constants), signature, history)

    def _graph(self, records: Any, constants: Mapping[str, torch.Tensor]) -> fx.GraphModule:
        graph = fx.Graph()
        nodes: dict[str, fx.Node] = {}
        readers = values.with_nodes(self._readers, nodes)
        for record in records:
            op, name, target, args, kwargs, meta = _fields_of_node(record)
            read: Any = decoded([args, kwargs, meta], {}, readers)
            args, kwargs, meta = read
            called = self._target(target, constants)
            check_node(op, name, called, args, kwargs)
            made = graph.create_node(op, called, args, kwargs, name)
            made.meta.update(meta)
            if made.name != name:
                raise CheckpointDamaged(f"two nodes are called {name!r:.80}.")
            nodes[name] = made
        held = {}
        for node in graph.find_nodes(op="get_attr"):
            name = str(node.target)
            held[name] = laid_out(constants[name], TensorMeta.of(node.meta["val"]))
        return graph_module(held, graph)

    def _target(self, tree: Any, constants: Mapping[str, torch.Tensor]) -> Any:
        if isinstance(tree, dict) and "each" in tree:
            found = _fields(tree["each"])
            body = self._program(found["body"], constants)
            return Each(found["name"], body, self.value(found["rows"]), found["columns"])
        return self.value(tree)


def laid_out(tensor: torch.Tensor, meta: TensorMeta) -> torch.Tensor:
    """``tensor`` with the strides that it had in memory; a file may not have kept them.

    Raises:
        CheckpointDamaged: it has another shape or dtype.
    """
    if tensor.shape != meta.shape or tensor.dtype is not meta.dtype:
        raise CheckpointDamaged("a tensor is not of the shape and dtype that a program takes.")
    if tensor.stride() == meta.stride:
        return tensor
    made = torch.empty_strided(meta.shape, meta.stride, dtype=meta.dtype, device=tensor.device)
    # Elements along such a dimension are one in memory.
    first = tuple(slice(0, 1) if not step else slice(None) for step in meta.stride)
    made[first].copy_(tensor[first])
    if not bits.same(made, tensor):
        raise CheckpointDamaged("a tensor does not fit the strides that a program takes.")
    return made


def _program(program: Program, constants: Constants, prefix: str) -> dict[str, object]:
    return {
        "signature": program.signature,
        "history": program.history,
        "nodes": _nodes(program.gm, constants, prefix),
    }


def _nodes(gm: fx.GraphModule, constants: Constants, prefix: str) -> list[object]:
    return [_node(gm, node, constants, prefix) for node in gm.graph.nodes]


def _node(gm: fx.GraphModule, node: fx.Node, constants: Constants, prefix: str) -> object:
    target: Any = node.target
    if node.op == "get_attr":
        held = operator.attrgetter(str(target))(gm)
        if not isinstance(held, torch.Tensor):
            raise NotSavable(
                f"The program holds a {type(held).__name__} ({target}), which no file can.",
                where=provenance(node).line,
            )
        target = f"{prefix}{target}"
        constants[target] = held
    elif isinstance(target, Each):
        body = _program(target.body, constants, f"{prefix}{node.name}_")
        target = _Row(target.__name__, target.rows, target.columns, body)
    meta = {key: node.meta[key] for key in _VERBATIM if key in node.meta}
    meta["val"] = node.meta.get("val")
    meta["provenance"] = provenance(node)
    return (node.op, node.name, target, node.args, node.kwargs, meta)


@dataclass(frozen=True)
class _Row:
    """The plain form of an `Each`."""

    name: str
    rows: tuple[str, ...]
    columns: int
    body: dict[str, object]


def _encoded(value: object) -> object:
    writers = {
        **values.writers(),
        _Row: lambda row: ("each", vars(row)),
    }
    tree, tensors = encoded(value, writers)
    if tensors:
        raise NotSavable("A node of the program holds a tensor as an argument.")
    return tree


def _fields(tree: Any) -> dict[str, Any]:
    """The entries of a dict as JSON has it, each still to be read."""
    pairs = tree["dict"] if isinstance(tree, dict) and set(tree) == {"dict"} else None
    if pairs is None or not all(type(key) is str for key, _ in pairs):
        raise CheckpointDamaged("a program is not written as one.")
    return dict(pairs)


def _fields_of_node(record: Any) -> Any:
    parts = record["tuple"] if isinstance(record, dict) and "tuple" in record else ()
    if len(parts) != 6 or not all(type(part) is str for part in parts[:2]):
        raise CheckpointDamaged("a node is not written as one.")
    return parts


def same(one: WrittenProgram, other: WrittenProgram) -> bool:
    """True for equal programs, histories aside."""
    left, right = _fields(one.tree), _fields(other.tree)
    left.pop("history"), right.pop("history")
    return left == right and one.constants.keys() == other.constants.keys()
