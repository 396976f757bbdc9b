"""Settings by which cuDNN chooses the algorithm of a convolution while a program runs."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import contextmanager

from torch.backends import cudnn

from ..errors import BackendWarning, warn


def applicable(heuristic: bool | None, devices: Collection[str]) -> bool | None:
    """``heuristic`` for a program on a GPU; None, with a warning, for one that is on none."""
    if heuristic is not None and "cuda" not in devices:
        warn(
            "enable_cudnn_conv_heuristic_search_algo has no effect: nothing of the program is on a "
            "GPU.",
            BackendWarning,
        )
        return None
    return heuristic


@contextmanager
def chosen(heuristic: bool) -> Iterator[None]:
    """``torch.backends.cudnn.benchmark`` off (True) or on (False), and back at the end."""
    before = cudnn.benchmark
    cudnn.benchmark = not heuristic
    try:
        yield
    finally:
        cudnn.benchmark = before
