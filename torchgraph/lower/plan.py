"""Plan: a step that runs its forward and backward part once for each micro-batch, then updates."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from ..ir.program import OutputKind, OutputSpec, Program, Signature
from ..live.micro_batch import chunk
from .copies import Copies
from .lowered import Composite, Lowered

PARTS = ("first micro-batch", "following micro-batches", "update")
"""The parts of a step that accumulates gradients, in the order in which they run."""


@dataclass
class _Progress:
    """The progress of a run, which decides the state that an error leaves behind."""

    wrote: bool = False
    undone: bool = False
    """True when what was written is as it was before."""


@dataclass(frozen=True)
class Plan(Composite):
    """Three executables behind the interface of one.

    The first micro-batch's gradients become the accumulators, the others are added to them in
    place, so that at any time there is one set of gradients and one micro-batch's activations. The
    first also makes the casts of weights that the others read.

    A micro-batch may write buffers before the predicates of the next are known to hold, or before
    an op of the next raises. So copies are kept until the update begins to write; a step that fails
    before puts them back.
    """

    first: Lowered
    following: Lowered
    update: Lowered
    signature: Signature
    """The signature of the whole step."""
    program: Program
    """The whole step, not split."""
    _progress: _Progress = field(default_factory=_Progress)

    @property
    def outputs(self) -> tuple[OutputSpec, ...]:
        """The outputs of a micro-batch, packed over all of them, then those of the update."""
        return (*self._returned, *self.update.outputs)

    @property
    def _returned(self) -> tuple[OutputSpec, ...]:
        return tuple(o for o in self.first.outputs if o.kind is not OutputKind.GRADIENT)

    @property
    def executables(self) -> tuple[Lowered, ...]:
        """The parts, in the order in which they run."""
        return (self.first, self.following, self.update)

    @property
    def writes(self) -> bool:
        """Always: the gradients are added up in place."""
        return True

    def function(self, values: Sequence[Any]) -> tuple[Any, ...]:
        """Run one step: ``values`` are those of the whole batch, results are packed on dim 0."""
        self._progress.wrote = self._progress.undone = False
        copies = self._copies
        try:
            copies.take(values)
            return self._run(values)
        except Exception as error:  # whatever it is, the step may be run again
            if not self.update.wrote(error):
                copies.put_back(values)
                self._progress.undone = True
            raise

    def _run(self, values: Sequence[Any]) -> tuple[Any, ...]:
        kept = len(self._returned)
        returned: list[tuple[Any, ...]] = []
        held: tuple[Any, ...] = ()
        for number in range(self.signature.micro_batches):
            batch = self._micro_batch(values, number)
            part = self.following if number else self.first
            results = part.function([*batch, *held])
            self._progress.wrote |= part.writes
            returned.append(results[:kept])
            held = held or results[kept:]
        gradients = held[: len(self.update.signature.inputs) - len(values)]
        held = ()  # the casts go before the update
        together = (packed(values) for values in zip(*returned, strict=True))
        return (*together, *self.update.function([*values, *gradients]))

    def _micro_batch(self, values: Sequence[Any], number: int) -> list[Any]:
        count = self.signature.micro_batches
        specs = self.signature.inputs
        return [
            chunk(value, number, count) if spec.split else value
            for spec, value in zip(specs, values, strict=True)
        ]

    def wrote(self, error: BaseException) -> bool:
        """True when this or an earlier part had begun to write, and nothing was put back."""
        wrote = self._progress.wrote or super().wrote(error)
        return wrote and not self._progress.undone

    @functools.cached_property
    def _copies(self) -> Copies:
        """Copies of what is written before the update is known to come to its end."""
        copied = (i for i in self.update.copied if i < len(self.signature.inputs))
        return Copies(sorted({*self._written_early, *copied}))

    @property
    def _written_early(self) -> list[int]:
        """The places of the states that a micro-batch writes."""
        updates = self.first.signature.written
        specs = enumerate(self.signature.inputs)
        return [i for i, spec in specs if spec.fqn in updates and spec.meta is not None]


def packed(values: tuple[Any, ...]) -> Any:
    """The results of micro-batches, packed as by OneFlow: scalars stacked, tensors concatenated."""
    if not isinstance(values[0], torch.Tensor):
        return values[-1]
    return torch.stack(values) if values[0].ndim == 0 else torch.cat(values)
