"""Undo of a run whose op raises: copies of the values that it writes, and its random state."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch

from .._torch import below_autograd
from ..errors import GraphBroken, StepFailed
from ..ir import effects
from ..ir.program import Program
from ..ir.values import leaves
from ..lines import of_framework
from ..lower import Copies, Lowered
from ..random_state import TorchRandomState

_PATIENCE = 8
"""Failed runs before their share is considered."""


def gpus_drawn_on(program: Program) -> set[torch.device]:
    """The GPUs whose generators a program uses."""
    return {
        value.device
        for node in program.nodes
        if effects.of(node).random
        for value in leaves(node.meta.get("val"))
        if isinstance(value, torch.Tensor) and value.device.type == "cuda"
    }


class Undo:
    """Takes back the runs of one program that fail, and counts them."""

    def __init__(self) -> None:
        self.count = 0
        """Runs that were undone because an op had raised."""
        self._copies = Copies(())
        self._random: TorchRandomState | None = None

    def fails_mostly(self, runs: int) -> bool:
        """True when most runs were undone. ``runs``: the number of runs that succeeded."""
        return self.count >= _PATIENCE and self.count > runs

    def draws(self, gpus: Iterable[torch.device] | None) -> None:
        """Save the random state before a run, of these GPUs too; None: the run draws nothing."""
        self._random = None if gpus is None else TorchRandomState(gpus)

    def begin(self, places: tuple[int, ...], values: Sequence[Any]) -> None:
        """Copy the values in these places; below autograd."""
        if places != self._copies.places:
            self._copies = Copies(places)
        self._copies.take(values)

    def put_back(self, values: Sequence[Any]) -> None:
        """Restore the values and the random state from before the run."""
        if self._random is not None:
            self._random.put_back()
        with below_autograd():
            self._copies.put_back(values)


def failure(runs: Lowered, error: Exception, *, wrote: bool) -> StepFailed:
    """The error of a run whose op raised ``error``. ``wrote``: state was written for good."""
    node = runs.node_at(error)
    state = "Some of the state was already updated." if wrote else "Nothing was updated."
    what, said = getattr(node, "target", "the program"), str(error).rstrip(".")
    failed = StepFailed(
        f"{what} failed while the step ran: {said}. {state}",
        where=runs.line_of(node),
        fix=" ".join(filter(None, (GraphBroken.fix if wrote else "", of_framework()))),
    )
    failed.undone = not wrote
    return failed
