"""Ops of our own, for random draws that no functional ATen op makes as eager makes them in place.

In which order a draw fills a tensor depends on its strides. ATen's functional forms draw into a new
tensor, not always of the same strides, and then give other numbers from the same generator.
"""

from __future__ import annotations

import torch

_LIBRARY = torch.library.Library("torchgraph", "FRAGMENT")
_TAGS = (torch.Tag.nondeterministic_seeded,)


def _as_strided_like(like: torch.Tensor) -> torch.Tensor:
    return torch.empty_strided(like.shape, like.stride(), dtype=like.dtype, device=like.device)


def _bernoulli(like: torch.Tensor, p: float) -> torch.Tensor:
    return _as_strided_like(like).bernoulli_(p)


def _normal(like: torch.Tensor, mean: float, std: float) -> torch.Tensor:
    return _as_strided_like(like).normal_(mean, std)


_LIBRARY.define("bernoulli(Tensor like, float p) -> Tensor", tags=_TAGS)
_LIBRARY.impl("bernoulli", _bernoulli, "CompositeExplicitAutograd")
_LIBRARY.define("normal(Tensor like, float mean, float std) -> Tensor", tags=_TAGS)
_LIBRARY.impl("normal", _normal, "CompositeExplicitAutograd")

bernoulli = torch.ops.torchgraph.bernoulli.default
"""What ``empty_strided(like).bernoulli_(p)`` draws."""

normal = torch.ops.torchgraph.normal.default
"""What ``empty_strided(like).normal_(mean, std)`` draws."""
