"""Gradient accumulation: which inputs are split, and the call that `build` sees."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence

import torch

from ..errors import UnsupportedInput
from ..options.options import Options
from .inputs import Call, paths


def micro_batch(
    call: Call, build: Callable[..., object], options: Options, number: int = 0
) -> Call:
    """``call`` with one of its micro-batches, as OneFlow's unpack gives it.

    Raises:
        UnsupportedInput: names the input that cannot be split, or that `build` has no parameter of
            a name in ``whole``.
    """
    count = options.micro_batches
    split = split_inputs(call, build, options)
    names = paths(call.args, call.kwargs)
    for path, tensor in zip(names, call.tensors, strict=True):
        if path in split and (tensor.ndim == 0 or tensor.shape[0] % count):
            size = "has no dimension" if tensor.ndim == 0 else f"has {tensor.shape[0]} rows"
            raise UnsupportedInput(
                f"{path} {size}; it cannot be split into {count} micro-batches.",
                fix="pass a batch that the number of micro-batches divides, or name the parameter "
                "in set_gradient_accumulation_steps(..., whole=[...]).",
                falls_back=False,
            )
    parts = zip(names, call.tensors, strict=True)
    return call.over([chunk(t, number, count) if name in split else t for name, t in parts])


def chunk(tensor: torch.Tensor, number: int, count: int) -> torch.Tensor:
    """Rows of micro-batch ``number``; a view."""
    rows = tensor.shape[0] // count
    return tensor.narrow(0, number * rows, rows)


def pack(values: Sequence[torch.Tensor]) -> torch.Tensor:
    """Results packed as OneFlow does: scalars as a vector, all others concatenated."""
    return torch.stack(list(values)) if values[0].ndim == 0 else torch.cat(list(values))


def split_inputs(call: Call, build: Callable[..., object], options: Options) -> frozenset[str]:
    """The paths of the tensors that are split."""
    parameters = list(inspect.signature(build).parameters.values())
    unknown = options.whole_inputs - {parameter.name for parameter in parameters}
    if unknown:
        raise UnsupportedInput(
            f"the step has no parameter {min(unknown)!r} that stays whole.", falls_back=False
        )
    whole: set[str] = set()
    for position, parameter in enumerate(parameters):
        if parameter.name in options.whole_inputs:
            whole.update((f"args[{position}]", f"kwargs[{parameter.name!r}]"))
    found = paths(call.args, call.kwargs)
    return frozenset(p for p in found if not any(_below(p, place) for place in whole))


def _below(path: str, place: str) -> bool:
    rest = path.removeprefix(place)
    return rest != path and rest[:1] in ("", "[", ".")
