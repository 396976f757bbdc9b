"""Confirmation: a program runs on copies of a call's start, and must give what eager gave."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch

from .. import library
from .._torch.distributed.held import local
from ..distributed.collective_log import CollectiveLog
from ..ir import effects
from ..ir.aliasing import overlaps_itself
from ..ir.program import OutputKind, Program, Role
from ..live.inputs import Call
from ..live.random_state import TorchRandomState
from ..live.step import Leaf
from ..options.options import Options
from ..record.compare.batch import Batch
from ..record.compare.compare import returned_otherwise
from ..record.compare.outcome import Outcome
from ..record.compare.places import differs_in_places
from ..record.ops.threads import OtherThreads
from ..record.side_effects.side_effects import SideEffects
from ..structure import Contents, Returned, tensors_in
from .audit import NotConfirmed
from .bound import Bound
from .tolerance import Update, agree, gap_in_words

OTHER_DRAWS = "it draws other random numbers than eager"
_NO_BATCH = Batch((), (), ())


@dataclass
class Start:
    """The state at a call's start: copies of all that a program may write, and random state."""

    tensors: dict[str, torch.Tensor]
    """By fqn; the paths of arguments too."""
    free: dict[int, torch.Tensor]
    """By the identity of the free tensor: each program has its own names for them."""
    numbers: dict[str, Any]
    random: TorchRandomState
    batch: Batch
    """The batch of the call, where confirmation needs another one."""
    places: dict[str, Any]
    """Values at the places that programs read as arguments: gradients, carried tensors."""
    others: OtherThreads

    @classmethod
    def of(
        cls,
        leaves: Iterable[Leaf],
        call: Call,
        replays: Sequence[Bound],
        batch: Batch = _NO_BATCH,
    ) -> Start:
        """Before a call that one of ``replays`` may have to repeat. ``leaves``: the states."""
        wanted = {
            out.target
            for one in replays
            for out in one.captured.program.signature.outputs
            if out.kind is OutputKind.UPDATE
        }
        free = {
            id(leaf.value): _copied(leaf.value)
            for one in replays
            for leaf in one.leaves
            if leaf.role is Role.FREE and leaf.fqn in wanted
        }
        states = [leaf for leaf in leaves if leaf.role not in (Role.INPUT, Role.FREE)]
        held = [leaf for leaf in states if isinstance(leaf.value, torch.Tensor)]
        # Slots in any case: a wrong program may write another one than it says.
        tensors = {
            leaf.fqn: _copied(leaf.value)
            for leaf in held
            if leaf.fqn in wanted or (replays and leaf.role is Role.SLOT)
        }
        hosts = [one.captured.side_effects for one in replays]
        places = {
            name: value for side_effects in hosts for name, value in side_effects.found().items()
        }
        for one in replays:
            arguments = [leaf.fqn for leaf in one.leaves if leaf.role is Role.INPUT]
            given = [
                *call.tensors,
                *(places[leaf.fqn] for leaf, _ in one.captured.side_effects.read),
            ]
            for fqn, tensor in zip(arguments, given, strict=False):
                if fqn in wanted and isinstance(tensor, torch.Tensor):
                    tensors[fqn] = _copied(tensor)
        numbers = {
            leaf.fqn: leaf.read() for leaf in states if not isinstance(leaf.value, torch.Tensor)
        }
        met = (*(leaf.value for leaf in held), *call.tensors)
        gpus = {tensor.device for tensor in met if tensor.is_cuda}
        return cls(tensors, free, numbers, TorchRandomState(gpus), batch, places, OtherThreads())

    def copied(self) -> Start:
        """A copy of this start: a program that runs from one writes its tensors."""
        tensors = {fqn: _copied(tensor) for fqn, tensor in self.tensors.items()}
        free = {key: _copied(tensor) for key, tensor in self.free.items()}
        return replace(self, tensors=tensors, free=free)

    def copy_of(self, leaf: Leaf) -> torch.Tensor | None:
        """The copy of a leaf's value; None where no program writes it, and for a number."""
        if leaf.role is Role.FREE:
            return self.free.get(id(leaf.value))
        return self.tensors.get(leaf.fqn)

    def value_of(self, leaf: Leaf) -> Any:
        """A leaf's value at the start: a copy, the number, or a tensor that is not written."""
        copy = self.copy_of(leaf)
        return self.numbers.get(leaf.fqn, leaf.value) if copy is None else copy


def _copied(tensor: torch.Tensor) -> torch.Tensor:
    """A copy of its own with the same strides; of a DTensor, of its local part."""
    tensor = local(tensor)
    if tensor.is_contiguous() or overlaps_itself(tensor):
        return tensor.detach().clone()
    with torch.no_grad():
        made = torch.empty_strided(
            tensor.shape, tensor.stride(), dtype=tensor.dtype, device=tensor.device
        )
        return made.copy_(tensor)


def _here(value: Any) -> Any:
    """The part of a value that is compared: of a DTensor, its local part."""
    return local(value) if isinstance(value, torch.Tensor) else value


def blame(options: Options) -> str:
    """The sentence of a message that names who is at fault when a program is wrong."""
    theirs = ", ".join(repr(one.name) for _, one in options.passes.inserted)
    if theirs:
        return f"It was rewritten by {theirs}: graph.check() names the pass at fault."
    return "This is a fault of torchgraph: please report it."


class Left(NamedTuple):
    """The results of a call in eager, besides the live states."""

    returned: Any
    moved: frozenset[str]
    """Tensors of optimizers that schedulers write."""
    collectives: CollectiveLog
    """The results of its collectives."""
    extra: Sequence[torch.Tensor] | None = None
    """Further results of a program; None: they are compared in their places."""
    tree: Returned | None = None
    """The structure that it returned; None where that was compared before."""

    @classmethod
    def of(cls, outcome: Outcome) -> Left:
        """The results of a recorded call."""
        return cls(
            outcome.returned, outcome.side_effects.moved, outcome.tape.collectives, outcome.extra
        )


class _Run(NamedTuple):
    """A program over copies of what a call starts from."""

    replay: Bound
    leaves: dict[str, Leaf]
    own: dict[str, torch.Tensor]
    """The arguments, by path."""
    extended: Call
    """The call, with what the program takes from places."""
    copy: Call
    """The call without values from places."""

    @classmethod
    def of(cls, replay: Bound, start: Start, call: Call, *, audited: bool = False) -> _Run:
        shadow, leaves = _shadow(replay, start, audited)  # it writes the tensors of ``start``
        names = [leaf.fqn for leaf in replay.leaves if leaf.role is Role.INPUT]
        extended = replay.captured.side_effects.extended(call, start.places)
        own = {
            name: start.tensors.get(name, tensor)
            for name, tensor in zip(names, extended.tensors, strict=True)
        }
        copy = call.over(list(own.values())[: len(call.tensors)])
        return cls(shadow, leaves, own, extended, copy)

    @property
    def given(self) -> Call:
        """The call that the program runs."""
        return self.copy._replace(tensors=list(self.own.values()))


def unlike(replay: Bound, start: Start, call: Call, left: Left) -> str:
    """The first difference of the program of ``replay``, run from ``start``; empty: none.

    ``left``: the results of the same call in eager, which also left the live states.
    """
    gpus = start.random.gpus  # whose kernels may add in any order
    exact = not gpus and all(record.exact for record in replay.program.history)
    held = {} if exact else {leaf.fqn: start.copy_of(leaf) for leaf in replay.leaves}
    before = {fqn: _copied(value) for fqn, value in held.items() if value is not None}
    run, captured = _Run.of(replay, start, call), replay.captured
    copy, after = run.copy, TorchRandomState(gpus)
    start.random.put_back()
    try:
        with _asking_nobody(captured.program, left.collectives):
            tensors = run.replay.results(run.given)
        left_random = TorchRandomState(gpus)
    finally:
        after.put_back()
    if not left_random.equal(after):
        return OTHER_DRAWS
    contents = None if call.contents is None else Contents(copy.args, copy.kwargs)
    returned = captured.out_tree.made(tensors, copy.args, copy.kwargs)
    if left.tree is not None:
        for apart in returned_otherwise(Returned(returned, contents), left.tree):
            return apart.what
    results = _results((left.returned, returned), call, copy)
    besides = _besides(captured.side_effects, left, tensors, (call, run.given))
    states = _pairs(replay, run.leaves, run.own, run.extended, left.moved)
    sent = left.collectives.compared
    pairs = [(name, *map(_here, pair)) for name, *pair in (*sent, *results, *besides, *states)]
    update = Update() if exact else Update.of(pairs, before)
    for name, expected, got in pairs:
        allowed = (0.0, 0.0) if exact else update.allowed(name)
        if not agree(expected, got, before.get(name), exact, *allowed):
            drawn = start.others.ran() and not start.random.equal(after)  # between the draws, too
            what = f"{name} differs from eager's{gap_in_words(expected, got)}"
            return OTHER_DRAWS if drawn else what
    return ""


def miscompiled(replay: Bound, start: Start, call: Call) -> NotConfirmed | None:
    """The difference of Inductor's code and the `aten` program from ``start``, which is written."""
    run = _Run.of(replay, start, call, audited=True)
    after = TorchRandomState(start.random.gpus)
    start.random.put_back()
    try:
        run.replay.results(run.given)
    except NotConfirmed as found:
        return found
    finally:
        after.put_back()
    return None


def _besides(
    side_effects: SideEffects, left: Left, tensors: Sequence[torch.Tensor], calls: tuple[Call, Call]
) -> Iterator[tuple[str, Any, Any]]:
    """(name, eager's, the program's) of effects besides results and states."""
    if left.extra is None:
        yield from differs_in_places(side_effects, tensors, *calls)
        return
    pairs = zip(left.extra, tensors[len(tensors) - len(left.extra) :], strict=True)
    for number, pair in enumerate(pairs):
        yield f"result {number}", *pair


def asks_once(program: Program) -> bool:
    """False where a collective precedes the last micro-batch: it was not recorded in eager."""
    nodes = list(program.nodes)
    marks = [at for at, node in enumerate(nodes) if node.target is library.accumulated]
    return all(
        at > max(marks, default=-1)
        for at, node in enumerate(nodes)
        if effects.of(node).communicates
    )


def _asking_nobody(program: Program, collectives: CollectiveLog) -> AbstractContextManager[None]:
    """In the block, collectives repeat their eager results: other ranks may not take part."""
    return collectives.replaying() if collectives and asks_once(program) else nullcontext()


def _shadow(replay: Bound, start: Start, audited: bool) -> tuple[Bound, dict[str, Leaf]]:
    """The program over copies: nothing of the user's is written."""
    leaves = [_alone(leaf, start.value_of(leaf)) for leaf in replay.leaves]
    captured = replace(replay.captured, leaves=leaves)
    shadow = replay.over(captured, audited=audited)
    return shadow, {leaf.fqn: leaf for leaf in leaves}


def _alone(leaf: Leaf, value: Any) -> Leaf:
    return Leaf(leaf.fqn, leaf.role, {"value": value}, ("value",), value)


def _results(returned: tuple[Any, Any], call: Call, copy: Call) -> Iterator[tuple[str, Any, Any]]:
    """(name, eager's, the program's) of what is returned, and of what arguments hold then."""
    expected = tensors_in((returned[0], call.args, call.kwargs))
    got = tensors_in((returned[1], copy.args, copy.kwargs))
    given = {id(tensor): number for number, tensor in enumerate(call.tensors)}
    ours = {id(tensor): number for number, tensor in enumerate(copy.tensors)}
    for number, ((path, one), (place, other)) in enumerate(zip(expected, got, strict=True)):
        was = given.get(id(one))
        if path != place or (was is None) != (id(other) not in ours):
            yield f"output {number}", path, place
        elif was is None:
            yield f"output {number}", one, other


def _pairs(
    replay: Bound,
    leaves: Mapping[str, Leaf],
    own: Mapping[str, torch.Tensor],
    call: Call,
    moved: frozenset[str],
) -> Iterator[tuple[str, Any, Any]]:
    """(name, eager's, the program's) of the states and arguments that a step writes."""
    live = {leaf.fqn: leaf for leaf in replay.leaves}
    written = {
        out.target
        for out in replay.captured.program.signature.outputs
        if out.kind is OutputKind.UPDATE
    }
    paths = [leaf.fqn for leaf in replay.leaves if leaf.role is Role.INPUT]
    given = dict(zip(paths, call.tensors, strict=True))
    slots = {leaf.fqn for leaf in replay.leaves if leaf.role is Role.SLOT} - moved
    for fqn in written | slots:
        if fqn in given:
            yield fqn, given[fqn], own[fqn]
        elif fqn in live:
            yield fqn, live[fqn].read(), leaves[fqn].read()
