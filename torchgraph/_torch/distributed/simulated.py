"""A process group of ranks that are not there: what torch's own tests record programs with."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest import mock

import torch

_FAKE = "torch.testing._internal.distributed.fake_pg"
_PLACEMENTS = "torch.distributed.tensor.placement_types"
_SENDING = (
    *(("Shard", "_shard_tensor"), ("_StridedShard", "_shard_tensor")),
    *(("Replicate", "_replicate_tensor"), ("Replicate", "_make_replicate_tensor")),
)
"""Functions that make DTensors of one rank's whole; not all are in each version of torch."""


def fake_store() -> Any:
    """The store of the backend ``fake``, whose collectives communicate nothing.

    Loading it is what makes the backend known.
    """
    return importlib.import_module(_FAKE).FakeStore()


@contextmanager
def cut_here(wholes: list[torch.Tensor]) -> Iterator[None]:
    """Build DTensors from this rank's whole in the block, in place of the one sent by another rank.

    Args:
        wholes: takes them, in their order: one of the ranks would have sent its own.
    """
    placements = importlib.import_module(_PLACEMENTS)
    with ExitStack() as stack:
        for cls, name in _SENDING:
            owner = getattr(placements, cls, None)
            if owner is not None and name in vars(owner):
                held = vars(owner)[name]
                cut = _cutting(getattr(owner, name), wholes)
                made = staticmethod(cut) if isinstance(held, staticmethod) else cut
                stack.enter_context(mock.patch.object(owner, name, made))
        yield


def _cutting(original: Callable[..., Any], wholes: list[torch.Tensor]) -> Callable[..., Any]:
    def cut(*args: Any, **kwargs: Any) -> Any:
        tensors = [one for one in args if isinstance(one, torch.Tensor)]
        wholes.extend(one.detach().clone() for one in tensors)
        place = next(i for i, one in enumerate(args) if isinstance(one, torch.Tensor))
        kwargs.pop("src_data_rank", None)  # it follows the tensor, the mesh and its dimension
        return original(*args[: place + 3], src_data_rank=None, **kwargs)

    return cut
