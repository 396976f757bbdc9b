"""The settings of the process that code may ask for: who gives each, and who asks or sets it."""

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


class Setting(NamedTuple):
    """One setting of the process."""

    words: str
    """How users ask for it."""
    ask: Callable[[], object]
    names: tuple[str, ...]
    """Functions of torch that ask for it or set it, by their paths."""


def _autocast(of: Callable[[str], object]) -> Callable[[], object]:
    return lambda: (of("cpu"), of("cuda"))


def _precision() -> str:
    try:
        return torch.get_float32_matmul_precision()
    except RuntimeError as error:  # it was set by its older and its newer name
        return str(error)


def _rows() -> Iterator[Setting]:
    """Rows of this torch: what a version lacks is left out."""
    initial = torch.default_generator.initial_seed
    warns = torch.is_deterministic_algorithms_warn_only_enabled
    mode = torch.get_deterministic_debug_mode
    plain: tuple[tuple[Callable[[], object], str], ...] = (
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
        (initial, "initial_seed random.initial_seed default_generator"),
        (torch.get_default_device, "get_default_device set_default_device"),
    )
    for ask, paths in plain:
        names = tuple(paths.split())
        yield Setting(f"torch.{names[0]}()", ask, names)
    yield Setting(
        "torch.is_autocast_enabled()",
        _autocast(torch.is_autocast_enabled),
        ("is_autocast_enabled", "is_autocast_cpu_enabled", "set_autocast_enabled"),
    )
    yield Setting(
        "torch.get_autocast_dtype()",
        _autocast(torch.get_autocast_dtype),
        (
            *("get_autocast_dtype", "get_autocast_gpu_dtype", "set_autocast_dtype"),
            *("autocast", "cpu.amp.autocast", "cuda.amp.autocast"),  # without a dtype of its own
        ),
    )
    for path in ("flash_sdp", "mem_efficient_sdp", "math_sdp", "cudnn_sdp"):
        if hasattr(backends.cuda, f"{path}_enabled"):
            names = (f"backends.cuda.{path}_enabled", f"backends.cuda.enable_{path}")
            yield Setting(f"torch.{names[0]}()", getattr(backends.cuda, names[0][14:]), names)
    for path in ("is_initialized", "get_rank", "get_world_size"):
        ask = functools.partial(_of_ranks, path)
        yield Setting(f"torch.distributed.{path}()", ask, (f"distributed.{path}",))


def _of_ranks(name: str) -> object:
    """What torch.distributed says, where it was loaded; there may be none."""
    distributed: Any = sys.modules.get("torch.distributed")
    there = distributed is not None and distributed.is_available() and distributed.is_initialized()
    return there and getattr(distributed, name)()


@functools.cache
def settings() -> tuple[Setting, ...]:
    """All of them."""
    return tuple(_rows())


GETCWD = os.getcwd
"""Python's own: while a step is recorded another one stands for it."""


def _decimal() -> object:
    context = decimal.getcontext()
    return context.prec, context.rounding, context.Emin, context.Emax, context.capitals


@functools.cache
def functions() -> dict[int, tuple[object, str, Callable[[], object]]]:
    """By identity, functions and classes that go by a setting, or set it: how to ask for it."""
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
"""What ``torch.backends.cuda.matmul`` computes when it is asked."""


def switches_of(holder: Any) -> tuple[str, Callable[[], object]] | None:
    """(name, all settings) of a module or object below ``torch.backends``; None for another.

    Some are properties of the class of the module, which no dict shows.
    """
    module = isinstance(holder, ModuleType)
    lies_in = str(holder.__name__ if module else type(holder).__module__)
    if not lies_in.startswith("torch.backends") or isinstance(holder, type) or callable(holder):
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
    """Names of what the class of an object of settings computes."""
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


def validates(value: object) -> bool:
    """True for a distribution of torch, a class of them, and their module."""
    distributions = sys.modules.get("torch.distributions.distribution")
    if distributions is None:
        return False
    cls = value if isinstance(value, type) else type(value)
    found: bool = issubclass(cls, distributions.Distribution)
    return found or value is torch.distributions
