"""Fingerprints of the results of a step, to compare them when it runs again."""

from __future__ import annotations

from typing import NamedTuple

import torch

from ..ir import bits
from ..structure import tensors_in

_WHOLE = 1024
"""Elements of a result up to which all are kept; of a larger one so many, and the sum of all."""


class Result(NamedTuple):
    """The fingerprint of one tensor that a step returned."""

    path: str
    shape: torch.Size
    dtype: torch.dtype
    parts: tuple[torch.Tensor, ...]
    """Copies on the tensor's own device: nothing waits for it."""

    @classmethod
    def of(cls, path: str, tensor: torch.Tensor) -> Result:
        """The fingerprint of a tensor."""
        return cls(path, tensor.shape, tensor.dtype, _parts(tensor.detach()))

    def differs(self, now: Result) -> str:
        """The difference from another fingerprint in words; empty for none.

        Where kernels may add in any order, as on a GPU, all finite results are alike.
        """
        if (self.path, self.shape, self.dtype) != (now.path, now.shape, now.dtype):
            return f"{now.path} is {now.dtype} {list(now.shape)}"
        alike = bits.same if self._is_exact() else _as_finite
        if all(map(alike, self.parts, now.parts)):
            return ""
        what = now.path if len(now.parts) == 1 else f"the sum of {now.path}"
        return f"{what} is {bits.summary(now.parts[-1])}, and was {bits.summary(self.parts[-1])}"

    def _is_exact(self) -> bool:
        on_host = all(part.device.type == "cpu" for part in self.parts)
        return on_host or torch.are_deterministic_algorithms_enabled()


def results_of(returned: object) -> list[Result]:
    """The fingerprints of all tensors that a step returned."""
    if isinstance(returned, torch.Tensor):
        found = [("output", returned)]
    else:
        found = tensors_in(returned, "output")
    return [Result.of(*one) for one in found]


def difference(then: list[Result], now: list[Result]) -> str:
    """The first difference between two runs of a step in words; empty for none."""
    if len(then) != len(now):
        return f"it returns {len(now)} tensors, and returned {len(then)}"
    apart = (one.differs(other) for one, other in zip(then, now, strict=True))
    return next(filter(None, apart), "")


def _parts(tensor: torch.Tensor) -> tuple[torch.Tensor, ...]:
    if type(tensor) is not torch.Tensor or tensor.layout is not torch.strided:
        return ()
    if tensor.is_nested or tensor.is_quantized or tensor.is_meta:
        return ()
    if tensor.numel() <= _WHOLE:
        return (tensor.clone(),)
    some = tensor.flatten()[:: tensor.numel() // _WHOLE]
    return (some.clone(), _sum(tensor))


def _as_finite(left: torch.Tensor, right: torch.Tensor) -> bool:
    return torch.equal(left.isfinite(), right.isfinite())


def _sum(tensor: torch.Tensor) -> torch.Tensor:
    if tensor.is_complex():
        return tensor.sum()
    if tensor.is_floating_point():
        wide = tensor.to(torch.float32) if tensor.element_size() == 1 else tensor
        return wide.sum(dtype=torch.float64)
    return tensor.sum()
