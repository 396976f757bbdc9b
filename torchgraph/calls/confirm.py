"""Confirm: a program runs on copies of what a call started from, and must come to the same."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import torch

from .. import library
from .._torch.distributed.held import local
from ..ir import effects
from ..ir.names import key_of, last_of, parameter_of
from ..ir.program import OutputKind, Program, Role
from ..live.inputs import Call
from ..live.step import Leaf, Step
from ..lower import Target
from ..options.options import Options
from ..passes import pipeline, run
from ..record.compare.batch import Batch
from ..record.compare.compare import same_bits
from ..record.compare.outcome import Outcome
from ..record.ops.threads import OtherThreads
from ..replay.cuda.graphs import CudaGraphs
from ..replay.generators import Generators
from ..replay.replay import Replay
from ..structure import tensors_in

_ROUNDING = 64
"""Times the dtype's epsilon: what sums in another order may change."""

OTHER_DRAWS = "it draws other random numbers than eager"


@dataclass
class Start:
    """What a call starts from: copies of all that a program may write, and the generators."""

    tensors: dict[str, torch.Tensor]
    """By fqn; the paths of arguments too."""
    free: dict[int, torch.Tensor]
    """By the identity of the free tensor: each program has its own names for them."""
    numbers: dict[str, Any]
    random: Generators
    batch: Batch
    places: dict[str, Any]
    """What lay where programs take an argument from: gradients, tensors that are carried."""
    others: OtherThreads

    @classmethod
    def of(cls, step: Step, call: Call, replays: list[Replay]) -> Start:
        """Before a call that one of ``replays`` may have to repeat."""
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
        # Slots in any case: a wrong program may write another one than it says.
        tensors = {
            leaf.fqn: _copied(leaf.value)
            for _, leaf in step.tensors()
            if leaf.fqn in wanted or (replays and leaf.role is Role.SLOT)
        }
        hosts = [one.captured.host for one in replays]
        places = {name: value for host in hosts for name, value in host.found().items()}
        for one in replays:
            arguments = [leaf.fqn for leaf in one.leaves if leaf.role is Role.INPUT]
            given = [*call.tensors, *(places[leaf.fqn] for leaf, _ in one.captured.host.read)]
            for fqn, tensor in zip(arguments, given, strict=False):
                if fqn in wanted and isinstance(tensor, torch.Tensor):
                    tensors[fqn] = _copied(tensor)
        numbers = {
            leaf.fqn: leaf.value for leaf in step.leaves if not isinstance(leaf.value, torch.Tensor)
        }
        held = (leaf.value for _, leaf in step.tensors())
        gpus = {tensor.device for tensor in (*held, *call.tensors) if tensor.is_cuda}
        random, batch = Generators(gpus), Batch.of(call)
        return cls(tensors, free, numbers, random, batch, places, OtherThreads())

    def copy_of(self, leaf: Leaf) -> torch.Tensor | None:
        """What ``leaf`` held; None where no program writes it, and for a number."""
        if leaf.role is Role.FREE:
            return self.free.get(id(leaf.value))
        return self.tensors.get(leaf.fqn)

    def value_of(self, leaf: Leaf) -> Any:
        """What ``leaf`` held: a copy, the number, or the tensor itself, which is not written."""
        copy = self.copy_of(leaf)
        return self.numbers.get(leaf.fqn, leaf.value) if copy is None else copy


def _copied(tensor: torch.Tensor) -> torch.Tensor:
    """A copy of its own with the same strides; of a DTensor, of its local part."""
    tensor = local(tensor)
    with torch.no_grad():
        made = torch.empty_strided(
            tensor.shape, tensor.stride(), dtype=tensor.dtype, device=tensor.device
        )
        return made.copy_(tensor)


def _here(value: Any) -> Any:
    """What is compared of a value: of a DTensor, what lies in this process."""
    return local(value) if isinstance(value, torch.Tensor) else value


def blame(options: Options) -> str:
    """Whose fault it is when a program does not compute what eager does."""
    theirs = ", ".join(repr(one.name) for _, one in options.passes.inserted)
    if theirs:
        return f"It was rewritten by {theirs}: graph.check() names the pass at fault."
    return "This is a fault of torchgraph: please report it."


def unlike(replay: Replay, start: Start, call: Call, outcome: Outcome) -> str:
    """What comes out otherwise when the program of ``replay`` runs from ``start``; empty: nothing.

    ``outcome``: what eager has made of the same call; the live states are as it left them.
    """
    gpus = start.random.gpus  # whose kernels may add in any order
    exact = not gpus and all(record.exact for record in replay.program.history)
    held = {} if exact else {leaf.fqn: start.copy_of(leaf) for leaf in replay.leaves}
    before = {fqn: _copied(value) for fqn, value in held.items() if value is not None}
    shadow, leaves = _shadow(replay, start)  # it writes the tensors of ``start``
    names = [leaf.fqn for leaf in replay.leaves if leaf.role is Role.INPUT]
    extended = replay.captured.host.extended(call, start.places)
    own = {
        name: start.tensors.get(name, tensor)
        for name, tensor in zip(names, extended.tensors, strict=True)
    }
    copy = call.over(list(own.values())[: len(call.tensors)])
    after = Generators(gpus)
    start.random.put_back()
    try:
        with _asking_nobody(replay.captured.program, outcome):
            tensors = shadow.results(copy._replace(tensors=list(own.values())))
        left_random = Generators(gpus)
    finally:
        after.put_back()
    if not left_random.equal(after):
        return OTHER_DRAWS
    returned = replay.captured.out_tree.made(tensors, copy.args, copy.kwargs)
    results = _results((outcome.returned, returned), call, copy)
    besides = zip(outcome.extra, tensors[len(tensors) - len(outcome.extra) :], strict=True)
    left = [(f"result {number}", *pair) for number, pair in enumerate(besides)]
    states = _pairs(replay, leaves, own, extended, outcome.host.moved)
    sent = outcome.tape.came.compared
    pairs = [(name, *map(_here, pair)) for name, *pair in (*sent, *results, *left, *states)]
    update = _Update() if exact else _Update.of(pairs, before)
    for name, expected, got in pairs:
        if not _agree(expected, got, before.get(name), exact, *update.allowed(name)):
            drawn = start.others.ran() and not start.random.equal(after)  # between the draws, too
            return OTHER_DRAWS if drawn else f"{name} differs from eager's{_gap(expected, got)}"
    return ""


def _asking_nobody(program: Program, outcome: Outcome) -> AbstractContextManager[None]:
    """In the block, collectives give what they gave in eager: other ranks may be elsewhere."""
    nodes = list(program.nodes)
    marks = [at for at, node in enumerate(nodes) if node.target is library.accumulated]
    once = all(
        at > max(marks, default=-1)
        for at, node in enumerate(nodes)
        if effects.of(node).communicates
    )
    came = outcome.tape.came
    # Nobody has heard the collectives of micro-batches after the first.
    return came.repeated() if came and once else nullcontext()


def as_eager(replay: Replay, options: Options) -> Replay:
    """``replay``, or its program without the casts that eager does not make.

    The colouring of ``policy="oneflow"`` has no eager twin: what it starts from is compared.
    """
    if options.amp is None or options.autocast is not None:
        return replay
    options = replace(options, amp=None, cuda_graph="off")
    program = run(replay.captured.program, pipeline(options), options.passes)
    graphs = CudaGraphs()
    code = graphs.lower(program, "as eager", Target(options))
    return Replay(replay.captured, code, options, graphs.calls)


def _shadow(replay: Replay, start: Start) -> tuple[Replay, dict[str, Leaf]]:
    """The program over copies: nothing of the user's is written."""
    leaves = [_alone(leaf, start.value_of(leaf)) for leaf in replay.leaves]
    captured = replace(replay.captured, leaves=leaves)
    shadow = replay.over(captured)
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
    replay: Replay,
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


class _Slot(NamedTuple):
    kind: str
    parameter: str
    value: torch.Tensor


def _slot(name: str, value: Any) -> _Slot | None:
    """None for what is no tensor of an optimizer's."""
    inexact = isinstance(value, torch.Tensor) and value.is_floating_point()
    if not key_of(name) or not inexact:
        return None
    return _Slot(last_of(name), parameter_of(name), value.detach())


def _size(value: torch.Tensor) -> float:
    return float(value.double().nan_to_num(0, 0, 0).norm())


@dataclass(frozen=True)
class _Update:
    """What says how far rounding carries through an update of eager's."""

    sizes: Mapping[str, float] = field(default_factory=dict)
    """The size of the largest of each kind of slot, whose rounding a zero gradient may be."""
    noise: frozenset[str] = frozenset()
    """The parameters all of whose slots are no more than that: Adam makes whole steps of it."""
    reach: float = 0.0
    """The farthest that an element of any parameter has moved."""

    @classmethod
    def of(
        cls, pairs: Sequence[tuple[str, Any, Any]], before: Mapping[str, torch.Tensor]
    ) -> _Update:
        """Made of what eager left, and what it found."""
        kinds: dict[str, list[_Slot]] = {}
        for name, expected, _ in pairs:
            if slot := _slot(name, expected):
                kinds.setdefault(slot.kind, []).append(slot)
        sizes = {kind: max(_size(slot.value) for slot in slots) for kind, slots in kinds.items()}
        now = {name: value for name, value, _ in pairs if isinstance(value, torch.Tensor)}
        loud, quiet = set[str](), set[str]()
        for slots in kinds.values():
            squares = all(bool((slot.value >= 0).all()) for slot in slots)
            own = [(slot, _size(slot.value.sqrt() if squares else slot.value)) for slot in slots]
            most = max(size for _, size in own)
            for slot, size in own:
                like = slot.parameter in now and now[slot.parameter].shape == slot.value.shape
                if like:  # no counter
                    rounds = size <= _ROUNDING * torch.finfo(slot.value.dtype).eps * most
                    (quiet if rounds else loud).add(slot.parameter)
        moved = (_moved(now[name], before[name]) for name in loud & before.keys())
        reach = max((float(one.abs().max()) for one in moved if one.numel()), default=0.0)
        return cls(sizes, frozenset(quiet - loud), reach)

    def allowed(self, name: str) -> tuple[float, float]:
        """(the size whose rounding may be in a value, how far one that is rounding may be off)."""
        return self.sizes.get(last_of(name), 0.0), self.reach if name in self.noise else 0.0


def _moved(now: torch.Tensor, before: torch.Tensor) -> torch.Tensor:
    return (now.detach().double() - before.double()).nan_to_num(0, 0, 0)


def _agree(
    expected: Any,
    got: Any,
    start: torch.Tensor | None,
    exact: bool,
    size: float,
    reach: float,
) -> bool:
    if not isinstance(expected, torch.Tensor) or not isinstance(got, torch.Tensor):
        return type(expected) is type(got) and repr(expected) == repr(got)
    if (expected.shape, expected.dtype) != (got.shape, got.dtype):
        return False
    with torch.no_grad():
        expected, got = expected.detach(), got.detach()
        if same_bits(expected, got):
            return True
        if exact or not (expected.is_floating_point() or expected.is_complex()):
            return False
        wide = torch.complex128 if expected.is_complex() else torch.float64
        one, other = expected.to(wide), got.to(wide)
        if not torch.equal(one.isfinite(), other.isfinite()):
            return False
        apart = (one - other).nan_to_num(0, 0, 0).norm()
        moved = 0.0 if start is None else (one - start.to(wide)).nan_to_num(0, 0, 0).norm()
        size = max(size, float(one.nan_to_num(0, 0, 0).norm()))
        rounding = _ROUNDING * torch.finfo(expected.dtype).eps * size
        share = moved + reach * expected.numel() ** 0.5 if reach else 0.05 * moved
        return bool(apart <= rounding + share)


def _gap(expected: Any, got: Any) -> str:
    if not isinstance(expected, torch.Tensor) or expected.shape != got.shape:
        return ""
    gap = (expected.detach().to(torch.complex128) - got.detach().to(torch.complex128)).abs()
    return f" by up to {gap.max().item():.3g}" if gap.numel() else ""
