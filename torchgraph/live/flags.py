"""The ``requires_grad`` of a step's tensors as it begins: the step may change it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import torch


class Flags:
    """The ``requires_grad`` of tensors, which only leaves of autograd can be given."""

    def __init__(self, named: Iterable[tuple[str, torch.Tensor]]) -> None:
        self._met: dict[int, tuple[str, torch.Tensor, bool]] = {}
        for name, tensor in named:
            self.meet(name, tensor)

    def meet(self, name: str, tensor: torch.Tensor) -> None:
        """Add a tensor, with its flag now."""
        if tensor.is_leaf:
            self._met.setdefault(id(tensor), (name, tensor, tensor.requires_grad))

    def before(self, others: Flags) -> Flags:
        """The tensors of ``others``; with the flags noted here where a tensor is in both."""
        found = Flags(())
        found._met = {key: self._met.get(key, value) for key, value in others._met.items()}
        return found

    def moved(self) -> list[tuple[torch.Tensor, bool]]:
        """The tensors whose flag has changed, with its value now."""
        return [
            (tensor, tensor.requires_grad)
            for _, tensor, flag in self._met.values()
            if tensor.is_leaf and tensor.requires_grad is not flag
        ]

    def unlike(self, others: Flags) -> str:
        """A description of the first tensor with another flag in ``others``; empty for none."""
        for key, (name, _, flag) in self._met.items():
            known = others._met.get(key)
            if known is not None and known[2] is not flag:
                return f"{name}.requires_grad was {known[2]} and is {flag}"
        return ""

    @contextmanager
    def as_met(self) -> Iterator[None]:
        """In the block, the tensors have the flags that the step found."""
        moved = self.moved()
        for tensor, now in moved:
            tensor.requires_grad_(not now)
        try:
            yield
        finally:
            for tensor, now in moved:
                tensor.requires_grad_(now)
