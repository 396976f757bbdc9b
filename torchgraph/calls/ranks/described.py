"""Descriptions of programs that are equal on all ranks with the same program."""

from __future__ import annotations

import dataclasses
import hashlib
import operator
import re
from collections import Counter
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import fx

from ..._torch import OpOverload, pytree, schema_of
from ..._torch.distributed.process_groups import ranks_of
from ...distributed.peers import world_size
from ...ir import effects, text
from ...ir.program import Program, Role
from ...ir.values import tensors_of
from ...options.options import Options
from ...pipeline.pipelined import Pipelined
from ...record.tape.tape import Tape
from ...replay.replay import Replay

_DEVICE = re.compile(r"\b(cuda|xpu|hpu|mps):\d+")
_GROUP = re.compile(r"group='([^']*)'")
_NAME = re.compile(r"(?<![.\w])getitem\w*")
_INTEGER = re.compile(r"(?<=[(, ])-?\d+(?=[,)])")
_PARTS = frozenset(
    {
        *("getitem", "aten::as_strided", "aten::narrow", "aten::select", "aten::select_backward"),
        *("aten::select_scatter", "aten::slice", "aten::slice_backward", "aten::slice_scatter"),
    }
)
"""Ops that read or write a part of a tensor: where ranks share one, each its own part."""
_PLAIN = (bool, int, float, str, type(None), torch.dtype)
_ANY_SHAPE = ("all_to_all", "wait_tensor")
"""Collectives in which ranks may have other shapes."""


def digest(*parts: str) -> str:
    """A short hash, the same in every process."""
    return hashlib.blake2s("\0".join(parts).encode(), digest_size=12).hexdigest()


def met_by(tape: Tape) -> set[int] | None:
    """The ranks of the process groups that a recorded step used; None for no group."""
    met = [entry for entry in tape.entries if effects.of_target(entry.target).communicates]
    return _ranks((entry.args, entry.kwargs) for entry in met) if met else None


def met_in(program: Program) -> set[int] | None:
    """The ranks of the process groups that a program uses; None for no group."""
    met = [node for node in program.nodes if effects.of(node).communicates]
    return _ranks((node.args, node.kwargs) for node in met) if met else None


def _ranks(calls: Iterable[tuple[Sequence[object], Mapping[str, object]]]) -> set[int]:
    given = (one for args, kwargs in calls for one in (*args, *kwargs.values()))
    names = {one for one in given if isinstance(one, str)}
    return {rank for name in names for rank in ranks_of(name) or ()}


def ranks_of_stages(options: Options) -> set[int]:
    """The ranks that hold a pipeline's stages; empty where one has all, or one does not exist."""
    found = {rank for setting in options.stages for rank in setting.ranks}
    return found if len(found) > 1 and max(found) < world_size() else set()


def words(replay: Replay) -> str:
    """Options and the program before its passes, without what is each rank's own.

    That is the number of a device; the name of a process group, in whose place is its size; and
    which part of a tensor is taken.
    """
    return "\n".join((*_options(replay.options), *_lines(replay.captured.program)))


def passes(replay: Replay) -> str:
    """The passes that the program which runs went through, a line each."""
    return "\n".join(f"pass {record.name}" for record in replay.program.history)


def _options(options: Options) -> Iterator[str]:
    for field in dataclasses.fields(options):
        if not field.compare:
            continue
        value = getattr(options, field.name)
        if field.name == "passes":
            inserted = [(after, one.name) for after, one in value.inserted]
            value = (sorted(value.disabled), inserted, value.max_passes, value.max_edits)
        elif isinstance(value, frozenset):
            value = sorted(value)
        yield _GROUP.sub(_size, f"option {field.name} = {value}")


def _size(found: re.Match[str]) -> str:
    ranks = ranks_of(found[1])
    return found[0] if ranks is None else f"group=<{len(ranks)} ranks>"


def _lines(program: Program) -> Iterator[str]:
    names = _names_of_parts(program)
    for node, line in text.lines(program):
        if node is not None and _name(node) == "getitem" and not node.users:
            continue
        line = _NAME.sub(lambda found: names.get(found[0], found[0]), _DEVICE.sub(r"\1", line))
        if node is not None and effects.of(node).communicates:
            for name, ranks in groups_of(node).items():
                line = line.replace(repr(name), f"<{len(ranks)} ranks>")
        if node is not None and _name(node) in _PARTS:
            call, mark, where = line.partition("  #")
            line = _INTEGER.sub("_", call) + mark + where
        yield line


def _names_of_parts(program: Program) -> dict[str, str]:
    """The items of a list by the order in which they are taken: each rank may take its own."""
    found: dict[str, str] = {}
    taken: Counter[str] = Counter()
    for node in program.nodes:
        if node.users and _name(node) == "getitem" and isinstance(source := node.args[0], fx.Node):
            taken[source.name] += 1
            found[node.name] = f"{source.name}_item_{taken[source.name]}"
    return found


def _name(node: fx.Node) -> str:
    if node.target is operator.getitem:
        return "getitem"
    return schema_of(node.target).name if isinstance(node.target, OpOverload) else ""


def groups_of(node: fx.Node) -> Mapping[str, tuple[int, ...]]:
    """Name -> ranks of the process groups among the arguments of a collective."""
    names = [one for one in (*node.args, *node.kwargs.values()) if isinstance(one, str)]
    return {name: ranks for name in names if (ranks := ranks_of(name)) is not None}


def collectives(replay: Replay) -> dict[str, str]:
    """Ranks of a group -> a hash of the collectives over it: op, dtype and shape, in order.

    Besides, of which parameters' gradients travel: others may have the same shapes.
    Of those of a pipeline, which hand each other values, also of what the program was made for.
    """
    program, runs = replay.program, replay.executable
    found: dict[str, list[str]] = {}
    reduced = [f"{one.names} {one.used}" for one in replay.captured.reduced]
    if isinstance(runs, Pipelined) and runs.ranks:
        found[",".join(map(str, runs.ranks))] = [kind_of(replay)]
    for node in program.nodes:
        if not effects.of(node).communicates:
            continue
        said = str(node.target)
        if not any(one in said for one in _ANY_SHAPE):
            shapes = [f"{t.dtype}{list(t.shape)}" for t in tensors_of(node.all_input_nodes)]
            said = " ".join((said, *shapes))
        for ranks in groups_of(node).values():
            found.setdefault(",".join(map(str, ranks)), list(reduced)).append(said)
    return {ranks: digest(*said) for ranks, said in found.items()}


def reduced_by(replay: Replay) -> dict[str, list[tuple[list[int], list[int]]]]:
    """Ranks of a group -> for each reduction: parameters with gradients here, and on any rank."""
    found: dict[str, list[tuple[list[int], list[int]]]] = {}
    for one in replay.captured.reduced:
        ranks = ",".join(map(str, ranks_of(one.group) or ()))
        found.setdefault(ranks, []).append((list(one.mine), list(one.used)))
    return found


def kind_of(replay: Replay) -> str:
    """A hash of the assumptions of a program.

    Shapes of what goes in, values that Python looked at, arguments that are no tensors, and which
    part of tensor-parallel parameters this rank has: ops on a part may name where it begins.
    """
    program, call = replay.program, replay.example
    inputs = program.signature.inputs
    shapes = [_DEVICE.sub(r"\1", f"{spec.fqn} {spec.meta}") for spec in inputs]
    values = [text.expected(program.gm, node) for node in program.nodes if effects.of(node).expects]
    given = pytree.tree_leaves((call.args, call.kwargs)) if call is not None else []
    plain = [repr(one) for one in given if isinstance(one, _PLAIN)]
    averaged = {one.group for one in replay.captured.reduced}
    places = {place for spec in inputs for place in _places(spec.layout, averaged)}
    return digest(*shapes, *values, *plain, *sorted(map(str, places)))


def _places(layout: Any, averaged: Container[str]) -> Iterator[tuple[str, int]]:
    """The coordinates of this rank in the dimensions of a mesh along which a tensor is cut.

    ``averaged``: the groups over which gradients are: parameters in parts are gathered there.
    """
    if layout is None:
        return
    for dim, placement in enumerate(layout.placements):
        if not placement.is_replicate() and layout.mesh.get_group(dim).group_name not in averaged:
            names = layout.mesh.mesh_dim_names
            yield names[dim] if names else str(dim), layout.mesh.get_local_rank(dim)


def numbers_text(replay: Replay, values: Sequence[Any]) -> str:
    """The optimizers' numbers, a line each."""
    names = [leaf.fqn for leaf in replay.leaves if leaf.role is Role.SCALAR]
    return "\n".join(f"{name} = {value!r}" for name, value in zip(names, values, strict=True))
