"""The process-wide settings that guards cover, with their getters and setters."""

from __future__ import annotations

import decimal
import functools
import locale
import os
import sys
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any, NamedTuple

import torch
from torch import backends

from ..._torch.surroundings import checks_arguments
from ...guards.aspects import own
from ...objects import is_a


class Setting(NamedTuple):
    """A process-wide setting with its getter."""

    words: str
    """The call by which users read it."""
    ask: Callable[[], object]
    names: tuple[str, ...]
    """Paths of the functions of torch that read or set it."""


def _autocast(of: Callable[[str], object]) -> Callable[[], object]:
    return lambda: (of("cpu"), of("cuda"))


def _precision() -> str:
    try:
        return torch.get_float32_matmul_precision()
    except RuntimeError as error:  # it was set by its older and its newer name
        return str(error)


def _rows() -> Iterator[tuple[Callable[[], object], str]]:
    """(getter, the paths of functions in torch), the getter first."""
    mode = torch.get_deterministic_debug_mode
    warns = torch.is_deterministic_algorithms_warn_only_enabled
    yield from (
        (torch.get_num_threads, "get_num_threads set_num_threads"),
        (torch.get_num_interop_threads, "get_num_interop_threads"),
        (torch.is_grad_enabled, "is_grad_enabled set_grad_enabled"),
        (torch.is_inference_mode_enabled, "is_inference_mode_enabled"),
        (torch.get_default_dtype, "get_default_dtype set_default_dtype set_default_tensor_type"),
        (torch.are_deterministic_algorithms_enabled, "are_deterministic_algorithms_enabled"),
        (mode, "get_deterministic_debug_mode set_deterministic_debug_mode"),
        (warns, "is_deterministic_algorithms_warn_only_enabled use_deterministic_algorithms"),
        (_precision, "get_float32_matmul_precision set_float32_matmul_precision"),
        (torch.is_anomaly_enabled, "is_anomaly_enabled"),
        (torch.is_anomaly_check_nan_enabled, "is_anomaly_check_nan_enabled"),
        (torch.is_warn_always_enabled, "is_warn_always_enabled set_warn_always"),
        (torch.is_autocast_cache_enabled, "is_autocast_cache_enabled set_autocast_cache_enabled"),
        (
            torch.default_generator.initial_seed,
            "initial_seed random.initial_seed default_generator",
        ),
        (torch.get_default_device, "get_default_device set_default_device"),
        (
            _autocast(torch.is_autocast_enabled),
            "is_autocast_enabled is_autocast_cpu_enabled set_autocast_enabled",
        ),
        (
            _autocast(torch.get_autocast_dtype),
            "get_autocast_dtype get_autocast_gpu_dtype set_autocast_dtype "
            "autocast cpu.amp.autocast cuda.amp.autocast",  # without a dtype of its own
        ),
    )
    for name in ("flash_sdp", "mem_efficient_sdp", "math_sdp", "cudnn_sdp"):
        if ask := getattr(backends.cuda, f"{name}_enabled", None):  # some versions lack one
            yield ask, f"backends.cuda.{name}_enabled backends.cuda.enable_{name}"
    for name in ("is_initialized", "get_rank", "get_world_size"):
        yield functools.partial(_of_ranks, name), f"distributed.{name}"


def _of_ranks(name: str) -> object:
    """The answer of torch.distributed, False where it is not initialized."""
    distributed: Any = sys.modules.get("torch.distributed")
    there = distributed is not None and distributed.is_available() and distributed.is_initialized()
    return there and getattr(distributed, name)()


@functools.cache
def settings() -> tuple[Setting, ...]:
    """All settings of torch."""
    rows = ((ask, tuple(paths.split())) for ask, paths in _rows())
    return tuple(Setting(f"torch.{names[0]}()", ask, names) for ask, names in rows)


GETCWD = os.getcwd
"""Python's own function, which a patch replaces during a recording."""


def _decimal() -> object:
    context = decimal.getcontext()
    return context.prec, context.rounding, context.Emin, context.Emax, context.capitals


@functools.cache
def functions() -> dict[int, tuple[object, str, Callable[[], object]]]:
    """By identity, functions and classes that read or set a setting, with its getter."""
    rows: list[tuple[object, str, Callable[[], object]]] = [
        (sys.getrecursionlimit, "sys.getrecursionlimit()", sys.getrecursionlimit),
        (sys.getswitchinterval, "sys.getswitchinterval()", sys.getswitchinterval),
        (GETCWD, "the working directory", GETCWD),
        (decimal.getcontext, "decimal.getcontext()", _decimal),
        (decimal.Decimal, "decimal.getcontext()", _decimal),
        (locale.getlocale, "locale.getlocale()", locale.getlocale),
    ]
    numpy: Any = sys.modules.get("numpy")
    for name in ("geterr", "get_printoptions") if numpy is not None else ():
        rows.append((getattr(numpy, name), f"numpy.{name}()", getattr(numpy, name)))
    for one in settings():
        for path in one.names:
            holder: Any = torch
            for part in path.split("."):
                holder = getattr(holder, part, None)
            if holder is not None:
                rows.append((holder, one.words, one.ask))
    return {id(row[0]): row for row in rows}


_OF_MATMUL = (
    "allow_tf32",
    "allow_fp16_reduced_precision_reduction",
    "allow_bf16_reduced_precision_reduction",
    "allow_fp16_accumulation",
    "fp32_precision",
)
"""Computed attributes of ``torch.backends.cuda.matmul``."""


def read_by(holder: Any) -> tuple[str, Callable[[], object]] | None:
    """(name, all settings) of a module or object below ``torch.backends``; None for another.

    Some are properties of the class of the module, which no dict shows. What is of
    ``torch.distributions`` goes by whether that checks arguments.
    """
    cls = holder if is_a(holder, type) else type(holder)
    named = (str(one.__module__) for one in cls.__mro__)
    if holder is torch.distributions or any(n.startswith("torch.distributions") for n in named):
        return "torch.distributions' checks of arguments", checks_arguments
    module = is_a(holder, ModuleType)
    lies_in = str(own(holder).get("__name__") if module else type(holder).__module__)
    if not lies_in.startswith("torch.backends") or is_a(holder, type) or callable(holder):
        return None
    words = lies_in
    if not module:
        held = vars(sys.modules[lies_in]).items()
        words += "." + next((n for n, one in held if one is holder), type(holder).__name__)
    return words, functools.partial(_switches, holder)


def _switches(holder: object) -> object:
    plain = (bool, int, float, str, type(None))
    held = getattr(holder, "__dict__", {})
    own = [k for k, v in held.items() if isinstance(v, plain) and not k.startswith("__")]
    kind: Any = type(holder)
    return tuple((name, _switch(holder, name)) for name in (*_computed(kind), *own))


def _switch(holder: object, name: str) -> object:
    try:
        return getattr(holder, name, None)
    except RuntimeError as error:  # TF32 was set by its older and its newer name
        return str(error)


@functools.cache
def _computed(cls: type[Any]) -> tuple[str, ...]:
    """Names of computed attributes in the class of an object of settings."""
    if cls is ModuleType:
        return ()
    found = [
        name
        for base in cls.__mro__
        for name, value in vars(base).items()
        if not name.startswith("_") and hasattr(type(value), "__set__")
    ]
    more = _OF_MATMUL if hasattr(cls, "__getattr__") else ()
    return tuple(dict.fromkeys((*found, *more)))
