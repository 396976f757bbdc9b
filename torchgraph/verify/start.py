"""The start of a call: copies of what a program may write, and a run of a program from there."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch

from ..ir.copies import copied
from ..ir.program import OutputKind, OutputSpec, Role, Signature
from ..live.inputs import Call
from ..live.step import Leaf, Step
from ..objects import is_a
from ..random_state import TorchRandomState
from ..record.ops.threads import OtherThreads
from .batch import Batch
from .bound import Bound
from .eager import GENERATOR
from .run import ends_of


def inputs_of(leaves: Iterable[Leaf], arguments: Iterable[torch.Tensor]) -> list[Any]:
    """Copies of what a program reads: of the arguments, in their order, and of what is live."""
    given = iter(arguments)
    return [copied(next(given) if leaf.role is Role.INPUT else now(leaf)) for leaf in leaves]


def now(leaf: Leaf) -> Any:
    """The tensor of a leaf, or the number that is there now."""
    is_bound = leaf.role is Role.INPUT or isinstance(leaf.value, torch.Tensor)
    return leaf.value if is_bound else leaf.read()


def make_casts(signature: Signature, values: list[Any]) -> None:
    """Put the casts that are kept between calls into ``values``, those of the inputs before."""
    by_fqn = {spec.fqn: value for spec, value in zip(signature.inputs, values, strict=False)}
    for place, spec in enumerate(signature.inputs):
        if spec.derived_from is not None and spec.meta is not None:
            values[place : place + 1] = [by_fqn[spec.derived_from].to(spec.meta.dtype)]


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
        wanted = {fqn for one in replays for fqn in one.captured.program.signature.written}
        free = {
            id(leaf.value): copied(leaf.value)
            for one in replays
            for leaf in one.leaves
            if leaf.role is Role.FREE and leaf.fqn in wanted
        }
        states = [leaf for leaf in leaves if leaf.role not in (Role.INPUT, Role.FREE)]
        held = [leaf for leaf in states if is_a(leaf.value, torch.Tensor)]
        # Slots in any case: a wrong program may write another one than it says.
        tensors = {
            leaf.fqn: copied(leaf.value)
            for leaf in held
            if leaf.fqn in wanted or (replays and leaf.role is Role.SLOT)
        }
        places: dict[str, Any] = {}
        for one in replays:
            places.update(one.captured.side_effects.found())
        for one in replays:
            arguments = [leaf.fqn for leaf in one.leaves if leaf.role is Role.INPUT]
            given = [
                *call.tensors,
                *(places[leaf.fqn] for leaf, _ in one.captured.side_effects.read),
            ]
            for fqn, tensor in zip(arguments, given, strict=False):
                if fqn in wanted and isinstance(tensor, torch.Tensor):
                    tensors[fqn] = copied(tensor)
        numbers = {leaf.fqn: leaf.read() for leaf in states if not is_a(leaf.value, torch.Tensor)}
        met = (*(leaf.value for leaf in held), *call.tensors)
        gpus = {tensor.device for tensor in met if tensor.is_cuda}
        return cls(tensors, free, numbers, TorchRandomState(gpus), batch, places, OtherThreads())

    def copied(self) -> Start:
        """A copy of this start: a program that runs from one writes its tensors."""
        tensors = {fqn: copied(tensor) for fqn, tensor in self.tensors.items()}
        free = {key: copied(tensor) for key, tensor in self.free.items()}
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

    def inputs(self, replay: Bound, call: Call) -> list[Any]:
        """The values of the leaves of ``replay``; ``call`` has what it takes from places."""
        given = iter(call.tensors)
        return [
            self.tensors.get(leaf.fqn, next(given))
            if leaf.role is Role.INPUT
            else self.value_of(leaf)
            for leaf in replay.leaves
        ]


class OnCopies(NamedTuple):
    """A program over copies of what a call starts from: nothing of the user's is written."""

    replay: Bound
    leaves: dict[str, Leaf]
    """The copies, by name."""
    extended: Call
    """The call, with what the program takes from places."""
    copy: Call
    """The call over copies, without values from places."""
    given: Call
    """The call that the program runs."""

    @classmethod
    def of(cls, replay: Bound, start: Start, call: Call, *, audited: bool = False) -> OnCopies:
        """``replay`` over the tensors of ``start``, which a run writes."""
        extended = replay.captured.side_effects.extended(call, start.places)
        values = start.inputs(replay, extended)
        leaves = [
            Leaf(leaf.fqn, leaf.role, {"value": value}, ("value",), value)
            for leaf, value in zip(replay.leaves, values, strict=True)
        ]
        own = [leaf.value for leaf in leaves if leaf.role is Role.INPUT]
        copy = call.over(own[: len(call.tensors)])
        shadow = replay.over(replace(replay.captured, leaves=leaves), audited=audited)
        by_fqn = {leaf.fqn: leaf for leaf in leaves}
        return cls(shadow, by_fqn, extended, copy, copy._replace(tensors=own))

    def results(self) -> Sequence[torch.Tensor]:
        """One step: all that the program returns."""
        return self.replay.results(self.given)


class ReplaySandbox:
    """Copies of the inputs of one call, on which programs run without side effects."""

    def __init__(self, replay: Bound, call: Call, step: Step) -> None:
        self._replay = replay
        self._call = replay.captured.side_effects.extended(call)
        self._returned = len(replay.captured.out_tree.names)
        self._statics: dict[str, Any] = {static.fqn: static.value for static in step.statics}

    @contextmanager
    def values(self, signature: Signature) -> Iterator[list[Any]]:
        """Copies of the inputs of a program; restores the random state after the block."""
        values = inputs_of(self._replay.leaves, self._call.tensors)
        make_casts(signature, values)
        with torch.enable_grad(), TorchRandomState().kept():
            yield values

    def run(
        self,
        function: Callable[[Sequence[object]], Sequence[Any]],
        outputs: Sequence[OutputSpec],
        signature: Signature,
    ) -> dict[str, object]:
        """The results of a step and every state after it, by name."""
        leaves = self._replay.leaves
        with self.values(signature) as values:
            returned = function(values)
            generator = torch.get_rng_state()
        ends = ends_of(outputs, returned).items()
        users = [(f"output{out.target}", v) for out, v in ends if out.kind is OutputKind.USER]
        states = {out.target: value for out, value in ends if out.kind is OutputKind.UPDATE}
        return {
            **dict(users[: self._returned]),
            **self._statics,
            **{leaf.fqn: value for leaf, value in zip(leaves, values, strict=False)},
            **{name: value for name, value in states.items() if not name.startswith("derived.")},
            GENERATOR: generator,
        }
