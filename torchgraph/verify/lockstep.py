"""Simulation of programs that communicate: those of all ranks in one process.

Each rank has a program of its own, for what it is may be baked into it: which rows of a tensor are
its shard, which stage it runs. A rank runs until its next collective and waits there; the
collective takes place when all ranks of its group have come. So what hangs between processes is an
error here, which says where each rank stands.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from .._torch import OpOverload, schema_of
from ..distributed import local_collectives
from ..distributed.errors import RanksOutOfStep
from ..ir import effects
from ..ir.each import expanded
from ..ir.program import Program, provenance
from ..lines import SourceLine
from .run import arguments, part_runs, parts_of, value_of

Groups = Mapping[str, Sequence[int]]
"""The name of each process group that a program communicates in, and the ranks in it."""

_ALONE = frozenset({"wait_tensor", "_wrap_tensor_autograd"})
"""Ops of the same namespace in which nobody meets."""


@dataclass(frozen=True)
class Coming:
    """A collective that a rank has reached."""

    op: str
    """Its name without namespace."""
    ranks: tuple[int, ...]
    arguments: Mapping[str, Any]
    node: fx.Node

    @property
    def line(self) -> SourceLine | None:
        """The user's line of the collective."""
        return provenance(self.node).line

    def __str__(self) -> str:
        line = self.line
        at = f" at {line}" if line is not None else ""
        return f"{self.node.name} ({self.op} among {list(self.ranks)}){at}"


Run = Generator[Coming, Any, tuple[Any, ...]]


def run(
    programs: Sequence[Program],
    values: Sequence[Sequence[Any]],
    groups: Groups | Sequence[Groups],
    random: Sequence[torch.Tensor] | None = None,
) -> list[tuple[Any, ...]]:
    """The results of the program of each rank, flat, in the order of its outputs.

    Args:
        programs: one for each rank; one and the same program may stand there several times.
        values: what each program takes; functional programs leave it as it is.
        groups: of all ranks, or of each, for their names may differ.
        random: the state of torch's generator on each rank, which is written; as it is now for
            each where nothing is given.

    Raises:
        RanksOutOfStep: not all ranks of a group come to a collective, or what they bring to it
            does not fit together.
        ValueMoved: a program was made for other values than it met.
    """
    named = [groups] * len(programs) if isinstance(groups, Mapping) else list(groups)
    states = [torch.get_rng_state() for _ in programs] if random is None else list(random)
    ranks = [
        _Rank(_step(expanded(program), given, names), state)
        for program, given, names, state in zip(programs, values, named, states, strict=True)
    ]
    before = torch.get_rng_state()
    try:
        for rank in ranks:
            rank.go_on(None)
        while any(rank.coming is not None for rank in ranks):
            _meet(ranks)
    finally:
        torch.set_rng_state(before)
        if random is not None:
            for state, rank in zip(random, ranks, strict=True):
                state.copy_(rank.random)
    return [rank.results for rank in ranks]


class _Rank:
    def __init__(self, steps: Run, random: torch.Tensor) -> None:
        self._steps = steps
        self.random = random
        self.coming: Coming | None = None
        """The collective at which it waits; None when it has ended."""
        self.results: tuple[Any, ...] = ()

    def go_on(self, got: Any) -> None:
        """Run to the next collective, or to the end. ``got``: the result of the last collective."""
        torch.set_rng_state(self.random)
        try:
            self.coming = self._steps.send(got)
        except StopIteration as end:
            self.coming, self.results = None, end.value
        self.random = torch.get_rng_state()


def _meet(ranks: Sequence[_Rank]) -> None:
    """Run one collective: the first whose group has all its ranks waiting for it."""
    for rank in ranks:
        coming = rank.coming
        if coming is None:
            continue
        others = [ranks[number] if number < len(ranks) else None for number in coming.ranks]
        there = [other.coming for other in others if other is not None and other.coming is not None]
        if len(there) < len(coming.ranks) or any(one.ranks != coming.ranks for one in there):
            continue
        if any(one.op != coming.op for one in there):
            break
        found = _held(there)
        for other, got in zip(others, found, strict=True):
            assert other is not None
            other.go_on(got)
        return
    raise RanksOutOfStep(
        "The ranks do not come together: "
        + "; ".join(
            f"rank {number} {'has ended' if rank.coming is None else f'waits in {rank.coming}'}"
            for number, rank in enumerate(ranks)
        )
        + "."
    )


def _held(there: Sequence[Coming]) -> list[Any]:
    try:
        with torch.no_grad():
            return local_collectives.meet(there[0].op, [one.arguments for one in there])
    except RanksOutOfStep as error:
        raise RanksOutOfStep(error.what, where=there[0].line) from None


def _step(program: Program, values: Sequence[Any], groups: Groups) -> Run:
    """Run a program, its micro-batches one after the other."""
    runs = part_runs(program, parts_of(program), values)
    try:
        one = next(runs)
        while True:
            one = runs.send((yield from _steps(one.program, one.values, groups)))
    except StopIteration as end:
        return tuple(end.value[out] for out in program.signature.outputs)


def _steps(program: Program, values: Sequence[Any], groups: Groups) -> Run:
    """Run a program; yields each collective and is sent its result."""
    known: dict[fx.Node, Any] = dict(zip(program.placeholders, values, strict=True))
    attributes = fx.Interpreter(program.gm)
    for node in program.nodes:
        if node.op == "get_attr":
            known[node] = attributes.fetch_attr(str(node.target))
        elif node.op == "call_function":
            args, kwargs = arguments(node, known)
            coming = _coming(node, args, kwargs, groups)
            if coming is not None:
                known[node] = yield coming
                continue
            target: Any = node.target
            with torch.no_grad():
                known[node] = target(*args, **kwargs)
    return tuple(value_of(program.results, known))


def _coming(
    node: fx.Node, args: Sequence[Any], kwargs: Mapping[str, Any], groups: Groups
) -> Coming | None:
    """The collective that ``node`` calls; None for an op that a rank runs alone."""
    op = node.target
    if not isinstance(op, OpOverload) or not effects.of(node).communicates:
        return None
    name = schema_of(op).name.partition("::")[2]
    if name in _ALONE:
        return None
    names = [argument.name for argument in schema_of(op).arguments]
    given = {**dict(zip(names, args, strict=False)), **kwargs}
    group = given.pop("group_name")
    group = group if isinstance(group, str) else str(group.group_name)
    if group not in groups:
        raise RanksOutOfStep(
            f"{node.name} communicates in the group {group!r}, whose ranks are not known; known "
            f"are {', '.join(map(repr, groups)) or 'none'}.",
            where=provenance(node).line,
        )
    return Coming(name, tuple(groups[group]), given, node)
