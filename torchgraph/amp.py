"""Loss scales: OneFlow's StaticGradScaler, and which scalers a Graph can take."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from ._torch import init_scaler
from .errors import InvalidOption, NotSupported

__all__ = ["StaticGradScaler"]

_METHODS = ("scale", "unscale_", "step", "update", "_unscale_grads_", "_maybe_opt_step")
"""Those that say what a step under a GradScaler is."""


class StaticGradScaler:
    """A constant loss scale: no look for infinities, no skipped steps.

    For `torchgraph.Graph.set_grad_scaler`. Gradients start from ``scale_factor`` and are multiplied
    by its inverse before they are used. OneFlow: ``oneflow.amp.StaticGradScaler``.

    Args:
        scale_factor: a number above 0. It may be set anew at any time: the next call uses it.

    Raises:
        ValueError: it is not above 0.
    """

    def __init__(self, scale_factor: float) -> None:
        self.scale_factor = scale_factor

    @property
    def scale_factor(self) -> float:
        """The scale."""
        return self._scale_factor

    @scale_factor.setter
    def scale_factor(self, value: float) -> None:
        if not value > 0.0:
            raise ValueError("StaticGradScaler's scale_factor must > 0.0")
        self._scale_factor = float(value)

    def state_dict(self) -> dict[str, Any]:
        """``{"scale": scale_factor}``."""
        return {"scale": self.scale_factor}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Take over the scale of a `state_dict`."""
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
            f"None, not {scaler!r}."
        )
    for name in _METHODS:
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
    fresh = isinstance(scaler, torch.amp.GradScaler) and vars(scaler)["_scale"] is None
    if isinstance(scaler, torch.amp.GradScaler) and fresh:
        init_scaler(scaler, optimizers[0].param_groups[0]["params"][0].device)
    try:
        yield
    except BaseException:
        if fresh:
            vars(scaler).update(_scale=None, _growth_tracker=None)
        raise
