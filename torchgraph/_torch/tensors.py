"""Private properties of tensors, of their memory and of generators."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any

import torch

version_of: Callable[[torch.Tensor], int] = operator.attrgetter("_version")
"""Counts the writes. Inference tensors have none."""

_set_versions: Any = getattr(
    getattr(torch._C, "_autograd", None), "_unsafe_set_version_counter", None
)


def count_again_from(tensors: Sequence[torch.Tensor], versions: Sequence[int]) -> None:
    """Set what `version_of` gives, where torch can: a graph that waits takes these as unwritten."""
    if _set_versions is not None and tensors:
        _set_versions(tuple(tensors), tuple(versions))


address_of: Callable[[torch.UntypedStorage | torch.Generator], int] = operator.attrgetter("_cdata")
"""The address of the C++ object: equal for two Python objects exactly if they share it."""

indices_of: Callable[[torch.Tensor], torch.Tensor] = operator.methodcaller("_indices")
values_of: Callable[[torch.Tensor], torch.Tensor] = operator.methodcaller("_values")
"""The indices and values of a sparse tensor, coalesced or not."""


VERSION, BASE, IS_VIEW = "_version", "_base", "_is_view"
"""The properties of Tensor that count its writes and give the tensor that it views; its method."""

MAKE_SUBCLASS = "_make_subclass"
"""The static method of Tensor that makes a Parameter, say."""

COMPILER_MARK = "_dynamo_"
"""The prefix of the attributes with which torch.compile marks a tensor."""


def share_hooks(source: torch.Tensor, target: torch.Tensor) -> None:
    """Let gradients of ``target`` meet the hooks that ``source`` has, and gets or loses later."""
    held: Any = source
    made: Any = target
    if held._backward_hooks is not None:
        made._backward_hooks = held._backward_hooks
    if held._post_accumulate_grad_hooks is not None:
        made._post_accumulate_grad_hooks = held._post_accumulate_grad_hooks


def run_last_hooks(parameter: torch.Tensor) -> None:
    """Run the hooks that are to run when a gradient is there."""
    held: Any = parameter
    for hook in list((held._post_accumulate_grad_hooks or {}).values()):
        hook(parameter)
