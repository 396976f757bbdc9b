"""The call that a program was made of: numbered tensors in place of real ones."""

from __future__ import annotations

from typing import Any

from ..errors import CheckpointDamaged
from ..structure import Contents, Returned


def example(args: Any, kwargs: Any, made: object, tensors: int) -> tuple[Contents, Returned]:
    """The arguments of a call and what it returns, of which the tensors say their places.

    Raises:
        CheckpointDamaged: they are not in these places.
    """
    contents = Contents(tuple(args), kwargs)
    if [int(tensor) for tensor in contents.tensors] != list(range(tensors)):
        raise CheckpointDamaged("a program takes other tensors than its example.")
    returned = Returned(made, contents)
    if [int(tensor) for tensor in returned.forget()] != list(range(returned.count)):
        raise CheckpointDamaged("a program returns other tensors than its example.")
    return contents, returned
