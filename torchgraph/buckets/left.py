"""What a padded step leaves in Python's objects: nobody cuts it, so it must tell no padded row."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ..record.side_effects.side_effects import SideEffects
from ..record.side_effects.trees import (
    AliasSlot,
    ArgumentSlot,
    ContentsTree,
    OutputSlot,
    OutputTree,
)
from .flow import Cut, OtherProgram


def check_left(real: SideEffects, padded: SideEffects, cuts: Sequence[Cut]) -> None:
    """Check what two steps leave under names: of the batch as it is, and padded.

    Args:
        cuts: how the tensors are cut that the padded step returns.

    Raises:
        OtherProgram: it leaves another value, or a tensor with padded rows.
    """
    if _done(real) != _done(padded):
        raise OtherProgram("it leaves a value in an object of Python's that follows the batch")
    for slot in _slots(_done(padded)):
        if not isinstance(slot, OutputSlot) or cuts[slot.position].padded:
            raise OtherProgram("it leaves a tensor in an object of Python's that may have padding")


def _done(host: SideEffects) -> object:
    assigned = [(one.place.key, one.tree) for one in host.assigned]
    return assigned, [(one.call, one.args, one.kwargs) for one in host.actions]


def _slots(tree: object) -> Iterator[object]:
    if isinstance(tree, (OutputSlot, ArgumentSlot, AliasSlot)):
        yield tree
    elif isinstance(tree, (OutputTree, ContentsTree)):
        yield from tree.slots
    elif isinstance(tree, (list, tuple)):
        for item in tree:
            yield from _slots(item)
    elif isinstance(tree, dict):
        for item in tree.values():
            yield from _slots(item)
