"""``print(tensor)`` as OneFlow prints it: always with the dtype, under OneFlow's name."""

from __future__ import annotations

from collections.abc import Callable

import torch

_torch_repr: Callable[[torch.Tensor], str] = torch.Tensor.__repr__


def represent(self: torch.Tensor) -> str:
    """The text of a tensor. OneFlow: ``repr(tensor)``."""
    if type(self) not in (torch.Tensor, torch.nn.Parameter) or self.layout != torch.strided:
        return _torch_repr(self)
    shown = self.detach()
    text = _torch_repr(shown).removesuffix(")").replace("dtype=torch.", "dtype=oneflow.")
    if "dtype=" not in text:
        text += f", dtype=oneflow.{str(self.dtype).removeprefix('torch.')}"
    if self.grad_fn is not None:
        text += f",\n       grad_fn=<{self.grad_fn.name()}>"
    elif self.requires_grad:
        text += ", requires_grad=True"
    return text + ")"
