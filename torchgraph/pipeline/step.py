"""One run of a pipelined step on one rank: the parts of its stages, over the micro-batches."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from ..ir.program import InputSpec
from ..live.micro_batch import chunk
from ..lower import Lowered
from .cut import StageProgram
from .draws import States
from .routes import Routes
from .stages import Place, StagePart

Values = dict[str, torch.Tensor]
"""Tensors by the names of the nodes that compute them."""


@dataclass(frozen=True)
class StageCode:
    """One part of one stage, lowered."""

    of: StageProgram
    first: Lowered
    following: Lowered

    def remade(self, other: Callable[[Lowered], Lowered]) -> StageCode:
        """A copy in which each lowered part is replaced by ``other(part)``."""
        first = other(self.first)
        return StageCode(
            self.of, first, first if self.following is self.first else other(self.following)
        )

    def run(
        self, states: Sequence[Any], values: Values, sums: Values
    ) -> tuple[tuple[Any, ...], Lowered]:
        """Run the part: its results of `build`, and the executable that ran.

        Values for other parts are put into ``values``, gradients into ``sums``.
        """
        taken = [*states, *(values[name] for name in self.of.takes)]
        again = bool(self.of.adds) and self.of.adds[0] in sums
        runs = self.following if again else self.first
        if again:
            taken += [sums[name] for name in self.of.adds]
        results = runs.function(taken)
        returned, results = results[: len(self.of.returns)], results[len(self.of.returns) :]
        values.update(zip(self.of.gives, results, strict=False))
        if not again:
            sums.update(zip(self.of.adds, results[len(self.of.gives) :], strict=True))
        return returned, runs


class StepRun:
    """The run of the micro-batches of one step.

    Args:
        codes: those of the rank's own stages.
        values: of the step's inputs, those of the whole batch.
        wrote: is told of each part that has written a state.
    """

    def __init__(
        self,
        codes: Mapping[Place, StageCode],
        routes: Routes,
        inputs: Sequence[InputSpec],
        values: Sequence[Any],
        count: int,
        wrote: Callable[[bool], None],
    ) -> None:
        self.split = any(place.part is StagePart.WEIGHT for place in codes)
        """True when a backward has two parts."""
        self._codes, self._routes, self._inputs = codes, routes, inputs
        self._values, self._count, self._wrote = values, count, wrote
        self._held: defaultdict[tuple[int, int], Values] = defaultdict(dict)
        """(stage, micro-batch) -> what was handed to it, and what it keeps."""
        self.generators: States = {}
        """Where in torch's generator the draws of a forward begin; empty: wherever it is."""
        self.sums: Values = {}
        """The gradients, by the names of their shares."""
        self.returned: defaultdict[str, dict[int, Any]] = defaultdict(dict)
        """Output -> micro-batch -> what `build` returned."""

    def hand(self, stage: int, number: int, values: Values) -> None:
        """Give a stage the values that the stage next to it has computed for it."""
        self._held[stage, number].update(values)

    def forward(self, stage: int, number: int) -> Values:
        """Run a forward; returns the values for the next stage."""
        if (stage, number) in self.generators:
            torch.set_rng_state(self.generators[stage, number])
        values = self._run(Place(StagePart.FORWARD, stage), number)
        handed = {name: values[name] for name in self._routes.forward.get(stage, ())}
        self._keep(stage, number, self._routes.saved[stage])
        return handed

    def backward(self, stage: int, number: int) -> Values:
        """Run a backward, without weights if it is split; returns values for the stage before."""
        values = self._run(Place(StagePart.BACKWARD, stage), number)
        handed = {name: values[name] for name in self._routes.backward.get(stage - 1, ())}
        self._keep(stage, number, self._routes.deferred[stage])
        return handed

    def weights(self, stage: int, number: int) -> None:
        """Run the weight gradients of a backward that is split."""
        self._run(Place(StagePart.WEIGHT, stage), number)
        del self._held[stage, number]

    def _run(self, place: Place, number: int) -> Values:
        values = self._held[place.stage, number]
        code = self._codes[place]
        returned, ran = code.run(self._states(code.of.states, number), values, self.sums)
        for out, value in zip(code.of.returns, returned, strict=True):
            self.returned[out.target][number] = value
        self._wrote(ran.writes and not code.of.adds)
        return values

    def _states(self, positions: Sequence[int], number: int) -> list[Any]:
        given = ((self._inputs[i].split, self._values[i]) for i in positions)
        return [chunk(value, number, self._count) if split else value for split, value in given]

    def _keep(self, stage: int, number: int, names: set[str]) -> None:
        held = self._held.pop((stage, number))
        if names:
            self._held[stage, number] = {name: held[name] for name in held if name in names}
