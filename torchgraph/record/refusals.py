"""What a recording refuses on the user's behalf, and torch's own refusals in the user's terms."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any
from unittest import mock

import torch
from torch.optim.optimizer import register_optimizer_step_pre_hook

from ..errors import (
    CaptureError,
    DeviceMismatch,
    OptimizerStepInBuild,
    ScalerInBuild,
    SourceLine,
    user_frames,
)
from ..program import Provenance
from .trail import Trail


@contextlib.contextmanager
def no_steps(trail: Trail) -> Iterator[None]:
    """Refuse ``optimizer.step()`` in `build`: the Graph would step a second time."""

    def refuse(optimizer: torch.optim.Optimizer, *_: Any) -> None:
        raise OptimizerStepInBuild(
            f"build calls {type(optimizer).__name__}.step(), which is the Graph's to do.",
            where=trail.line,
        )

    handle = register_optimizer_step_pre_hook(refuse)
    try:
        yield
    finally:
        handle.remove()


@contextlib.contextmanager
def scaler_calls(
    trail: Trail, unscale: Callable[[torch.amp.GradScaler, torch.optim.Optimizer], None]
) -> Iterator[None]:
    """In `build`, ``scaler.unscale_(optimizer)`` is ``unscale``; the rest is the Graph's to do."""

    def calls(name: str, own: Callable[..., Any] | None) -> Callable[..., Any]:
        original = getattr(torch.amp.GradScaler, name)

        def method(scaler: torch.amp.GradScaler, *args: Any, **kwargs: Any) -> Any:
            if not scaler.is_enabled():
                return original(scaler, *args, **kwargs)
            if own is not None:
                return own(scaler, *args, **kwargs)
            raise ScalerInBuild(
                f"build calls scaler.{name}(), which is the Graph's to do.", where=trail.line
            )

        return method

    methods: dict[str, Any] = {name: calls(name, None) for name in ("scale", "step", "update")}
    methods["unscale_"] = calls("unscale_", unscale)
    with mock.patch.multiple(torch.amp.GradScaler, **methods):
        yield


def higher_order(name: str, line: SourceLine | None) -> CaptureError:
    """The refusal of an op that takes functions."""
    return CaptureError(
        f"build calls torch's {name}, which a Graph cannot hold yet.",
        where=line,
        fix="compute both sides and choose with torch.where, or branch outside of build.",
    )


def sparse(at: Provenance, layout: torch.layout) -> str:
    """Why no program can be made of a step that reads a sparse tensor from outside."""
    return (
        f"{_place(at)} reads a tensor of layout {layout}, and a program holds dense tensors only: "
        "keep it dense, or its indices and values as tensors"
    )


def _place(at: Provenance) -> str:
    what = repr(at.module) if at.module else "build"
    return f"{what} (at {at.line})" if at.line else what


def nested(at: Provenance) -> str:
    """Why no program can be made of a step with a nested tensor."""
    return (
        f"{_place(at)} makes or reads a nested tensor, which no program holds; "
        "nn.TransformerEncoder makes none with enable_nested_tensor=False"
    )


def no_cond(trail: Trail) -> AbstractContextManager[Any]:
    """Refuse ``torch.cond`` before it reaches the compiler, which would remember the attempt."""

    def refuse(*_: Any, **__: Any) -> None:
        raise higher_order("cond", trail.line)

    return mock.patch.object(torch, "cond", refuse)


@contextlib.contextmanager
def readable_errors() -> Iterator[None]:
    """Turn torch's own refusals into errors that name the user's line."""
    try:
        yield
    except RuntimeError as error:
        if any(words in str(error) for words in _DEVICES):
            raise DeviceMismatch(str(error).splitlines()[0], where=_line_of(error)) from error
        raise


_DEVICES = ("two different devices", "same device", "not on the expected device")
"""What torch says where devices do not fit."""


def _line_of(error: BaseException) -> Any:
    """The innermost user line of a traceback."""
    found = None
    trace = error.__traceback__
    while trace is not None:
        frames = user_frames(1, trace.tb_frame)
        if frames and frames[0].function == trace.tb_frame.f_code.co_name:
            found = frames[0]._replace(lineno=trace.tb_lineno)
        trace = trace.tb_next
    return found
