"""Global state around a call: torch's own switches, modes and hooks, and its compiler."""

from __future__ import annotations

import inspect
import itertools
import types
from collections.abc import Callable
from typing import Any

import torch
from torch._guards import CompileId
from torch.backends import mha, opt_einsum
from torch.nn.utils import parametrize
from torch.utils._device import DeviceContext

from . import any_autocast, cuda as _cuda, dispatch_modes, function_modes, global_hooks

_saved_tensors_hooks = getattr(
    torch._C._autograd, "_top_saved_tensors_default_hooks", lambda ignore_is_tracing: None
)
_switches: list[Callable[[], object]] = [
    torch.is_grad_enabled,
    torch.is_inference_mode_enabled,
    torch.get_default_dtype,
    torch._C._get_deterministic_algorithms,
    torch._C._get_mkldnn_enabled,
    *(
        getattr(torch._C, name)
        for name in (
            "_get_flash_sdp_enabled",
            "_get_mem_efficient_sdp_enabled",
            "_get_math_sdp_enabled",
            "_get_math_sdp_allow_fp16_bf16_reduction",
            "_get_overrideable_sdp_enabled",
        )
        if hasattr(torch._C, name)
    ),
]
"""Switches that affect all ops, or that choose the kernel of scaled_dot_product_attention."""
_einsum: dict[str, object] = vars(getattr(opt_einsum, "m", opt_einsum))


ANOMALY = "torch.autograd's anomaly detection is on"
"""Why a step runs in eager."""


def ambient() -> tuple[object, ...]:
    """The switches of torch that affect a recording, and the reason why none may be made.

    Modes, autocast, defaults, hooks, choices of kernels. Where a GPU is in use, also those that
    choose its kernels.
    """
    hooks = _saved_tensors_hooks(False)
    switches: tuple[object, ...] = (
        *[getter() for getter in _switches],
        function_modes() and torch.get_default_device(),
        any(global_hooks) and tuple(key for hooks in global_hooks for key in hooks),
        hooks and tuple(map(_recipe, hooks)),
        unfollowed(),
        mha._is_fastpath_enabled,
        _einsum.get("enabled"),
        _einsum.get("strategy"),
    )
    if torch.cuda.is_initialized():
        switches += _cuda.switches()
    if not any_autocast():
        return switches
    cpu, cuda = map(torch.is_autocast_enabled, ("cpu", "cuda"))
    return (
        *switches,
        cpu and torch.get_autocast_dtype("cpu"),
        cuda and torch.get_autocast_dtype("cuda"),
        torch.is_autocast_cache_enabled(),
    )


def unfollowed() -> str:
    """The state around the call that no program can follow, in words; empty for none."""
    if dispatch_modes() or function_modes():
        found = _mode()
        if found:
            return f"the mode {found} is active around the call, and no program tells it of its ops"
    if torch.is_anomaly_enabled():
        return ANOMALY
    if parametrize._cache_enabled:
        return "torch.nn.utils.parametrize.cached() keeps what earlier calls have computed"
    return ""


def _mode() -> str:
    """The innermost mode but for `torch.device`, which chooses a default alone."""
    if dispatch_modes():
        return type(torch._C._get_dispatch_stack_at(dispatch_modes() - 1)).__name__
    for level in reversed(range(function_modes())):
        mode = torch._C._get_function_stack_at(level)
        if not isinstance(mode, DeviceContext):
            return type(mode).__name__
    return ""


class _Same:
    """Equal where it is the same object."""

    def __init__(self, value: object) -> None:
        self._value = value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Same) and other._value is self._value

    def __hash__(self) -> int:
        return id(self._value)


def _recipe(hook: object) -> object:
    """A key that is equal for closures of the same code over the same values."""
    if not isinstance(hook, types.FunctionType):
        return hook if isinstance(hook, types.MethodType) else _Same(hook)
    cells = [cell.cell_contents for cell in hook.__closure__ or ()]
    return (hook.__code__, *map(_value, (*cells, *(hook.__defaults__ or ()))))


def _value(value: object) -> object:
    plain = value is None or isinstance(value, (bool, int, float, str, torch.dtype, torch.device))
    if plain:
        return (type(value), repr(value))
    return _recipe(value) if isinstance(value, types.FunctionType) else _Same(value)


_logging = torch._logging._internal
_OWN_FRAMES = 10_000
"""The first frame id of torchgraph's log entries: Dynamo counts its frames from 0."""
_traces = itertools.count(_OWN_FRAMES)


class TraceLog:
    """Entries in `TORCH_TRACE` for one compilation, which tlparse lists as a frame's own.

    Nothing is done, and nothing is rendered, where torch logs no trace.
    """

    def __init__(self) -> None:
        # Without TORCH_TRACE torch has a handler that takes one record, to find nowhere to write.
        handlers = _logging.trace_log.handlers
        self.is_on = any(getattr(one, "root_dir", None) is not None for one in handlers)
        self._options: dict[str, Any] = {"expect_trace_id": False}
        if self.is_on and "compile_id" in inspect.signature(_logging.trace_structured).parameters:
            number = CompileId(frame_id=next(_traces), frame_compile_id=0)
            self._options["compile_id"] = number

    def artifact(self, name: str, text: Callable[[], str]) -> None:
        """Log a text under a name."""
        if self.is_on:
            about = {"name": name, "encoding": "string"}
            log: Any = _logging.trace_structured
            log("artifact", lambda: about, payload_fn=text, **self._options)


is_profiling: Callable[[], bool] = torch._C._autograd._profiler_enabled
"""True while `torch.profiler`, or an older profiler of torch's, records in this thread."""


def checks_arguments() -> bool:
    """True where torch's distributions check their arguments by default."""
    return bool(torch.distributions.Distribution._validate_args)
