"""The half-precision copies of weights that autocast keeps until its outermost block ends.

Eager computes with them although the weights have been updated since: a loop inside of one block
trains nothing. A program casts in each run. So that all calls of a step are alike, each begins and
ends without such copies, as if it were in a block of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch.utils.weak import TensorWeakRef

from . import dispatch_modes, function_modes


@contextmanager
def casting_anew() -> Iterator[None]:
    """Compute in the block with no copy from before, and leave none; also in one that is off."""
    torch.clear_autocast_cache()
    try:
        yield
    finally:
        torch.clear_autocast_cache()


class KeptCasts:
    """Clears the copies, and counts the blocks of autocast that calls were in.

    Nobody can ask autocast for what it keeps: a parameter of our own is cast when a call has ended,
    and while that copy lives the block is still open.
    """

    def __init__(self) -> None:
        self._probes: dict[str, torch.nn.Parameter] = {}
        self._copy: Callable[[], object] = _nothing
        """A weak reference to the copy of the probe."""
        self._block = 0

    def begin(self) -> int:
        """Clear the copies from before a call; the number of the block that it is in."""
        if self._copy() is None:
            self._block += 1
        torch.clear_autocast_cache()
        return self._block

    def end(self, *, probes: bool) -> None:
        """Clear the copies of a call. ``probes``: the next one asks whether the block has ended."""
        self._copy = _nothing
        torch.clear_autocast_cache()
        seen = dispatch_modes() or function_modes()  # the product of the probe would be
        if probes and not seen and torch.is_autocast_cache_enabled():
            self._probe("cpu" if torch.is_autocast_enabled("cpu") else "cuda")

    def _probe(self, device: str) -> None:
        if not torch.is_autocast_enabled(device):
            return
        if device not in self._probes:
            self._probes[device] = torch.nn.Parameter(torch.ones(1, 1, device=device))
        probe = self._probes[device]
        with torch.enable_grad():
            history = torch.mm(probe, probe).grad_fn
        if history is not None:  # there is none under inference_mode
            self._copy = TensorWeakRef(history._saved_self)  # type: ignore[attr-defined]


def _nothing() -> None:
    return None


kept_casts = KeptCasts()
"""Autocast keeps copies for the whole process."""
