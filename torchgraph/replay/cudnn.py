"""How cuDNN chooses the algorithm of a convolution, while a program runs."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

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


def chosen(heuristic: bool | None) -> AbstractContextManager[None]:
    """``torch.backends.cudnn.benchmark`` off (True) or on (False), and back at the end."""
    return _AS_IT_IS if heuristic is None else _benchmark(not heuristic)


_AS_IT_IS: AbstractContextManager[None] = nullcontext()


@contextmanager
def _benchmark(on: bool) -> Iterator[None]:
    before = cudnn.benchmark
    cudnn.benchmark = on
    try:
        yield
    finally:
        cudnn.benchmark = before
