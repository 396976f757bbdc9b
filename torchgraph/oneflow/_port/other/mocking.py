"""``mock_torch``: in OneFlow ``import torch`` gives oneflow; here torch stays torch."""

from __future__ import annotations

from types import TracebackType


class _Mock:
    """Has no effect: a model of torch runs on torch. A context manager, too.

    Args:
        lazy: of later versions of OneFlow; no effect.
        verbose: the same.
    """

    def __init__(self, lazy: bool = False, verbose: bool = False) -> None:
        self.lazy, self.verbose = lazy, verbose

    def __enter__(self) -> None:
        """Nothing."""

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Nothing."""


class enable(_Mock):
    """OneFlow: ``mock_torch.enable``."""


class disable(_Mock):
    """OneFlow: ``mock_torch.disable``."""
