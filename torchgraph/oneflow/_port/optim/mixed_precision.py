"""OneFlow's grad scaler and autocast."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable
from typing import Any, TypeVar

import torch

from ....calls.live_step import building
from ....errors import InvalidOption
from ....options.checking import shown

Function = TypeVar("Function", bound=Callable[..., Any])


class GradScaler(torch.amp.GradScaler):
    """A dynamic loss scale, for `Graph.set_grad_scaler`. OneFlow: ``oneflow.amp.GradScaler``.

    The scale is divided by ``growth_factor`` after a step with an infinity, and multiplied by it
    after ``growth_interval`` steps without one. OneFlow's scale never falls below 1; this one does.
    In eager it is torch's scaler; OneFlow's has no method there.

    Args:
        init_scale: the first scale.
        growth_factor, growth_interval: see above.
        backoff_factor: ``1 / growth_factor``; OneFlow takes nothing else.

    Raises:
        InvalidOption: ``backoff_factor`` is something else.
    """

    def __init__(
        self,
        init_scale: float = 2.0**16,
        growth_factor: float = 2.0,
        backoff_factor: float = 0.5,
        growth_interval: int = 2000,
    ) -> None:
        if backoff_factor != 1.0 / growth_factor:
            raise InvalidOption(
                "Only support 1.0/growth_factor as backoff_factor at the moment, "
                f"got {shown(backoff_factor)}"
            )
        device = "cuda" if torch.cuda.is_available() else "cpu"
        super().__init__(device, init_scale, growth_factor, backoff_factor, growth_interval)


class autocast(torch.autocast):
    """Half precision in a region of eager code on CUDA. OneFlow: ``oneflow.autocast``.

    On the CPU, and inside of `build`, OneFlow has none: it warns, and nothing is cast. On CUDA the
    ops that are cast are torch's; OneFlow's lists differ in norms and elementwise ops.

    Args:
        device_type: ``"cuda"`` or ``"cpu"``.
        dtype: float16 by default.
        enabled, cache_enabled: as in torch.

    Raises:
        InvalidOption: another device.
    """

    def __init__(
        self,
        device_type: str,
        dtype: torch.dtype | None = None,
        enabled: bool = True,
        cache_enabled: bool | None = None,
    ) -> None:
        if device_type not in ("cuda", "cpu"):
            raise InvalidOption("User specified autocast device_type must be 'cuda' or 'cpu'")
        if device_type == "cpu":
            warnings.warn(
                "CPU autocast is not supported currently. Disabling autocast.", stacklevel=2
            )
            enabled = False
        if building():
            warnings.warn(
                "Autocast is not supported for lazy mode. Disabling autocast.", stacklevel=2
            )
            enabled = False
        super().__init__(device_type, dtype, enabled, cache_enabled)


def autocast_decorator(autocast_instance: torch.autocast, func: Function) -> Function:
    """``func`` in that region. OneFlow: ``oneflow.amp.autocast_decorator``."""

    @functools.wraps(func)
    def inside(*args: Any, **kwargs: Any) -> Any:
        with autocast_instance:
            return func(*args, **kwargs)

    return inside  # type: ignore[return-value]


def get_autocast_gpu_dtype() -> torch.dtype:
    """The dtype of `autocast` on CUDA."""
    return torch.get_autocast_dtype("cuda")


def set_autocast_gpu_dtype(dtype: torch.dtype) -> None:
    """Let `autocast` on CUDA have this dtype."""
    torch.set_autocast_dtype("cuda", dtype)


def get_autocast_cpu_dtype() -> torch.dtype:
    """The dtype that `autocast` on the CPU would have."""
    return torch.get_autocast_dtype("cpu")


def set_autocast_cpu_dtype(dtype: torch.dtype) -> None:
    """Let `autocast` on the CPU have this dtype, if it were enabled."""
    torch.set_autocast_dtype("cpu", dtype)
