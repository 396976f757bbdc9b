"""torch's default generators, so that a step which comes to nothing has drawn nothing."""

from __future__ import annotations

from collections.abc import Iterable

import torch

from ..ir import effects
from ..ir.program import Program
from ..ir.values import leaves


def gpus_drawn_on(program: Program) -> set[torch.device]:
    """The GPUs whose generators a program uses."""
    return {
        value.device
        for node in program.nodes
        if effects.of(node).random
        for value in leaves(node.meta.get("val"))
        if isinstance(value, torch.Tensor) and value.device.type == "cuda"
    }


class Generators:
    """The CPU's generator and those of GPUs, as they are now."""

    def __init__(self, gpus: Iterable[torch.device]) -> None:
        self._cpu = torch.get_rng_state()
        self._gpus = {gpu: torch.cuda.get_rng_state(gpu) for gpu in gpus}

    def equal(self, other: Generators) -> bool:
        """True when ``other`` found them in the same states."""
        pairs = ((state, other._gpus[gpu]) for gpu, state in self._gpus.items())
        return all(torch.equal(*pair) for pair in ((self._cpu, other._cpu), *pairs))

    @property
    def gpus(self) -> set[torch.device]:
        """Those that are looked at besides the CPU."""
        return set(self._gpus)

    def put_back(self) -> None:
        """Set the generators to the states that they had."""
        torch.set_rng_state(self._cpu)
        for gpu, state in self._gpus.items():
            torch.cuda.set_rng_state(state, gpu)
