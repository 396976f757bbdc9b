"""Mixed precision: marks for the colouring, a constant loss scale, which scalers a Graph takes."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from . import library
from ._torch.optimizers import SCALER_METHODS, forget_scale, has_scale, init_scaler
from .errors import InvalidOption, NotSupported
from .options.checking import Closed, checked, is_number, shown

__all__ = ["StaticGradScaler", "black", "white"]


@checked
def white(x: torch.Tensor) -> torch.Tensor:
    """``x`` as a tensor of its own, which is in half precision under OneFlow's colouring.

    With ``config.enable_amp(policy="oneflow")`` the mark counts as a matrix product does: ``x`` is
    cast to half precision here, and so are gray ops (norms, softmax, sums, arithmetic) between the
    mark and another white op. The gradient of ``x`` carries the same mark. Everywhere else, in
    eager too, this is ``x.clone()``, which a Graph removes. OneFlow: ``amp_white_identity``.

    Args:
        x: a tensor of any shape; float32, for the mark to mean something.
    """
    marked: torch.Tensor = library.amp_white(x)
    return marked


@checked
def black(x: torch.Tensor) -> torch.Tensor:
    """``x`` as a tensor of its own, which is in float32 under OneFlow's colouring.

    With ``config.enable_amp(policy="oneflow")`` ``x`` is float32 here, and so are the gray and
    clear ops that read it, up to the next white op; the gradient of ``x`` carries the same mark.
    ``cross_entropy(black(logits), y)`` computes a loss in float32 that would be in half precision
    otherwise. Everywhere else, in eager too, this is ``x.clone()``, which a Graph removes.
    OneFlow: ``amp_black_identity``.

    Args:
        x: a tensor of any shape and dtype.
    """
    marked: torch.Tensor = library.amp_black(x)
    return marked


class StaticGradScaler(Closed):
    """A constant loss scale: no look for infinities, no skipped steps.

    For `torchgraph.Graph.set_grad_scaler`. Gradients start from ``scale_factor`` and are multiplied
    by its inverse before they are used. OneFlow: ``oneflow.amp.StaticGradScaler``.

    Args:
        scale_factor: a number above 0. It may be set anew at any time: the next call uses it.

    Raises:
        InvalidOption: it is not above 0, or infinite.
    """

    @checked
    def __init__(self, scale_factor: float) -> None:
        self.scale_factor = scale_factor

    @property
    def _called(self) -> str:
        return "scaler"

    @property
    def scale_factor(self) -> float:
        """The scale."""
        return self._scale_factor

    @scale_factor.setter
    def scale_factor(self, value: float) -> None:
        if not is_number(value) or not 0.0 < value < math.inf:
            raise InvalidOption(
                f"StaticGradScaler's scale_factor must > 0.0 and finite, not {shown(value)}."
            )
        self._scale_factor = float(value)

    @checked
    def state_dict(self) -> dict[str, Any]:
        """``{"scale": scale_factor}``."""
        return {"scale": self.scale_factor}

    @checked
    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Take over the scale of a `state_dict`."""
        if "scale" not in state_dict:
            found = shown(dict(state_dict))
            raise InvalidOption(f"The state of a StaticGradScaler has 'scale', and not {found}.")
        self.scale_factor = state_dict["scale"]


Scaler = torch.amp.GradScaler | StaticGradScaler


def kind(scaler: Any) -> str:
    """``"dynamic"``, ``"static"``, or ``""`` where nothing is scaled.

    Raises:
        InvalidOption: it is no scaler.
        NotSupported: it is a GradScaler that steps in a way of its own.
    """
    if isinstance(scaler, StaticGradScaler):
        return "static"
    if scaler is None:
        return ""
    if not isinstance(scaler, torch.amp.GradScaler):
        raise InvalidOption(
            f"set_grad_scaler takes a torch.amp.GradScaler, a torchgraph.amp.StaticGradScaler or "
            f"None, not {shown(scaler)}."
        )
    for name in SCALER_METHODS:
        plain = getattr(torch.amp.GradScaler, name, None)
        if getattr(type(scaler), name, None) is not plain:
            raise NotSupported(
                f"{type(scaler).__name__} has its own {name}(), which a Graph would not call.",
                fix="give a plain torch.amp.GradScaler.",
            )
    return "dynamic" if scaler.is_enabled() else ""


@contextmanager
def started(scaler: Scaler | None, optimizers: Sequence[torch.optim.Optimizer]) -> Iterator[None]:
    """In the block, an active scaler has a scale: one that has made none yet makes it.

    When the block raises, a scaler that had none has none again.

    Raises:
        InvalidOption: there is no optimizer.
    """
    if scaler is None:
        yield
        return
    if not optimizers:
        raise InvalidOption(
            "A grad scaler is set, but the Graph has no optimizer whose gradients it could scale.",
            fix="call add_optimizer(optimizer), or leave set_grad_scaler out.",
        )
    fresh = isinstance(scaler, torch.amp.GradScaler) and not has_scale(scaler)
    if isinstance(scaler, torch.amp.GradScaler) and fresh:
        init_scaler(scaler, optimizers[0].param_groups[0]["params"][0].device)
    try:
        yield
    except BaseException:
        if isinstance(scaler, torch.amp.GradScaler) and fresh:
            forget_scale(scaler)
        raise
