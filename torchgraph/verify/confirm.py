"""Confirmation: a program runs on copies of a call's start, and must give what eager gave."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, NamedTuple

import torch

from .. import library
from .._torch.distributed.held import local
from ..distributed.collective_log import CollectiveLog
from ..effects.side_effects import SideEffects
from ..ir import effects
from ..ir.copies import copied
from ..ir.program import Program, Role
from ..live.inputs import Call
from ..options.options import Options
from ..random_state import TorchRandomState
from ..record.compare.compare import returned_otherwise
from ..record.compare.outcome import Outcome
from ..record.compare.places import differs_in_places
from ..structure import Contents, Returned, tensors_in
from .audit import NotConfirmed
from .bound import Bound
from .memory import copied_bytes, give_back
from .repeats import Unrepeated
from .start import OnCopies, Start as Start
from .tolerance import Update, agree, gap_in_words

OTHER_DRAWS = "it draws other random numbers than eager"


def _here(value: Any) -> Any:
    """The part of a value that is compared: of a DTensor, its local part."""
    return local(value) if isinstance(value, torch.Tensor) else value


def blame(options: Options, odd: Unrepeated | None = None) -> str:
    """The sentence of a message that names who is at fault when a program is wrong.

    ``odd``: an op of the step that gives other bits when it is called again.
    """
    if odd is not None:
        return (
            f"No program can be compared with the step, since {odd}. Use another op there, or "
            "leave it out of the step."
        )
    theirs = ", ".join(repr(one.name) for _, one in options.passes.inserted)
    if theirs:
        return f"It was rewritten by {theirs}: graph.check() names the pass at fault."
    return "This is a fault of torchgraph: please report it."


class Left(NamedTuple):
    """The results of a call in eager, besides the live states."""

    returned: Any
    moved: frozenset[str]
    """Tensors of optimizers that schedulers may write."""
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


def unlike(replay: Bound, start: Start, call: Call, left: Left) -> str:
    """The first difference of the program of ``replay``, run from ``start``; empty: none.

    ``left``: the results of the same call in eager, which also left the live states.
    """
    try:
        return _unlike(replay, start, call, left)
    finally:
        give_back(copied_bytes(replay.captured.program)[torch.device("cpu")])


def _unlike(replay: Bound, start: Start, call: Call, left: Left) -> str:
    gpus = start.random.gpus  # whose kernels may add in any order
    exact = not gpus and all(record.exact for record in replay.program.history)
    held = {} if exact else {leaf.fqn: start.copy_of(leaf) for leaf in replay.leaves}
    before = {fqn: copied(value) for fqn, value in held.items() if value is not None}
    run, captured = OnCopies.of(replay, start, call), replay.captured
    copy = run.copy
    with start.random.again() as after:
        with _asking_nobody(captured.program, left.collectives):
            tensors = run.results()
        left_random = TorchRandomState(gpus)
    if not left_random.equal(after):
        return OTHER_DRAWS
    contents = None if call.contents is None else Contents(copy.args, copy.kwargs)
    returned = captured.out_tree.made(tensors, copy.args, copy.kwargs)
    if left.tree is not None:
        for apart in returned_otherwise(Returned(returned, contents), left.tree):
            return apart.what
    results = _results((left.returned, returned), call, copy)
    besides = _besides(captured.side_effects, left, tensors, (call, run.given))
    states = _pairs(replay, run, left.moved)
    sent = left.collectives.compared
    pairs = [(name, *map(_here, pair)) for name, *pair in (*sent, *results, *besides, *states)]
    parameters = [leaf.fqn for leaf in replay.leaves if leaf.role is Role.PARAMETER]
    update = Update() if exact else Update.of(pairs, before, parameters)
    for name, expected, got in pairs:
        allowed = (0.0, 0.0) if exact else update.allowed(name)
        if not agree(expected, got, before.get(name), exact, *allowed):
            drawn = start.others.ran() and not start.random.equal(after)  # between the draws, too
            what = f"{name} differs from eager's{gap_in_words(expected, got)}"
            return OTHER_DRAWS if drawn else what
    return ""


def miscompiled(replay: Bound, start: Start, call: Call) -> NotConfirmed | None:
    """The difference of Inductor's code and the `aten` program from ``start``, which is written."""
    run = OnCopies.of(replay, start, call, audited=True)
    try:
        with start.random.again():
            run.results()
    except NotConfirmed as found:
        return found
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


def _pairs(replay: Bound, run: OnCopies, moved: frozenset[str]) -> Iterator[tuple[str, Any, Any]]:
    """(name, eager's, the program's) of the states and arguments that a step writes."""
    paths = [leaf.fqn for leaf in replay.leaves if leaf.role is Role.INPUT]
    given = dict(zip(paths, run.extended.tensors, strict=True))
    live = {leaf.fqn: leaf for leaf in replay.leaves}
    slots = {leaf.fqn for leaf in replay.leaves if leaf.role is Role.SLOT}
    for fqn in (replay.captured.program.signature.written | slots) - moved:
        if fqn in live:
            yield fqn, given[fqn] if fqn in given else live[fqn].read(), run.leaves[fqn].read()
