"""Argument checks of the update ops, done before any write; the compiled kernels check the same."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence

import torch

from ....library.dtypes import FLOATING
from .overlap import overlap

SCALARS = ("grad_scale", "clip_coef", "found_inf")
UpdateOption = torch.Tensor | float | bool | None
UpdateOptions = Mapping[str, UpdateOption]
Lists = Mapping[str, Sequence[torch.Tensor]]


def check(
    name: str,
    lists: Lists,
    options: UpdateOptions,
    *,
    optional: Collection[str],
    needs: Iterable[tuple[str, str]],
) -> None:
    """Raise RuntimeError for arguments that do not belong together.

    ``optional``: lists that may be empty. ``needs``: (option, list that it needs).
    """
    params = lists["params"]
    for each, tensors in lists.items():
        if len(tensors) != len(params) and not (each in optional and not tensors):
            _refuse(name, f"{len(params)} params, {len(tensors)} {each}.")
    for each, tensors in lists.items():
        for i, (param, tensor) in enumerate(zip(params, tensors, strict=bool(tensors))):
            checked = _check_step if each == "steps" else _check_tensor
            checked(name, f"{each}[{i}]", tensor, param, params[0].device)
    for option, state in needs:
        value = options[option]
        if not isinstance(value, torch.Tensor) and value and params and not lists[state]:
            _refuse(name, f"{option} needs the list {state}.")
    for option, value in options.items():
        if isinstance(value, torch.Tensor):
            _check_scalar(name, option, value, params)


def check_memory(name: str, lists: Lists, options: UpdateOptions) -> None:
    """Raise RuntimeError when a tensor to be written shares memory with another, or with itself.

    And for one whose elements are not where elements of its dtype may be.
    """
    for each, tensors in lists.items():
        for i, tensor in enumerate(tensors):
            if tensor.data_ptr() % tensor.itemsize:
                _refuse(name, f"{each}[{i}] begins at an address where no {tensor.dtype} may be.")
    written = [t for each, tensors in lists.items() if each != "grads" for t in tensors]
    read = [*lists["grads"], *(v for v in options.values() if isinstance(v, torch.Tensor))]
    if overlap(written, read):
        _refuse(name, "a written tensor overlaps another tensor or itself.")


def _check_tensor(
    name: str, what: str, tensor: torch.Tensor, param: torch.Tensor, device: torch.device
) -> None:
    if tensor.device != device:
        _refuse(name, f"{what} is on {tensor.device}, params[0] on {device}.")
    if tensor.layout != torch.strided:
        _refuse(name, f"{what} is not strided.")
    if tensor.shape != param.shape:
        _refuse(name, f"{what} has shape {tuple(tensor.shape)}, not {tuple(param.shape)}.")
    free = what.startswith(("params", "grads", "copies"))
    if tensor.dtype not in FLOATING or not (free or tensor.dtype == param.dtype):
        _refuse(name, f"{what} has dtype {tensor.dtype}.")


def _check_step(
    name: str, what: str, step: torch.Tensor, _: torch.Tensor, device: torch.device
) -> None:
    reachable = step.device == device or (step.is_cpu and not name.endswith(".device"))
    if step.numel() != 1 or step.dtype not in (torch.float32, torch.float64) or not reachable:
        where = "on the parameters' device" + ("." if name.endswith(".device") else " or the CPU.")
        _refuse(name, f"{what} must be one float32 or float64 number {where}")


def _check_scalar(
    name: str, option: str, value: torch.Tensor, params: Sequence[torch.Tensor]
) -> None:
    allowed = FLOATING if option in SCALARS else (torch.float64,)
    if value.numel() != 1 or value.dtype not in allowed:
        _refuse(name, f"{option} must be one number of {', '.join(map(str, allowed))}.")
    if params and value.device != params[0].device:
        _refuse(name, f"{option} is on {value.device}, params[0] on {params[0].device}.")


def _refuse(name: str, message: str) -> None:
    raise RuntimeError(f"torchgraph::{name}: {message}")
