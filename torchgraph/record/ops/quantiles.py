"""Quantiles in ops: one of ours in place of the kernel that torch calls without an op."""

from __future__ import annotations

from typing import Any

import torch

from ... import library
from ..._torch import OpOverload, composite
from ..._torch.listening import Listener, listening_through
from ..._torch.quantiles import selects
from ..tape.tape import Args, Kwargs

aten = torch.ops.aten
_Q = aten.scalar_tensor.default


def quantile(
    op: OpOverload,
    self: torch.Tensor,
    q: Any,
    dim: int | None = None,
    keepdim: bool = False,
    *,
    interpolation: str = "linear",
    **out: Any,
) -> object:
    """Run a quantile, or one that ignores NaN: as one op where nothing needs a derivative."""
    ignores = "nanquantile" in op.name()
    if selects() and not out and not _differentiated(self, q) and _is_valid(q):
        if not isinstance(q, torch.Tensor):
            q = _Q(q, dtype=self.dtype, device=self.device)
        return library.quantile(self, q, dim, keepdim, interpolation, ignores)
    with listening_through(lambda listener: _with_places(listener, q, interpolation, ignores)):
        compute = composite(op, "CompositeImplicitAutograd")
        return compute(self, q, dim, keepdim, interpolation=interpolation, **out)


def _differentiated(*tensors: Any) -> bool:
    return torch.is_grad_enabled() and any(getattr(one, "requires_grad", False) for one in tensors)


def _is_valid(q: Any) -> bool:
    return isinstance(q, torch.Tensor) or 0 <= q <= 1


def _with_places(listener: Listener, q: Any, interpolation: str, ignores: bool) -> Listener:
    """``listener``, told of an op of ours that gives the kernel the memory which it writes."""
    seen: dict[OpOverload, Any] = {_Q: q}

    def hear(inner: OpOverload, args: Args, kwargs: Kwargs) -> object:
        if inner is aten.isnan.default:
            seen[inner] = args[0]
        elif inner is aten.empty.memory_format and aten.isnan.default in seen:
            rows, ranks = seen[aten.isnan.default], seen[aten.view.default]
            return listener(
                library.quantile_places, (rows, ranks, seen[_Q], interpolation, ignores), {}
            )
        out = listener(inner, args, kwargs)
        if inner in (_Q, aten.view.default):
            seen[inner] = out
        return out

    return hear
