"""Runs of programs on copies of the live values of a replay."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from ..ir.program import OutputKind, OutputSpec, Signature
from ..live.inputs import Call
from ..live.random_state import TorchRandomState
from ..live.step import Step
from .bound import Bound
from .eager import GENERATOR
from .run import ends_of
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
