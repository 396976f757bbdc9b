"""Settings of OneFlow's collectives: how they are grouped on a GPU. They change no number.

Here NCCL is used by `torch.distributed`, which groups for itself, so that there is nothing to set.
"""

from __future__ import annotations


def without_effect(*values: bool | float) -> None:
    """Takes a number or a switch, and does nothing."""
