"""``oneflow.autograd``, where torch's has another form."""

from __future__ import annotations

from typing import Any

import torch


class Function(torch.autograd.Function):
    """A function with a backward of its own. OneFlow: ``autograd.Function``.

    ``Cube.apply(x)`` as in torch; ``Cube()(x)`` is the same.
    """

    def __init__(self) -> None:
        """Nothing: torch's warns that it has no meaning."""

    def __call__(self, *inputs: Any) -> Any:
        """What ``apply`` gives."""
        return self.apply(*inputs)  # type: ignore[no-untyped-call]  # torch's


def inference_mode(mode: bool = True) -> torch.no_grad | torch.enable_grad:
    """Without a history, or with one; as a context or a decorator. OneFlow: the same.

    As in OneFlow this is ``no_grad``: a tensor that is made in it may be used for training later.
    """
    return torch.no_grad() if mode else torch.enable_grad()
