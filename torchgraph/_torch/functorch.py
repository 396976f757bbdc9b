"""Names of torch's functorch. Importing this file does not load it; calls do."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence

import torch

_KNAPSACK = "torch._functorch._activation_checkpointing.knapsack"


def knapsack(sizes: Sequence[float], values: Sequence[float], room: float) -> list[int]:
    """The items worth most that fit: their places. ``sizes`` and ``room`` are shares of 1."""
    _, chosen, _ = importlib.import_module(_KNAPSACK).dp_knapsack(list(sizes), list(values), room)
    return list(chosen)


is_wrapped: Callable[[torch.Tensor], bool] = torch._C._functorch.is_functorch_wrapped_tensor
"""True in a transform of torch.func for what it follows: a tensor without own memory."""
