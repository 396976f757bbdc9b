"""Tolerances between values of a program and of eager, where sums run in another order."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch

from ..ir.bits import gap, same_bits
from ..ir.names import key_of, last_of, parameter_of

_ROUNDING = 64
"""Rounding of sums in another order, in multiples of the dtype's epsilon."""


class _Slot(NamedTuple):
    kind: str
    parameter: str
    value: torch.Tensor


def _slot(name: str, value: Any) -> _Slot | None:
    """The slot of an optimizer's floating-point tensor; None for other values."""
    inexact = isinstance(value, torch.Tensor) and value.is_floating_point()
    if not key_of(name) or not inexact:
        return None
    return _Slot(last_of(name), parameter_of(name), value.detach())


def _size(value: torch.Tensor) -> float:
    return float(value.double().nan_to_num(0, 0, 0).norm())


@dataclass(frozen=True)
class Update:
    """The amplification of rounding errors through an eager update."""

    sizes: Mapping[str, float] = field(default_factory=dict)
    """The norm of the largest slot of each kind, of which a zero gradient may be the rounding."""
    noise: frozenset[str] = frozenset()
    """Parameters whose slots are all rounding errors: Adam makes whole steps of these."""
    reach: float = 0.0
    """The largest change of an element of any parameter."""
    moved: Mapping[str, float] = field(default_factory=dict)
    """For parameters that hardly move, the size of which that may be the rounding: from a gradient
    of zero an optimizer without slots makes a step of rounding errors of the other gradients."""

    @classmethod
    def of(
        cls,
        pairs: Sequence[tuple[str, Any, Any]],
        before: Mapping[str, torch.Tensor],
        parameters: Sequence[str],
    ) -> Update:
        """The amplification of an update, from the values after and before it."""
        kinds: dict[str, list[_Slot]] = {}
        for name, expected, _ in pairs:
            if slot := _slot(name, expected):
                kinds.setdefault(slot.kind, []).append(slot)
        sizes = {kind: max(_size(slot.value) for slot in slots) for kind, slots in kinds.items()}
        now = {name: value for name, value, _ in pairs if isinstance(value, torch.Tensor)}
        loud, quiet = set[str](), set[str]()
        for slots in kinds.values():
            squares = all(bool((slot.value >= 0).all()) for slot in slots)
            own = [(slot, _size(slot.value.sqrt() if squares else slot.value)) for slot in slots]
            most = max(size for _, size in own)
            for slot, size in own:
                like = slot.parameter in now and now[slot.parameter].shape == slot.value.shape
                if like:  # no counter
                    rounds = size <= _ROUNDING * torch.finfo(slot.value.dtype).eps * most
                    (quiet if rounds else loud).add(slot.parameter)
        known = [name for name in parameters if name in now and name in before]
        known = [name for name in known if now[name].is_floating_point()]
        norms, reach = dict[str, float](), 0.0
        for name in {*known, *loud & before.keys()}:
            move = _moved(now[name], before[name])
            norms[name] = float(move.norm())
            if name in loud and move.numel():
                reach = max(reach, float(move.abs().max()))
        farthest = max((norms[name] for name in known), default=0.0)
        moved = {name: _rounded(now[name].dtype, norms[name], farthest) for name in known}
        return cls(sizes, frozenset(quiet - loud), reach, moved)

    def allowed(self, name: str) -> tuple[float, float]:
        """(the size whose rounding may be in a value, how far one that is rounding may be off)."""
        size = max(self.moved.get(name, 0.0), self.sizes.get(last_of(name), 0.0))
        return size, self.reach if name in self.noise else 0.0


def _rounded(dtype: torch.dtype, own: float, farthest: float) -> float:
    """The size of which a move may be the rounding: of the farthest if it is so short, else none.

    In float32's rounding at most: what is narrower rounds values, and hardly gradients.
    """
    eps = torch.finfo(dtype).eps
    finest = min(eps, torch.finfo(torch.float32).eps)
    return farthest * finest / eps if own <= _ROUNDING * finest * farthest else 0.0


def _moved(now: torch.Tensor, before: torch.Tensor) -> torch.Tensor:
    return (now.detach().double() - before.double()).nan_to_num(0, 0, 0)


def agree(
    expected: Any,
    got: Any,
    start: torch.Tensor | None,
    exact: bool,
    size: float,
    reach: float,
) -> bool:
    """True for values that are alike: to the bit where ``exact``, else within rounding.

    Args:
        start: the value before the step.
        size, reach: the results of `Update.allowed`.
    """
    if not isinstance(expected, torch.Tensor) or not isinstance(got, torch.Tensor):
        return type(expected) is type(got) and repr(expected) == repr(got)
    if (expected.shape, expected.dtype) != (got.shape, got.dtype):
        return False
    with torch.no_grad():
        expected, got = expected.detach(), got.detach()
        if same_bits(expected, got):
            return True
        if exact or not (expected.is_floating_point() or expected.is_complex()):
            return False
        wide = torch.complex128 if expected.is_complex() else torch.float64
        one, other = expected.to(wide), got.to(wide)
        if not torch.equal(one.isfinite(), other.isfinite()):
            return False
        apart = (one - other).nan_to_num(0, 0, 0).norm()
        moved = 0.0 if start is None else (one - start.to(wide)).nan_to_num(0, 0, 0).norm()
        size = max(size, float(one.nan_to_num(0, 0, 0).norm()))
        rounding = _ROUNDING * torch.finfo(expected.dtype).eps * size
        share = moved + reach * expected.numel() ** 0.5 if reach else 0.05 * moved
        return bool(apart <= rounding + share)


def gap_in_words(expected: Any, got: Any) -> str:
    """``by up to 3``; empty where that says nothing."""
    apart = gap(expected, got) if isinstance(expected, torch.Tensor) else None
    return "" if apart is None else f" by up to {apart:.3g}"
