"""What a recorded call leaves: its results for the user, and its tape with all that names it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn

from ..capture.inputs import hollow, map_leaves
from ..capture.step import Leaf, Step
from ..program import CallRecord, OutputSpec, Role
from .tape import Tape
from .watch import Change, is_own

Read = tuple[str, Any, str, Any]


@dataclass(frozen=True)
class OutputSlot:
    """The place of the n-th returned tensor in the structure that `build` returned."""

    position: int


@dataclass(eq=False)
class Outcome:
    """Of one call whose step ran as eager runs it."""

    step: Step
    returned: Any
    """With the real tensors in it."""
    out_tree: Any
    """What `build` returned, each tensor replaced by an `OutputSlot`."""
    tape: Tape
    leaves: list[tuple[Leaf, int]]
    """The inputs with their values on the tape: the step's, the call's, free ones."""
    outputs: list[tuple[OutputSpec, Any]]
    """With a `Ref` or a constant each."""
    written: dict[str, set[int]]
    """Under a GradScaler, which optimizers' steps write a tensor."""
    calls: list[CallRecord]
    reads: list[Read]
    """(path, object, attribute, value) of what the step read."""
    changes: list[Change]
    outside: list[nn.Module]
    loss_path: str | None
    loss: torch.Tensor | None
    after: Step
    """As the step left it: a buffer that it rebound is another tensor now."""
    relaid: str = ""
    """A state or argument with another dtype, shape or strides now: ``self.linear.to(...)`` or
    ``x.t_()`` in `build`."""
    moved: str = ""
    """An attribute of an optimizer that its step has moved: Python may go by it."""
    skipped: frozenset[int] = frozenset()
    """Optimizers that a GradScaler kept from stepping: then the tape is not that of a step."""
    rests: bool = False
    """True for a step of a training graph without a ``backward()``."""
    eager: str = ""
    """Why no program can be made of it: then the tape is not that of a step, either."""

    @property
    def serves(self) -> str:
        """The arguments of the call in words, as `Signature.describe_inputs` has them."""
        found = [
            f"{leaf.fqn}: {str(leaf.value.dtype).removeprefix('torch.')}{list(leaf.value.shape)}"
            for leaf, _ in self.leaves
            if leaf.role is Role.INPUT
        ]
        return ", ".join(found) or "no tensors"

    def guarded_reads(self) -> list[Read]:
        """Those that later calls must find again: not an object that the step itself replaces."""
        own = {(change.path, change.name) for change in self.changes}
        return [r for r in self.reads if is_own(r[3]) or (r[0], r[2]) not in own]

    def forgotten(self) -> Outcome:
        """Without what it returned, and without the batch: keeping it keeps neither alive."""
        leaves = [
            (replace(leaf, root=[], value=hollow(leaf.value)), index)
            if leaf.role is Role.INPUT
            else (leaf, index)
            for leaf, index in self.leaves
        ]
        return replace(self, returned=None, loss=None, leaves=leaves)

    @property
    def settled(self) -> bool:
        """True when the step left no more states than it found: the next one may be the same."""
        return self.step.names() == self.after.names() and not self.relaid

    @property
    def stepped(self) -> bool:
        """True when every optimizer stepped."""
        return not self.skipped and not self.rests


def loss_of(
    losses: Sequence[torch.Tensor], returned: Any, names: list[str], values: list[torch.Tensor]
) -> tuple[str | None, torch.Tensor | None]:
    """The name and value of the first returned tensor that ``backward()`` was called on."""
    known = set(map(id, losses))
    found: list[torch.Tensor] = []
    map_leaves(returned, torch.Tensor, found.append)
    for name, tensor, value in zip(names, found, values, strict=True):
        if id(tensor) in known:
            return name, value
    return None, None


def rebuilt(tree: Any, tensors: Sequence[torch.Tensor]) -> Any:
    """What `build` returned, with these tensors in it."""
    if type(tree) is OutputSlot:
        return tensors[tree.position]
    return map_leaves(tree, OutputSlot, lambda slot: tensors[slot.position])
