"""Training steps of all ranks of a simulated world, in one process.

Each rank's step is recorded by itself, in a process group whose collectives communicate nothing,
and taken back. What is kept of it is its program. Then the programs of all ranks run together,
step by step, from the states that were there before; see `lockstep`.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from .._torch.distributed.held import is_wrapper
from ..costs.collectives import collectives
from ..distributed.ranks import ranks_of, simulated_rank
from ..errors import InvalidOption, NotSupported
from ..ir import bits
from ..ir.copies import copied
from ..ir.program import OutputKind, Program, Role
from ..live.inputs import Call
from ..record.compare.predicted import first_values, predicted
from .bound import Bound
from .lockstep import Groups, run
from .run import ends_of
from .start import make_casts, now


@dataclass
class RankRun:
    """The results of one rank of a simulated world."""

    outputs: list[Any] = field(default_factory=list)
    """The result of each step."""
    states: dict[str, Any] = field(default_factory=dict)
    """Parameters, buffers and what optimizers keep, after the last step, by name: of what lies in
    parts on the ranks, the part of this one."""


Made = tuple[Any, Sequence[tuple[Any, ...]]]
"""A Graph, and the arguments of each of its calls."""


def run_on_ranks(make: Callable[[int], Made], world: int) -> list[RankRun]:
    """Train on ``world`` ranks in this process: no other is started, no number is made up.

    ``make`` is called for each rank, with a process group of ``world`` ranks of which this process
    is that one: meshes, DTensors and functional collectives are made as in a real run. A step of
    the Graph is recorded there and taken back, in eager and without communication. Then the
    programs run, all ranks together. Sums go in the order of the ranks: with two ranks the results
    are gloo's, bit for bit; a ring of more adds in another order.

    What a step does besides its program is not done: schedulers do not step, objects stay.

    Args:
        make: gives a Graph, or a step of ``tg.step``, over fresh objects, and the arguments of
            each of its calls, all of like shapes. Whatever it draws, it has to seed.
        world: how many ranks.

    Returns:
        What each rank returned and holds, in their order.

    Raises:
        InvalidOption: ``torch.distributed`` is initialized already; no calls, or a different number
            of them; fewer than one rank.
        NotSupported: schedulers step within the step; or the first step makes states that are not
            zeros, as SGD's momentum: it would be made of gradients that were not communicated.
        RanksOutOfStep: the ranks do not come to the same collectives.
        ValueMoved: a branch was taken on a number that has another value in the real run.
    """
    if world < 1:
        raise InvalidOption(f"run_on_ranks takes one rank or more, not {world}.")
    ranks = []
    for rank in range(world):
        wholes: list[torch.Tensor] = []
        with simulated_rank(rank, world, wholes):
            graph, batches = make(rank)
            if not batches:
                raise InvalidOption("run_on_ranks: make gives no call to run.")
            ranks.append(_Rank.recorded(graph, batches))
        ranks[-1].begins.update((f"DTensor {n}", whole) for n, whole in enumerate(wholes))
    steps = {len(one.calls) for one in ranks}
    if len(steps) > 1:
        raise InvalidOption(f"The ranks make {sorted(steps)} calls: let all make as many.")
    _check_alike(ranks)
    for number in range(steps.pop()):
        results = run(
            [one.program for one in ranks],
            [one.values(number) for one in ranks],
            [one.groups for one in ranks],
            [one.random for one in ranks],
        )
        for one, result in zip(ranks, results, strict=True):
            one.take(number, result)
    return [RankRun(one.outputs, one.states()) for one in ranks]


class _Rank:
    """The program of one rank, and the values of its states."""

    def __init__(
        self, replay: Bound, calls: list[Call], values: list[Any], random: torch.Tensor
    ) -> None:
        self._replay = replay
        self.calls = calls
        self.program: Program = replay.program
        self.groups: Groups = {
            one.group: ranks_of(one.group) for _, one in collectives(self.program)
        }
        self.random = random
        self.begins: dict[str, torch.Tensor] = {}
        """Values that a real rank would be sent by the first before its first step."""
        self.outputs: list[Any] = []
        self._values = values

    @classmethod
    def recorded(cls, graph: Any, batches: Sequence[tuple[Any, ...]]) -> _Rank:
        """The program of a Graph for these calls, recorded from a step that is undone."""
        random = torch.get_rng_state()
        begins = _weights(graph)
        calls: list[Call] = [graph._runner.live.inputs.bind(tuple(batch), {}) for batch in batches]
        outcome = graph._runner.programs.dry_outcome(calls[0])
        first = {} if outcome.stable else first_values(outcome)
        known = outcome if outcome.stable else predicted(outcome)
        if known is None:
            raise NotSupported(
                "The first step makes states that are not zeros, of gradients that were not "
                "communicated: SGD's momentum, for one.",
                fix="make them before: optimizer.state[p]['momentum_buffer'] = zeros_like(p).",
            )
        replay = graph._runner.programs.compiler.compile(known, calls[0])
        _refuse(replay)
        values = [copied(first.get(leaf.fqn, now(leaf))) for leaf in replay.leaves]
        values += [None] * (len(replay.program.signature.inputs) - len(values))
        found = cls(replay, calls, values, random)
        if graph._runner.live.replicas.groups or graph._runner.live.replicas.shards is not None:
            found.begins = begins
        return found

    def values(self, number: int) -> list[Any]:
        """The inputs of the program for a step."""
        inputs = self.program.signature.inputs
        places = [place for place, spec in enumerate(inputs) if spec.role is Role.INPUT]
        pairs = zip(self.calls[0].tensors, self.calls[number].tensors, strict=True)
        for place, (first, value) in zip(places, pairs, strict=True):
            if value.shape != first.shape or value.dtype != first.dtype:
                raise InvalidOption(
                    f"Call {number} of run_on_ranks: {inputs[place].fqn} is {value.dtype} of "
                    f"{tuple(value.shape)}, in the first call {first.dtype} of "
                    f"{tuple(first.shape)}: one program runs all calls."
                )
            self._values[place] = value
        make_casts(self.program.signature, self._values)
        return self._values

    def take(self, number: int, results: Sequence[Any]) -> None:
        """Take over the results of a step: outputs, and new values of states."""
        ends = ends_of(self.program.signature.outputs, results).items()
        places = {spec.fqn: place for place, spec in enumerate(self.program.signature.inputs)}
        for out, value in ends:
            if out.kind is OutputKind.UPDATE:
                self._values[places[out.target]] = value
        users = [value for out, value in ends if out.kind is OutputKind.USER]
        tree, call = self._replay.captured.out_tree, self.calls[number]
        self.outputs.append(tree.made(users[: len(tree.names)], call.args, call.kwargs))

    def states(self) -> dict[str, Any]:
        """The current states, by name."""
        inputs = zip(self.program.signature.inputs, self._values, strict=True)
        return {str(spec.fqn): v for spec, v in inputs if spec.role not in _NOT_HELD}


_NOT_HELD = (Role.INPUT, Role.DERIVED, Role.ACCUMULATOR)


def _weights(graph: Any) -> dict[str, torch.Tensor]:
    """Parameters and buffers before any step, whole where they will be sharded."""
    if hasattr(graph, "_look"):  # a step, which knows its modules by then
        graph._look()
    return {
        f"{root}.{name}": copied(tensor)
        for root, module in graph._runner.live.modules.items()
        for name, tensor in itertools.chain(module.named_parameters(), module.named_buffers())
        if not is_wrapper(tensor)
    }


def _check_alike(ranks: Sequence[_Rank]) -> None:
    """Raise InvalidOption where a rank starts with other values than the first rank."""
    for number, rank in enumerate(ranks):
        for name, value in rank.begins.items():
            if not bits.same(ranks[0].begins.get(name), value):
                raise InvalidOption(
                    f"run_on_ranks: {name} of rank {number} is not that of rank 0, which would be "
                    "broadcast in a real run.",
                    fix="call torch.manual_seed in make before the model is made.",
                )


def _refuse(replay: Bound) -> None:
    side_effects = replay.captured.side_effects
    if side_effects.actions or side_effects.read:
        raise NotSupported(
            "run_on_ranks runs programs, and this step does more: it steps a scheduler, or goes on "
            "from what it keeps in Python's objects.",
            fix="step the scheduler outside of the step.",
        )
