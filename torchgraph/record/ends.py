"""What a step leaves elsewhere than it found it: rebound buffers, ``p.data = q``, rotated slots."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from ..capture.step import Step
from .recorder import Recorder


def ends(step: Step, recorder: Recorder, index: Sequence[int]) -> None:
    """Write what lies at the end where each state was found into the state.

    All new values are read before the first is written. ``index``: the leaves' values on the tape.
    """
    moved: list[tuple[int, torch.Tensor]] = []
    owned = set(index)
    for position, leaf in step.tensors():
        try:
            now = leaf.read()
        except (KeyError, IndexError, TypeError):
            continue  # gone: the next recording sees another structure
        if not isinstance(now, torch.Tensor) or not _alike(now, leaf.value):
            continue
        known = recorder.index(now.detach())
        if known != index[position]:
            value = now.detach()
            moved.append((index[position], value.clone() if known in owned else value))
    for place, value in moved:
        recorder.write(place, value)


def _alike(now: torch.Tensor, before: torch.Tensor) -> bool:
    """A state keeps its shape, dtype and device; another one is another structure."""
    return (now.shape, now.dtype, now.device) == (before.shape, before.dtype, before.device)
