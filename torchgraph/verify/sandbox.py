"""Runs of programs on copies of the live values of a replay."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from ..ir.names import optimizer_of
from ..ir.program import OutputKind, OutputSpec, Signature
from ..live.inputs import Call
from ..live.random_state import TorchRandomState
from ..live.step import Step
from .bound import Bound
from .eager import GENERATOR
from .start import inputs_of


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
        by_fqn = {leaf.fqn: value for leaf, value in zip(self._replay.leaves, values, strict=True)}
        for spec in signature.inputs[len(values) :]:  # casts that are kept between calls
            if spec.derived_from is not None and spec.meta is not None:
                values.append(by_fqn[spec.derived_from].to(spec.meta.dtype))
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
        pairs = list(zip(outputs, returned, strict=True))
        skipped = {o.target for o, v in pairs if o.kind is OutputKind.SKIP and v.item()}
        ends = {
            out.target: value
            for out, value in pairs
            if out.kind is OutputKind.UPDATE
            and not out.target.startswith("derived.")
            and optimizer_of(out.target) not in skipped
        }
        users = [(out, value) for out, value in pairs if out.kind is OutputKind.USER]
        found = {f"output{out.target}": value for out, value in users[: self._returned]}
        found.update(self._statics)
        found.update((leaf.fqn, value) for leaf, value in zip(leaves, values, strict=False))
        return {**found, **ends, GENERATOR: generator}
