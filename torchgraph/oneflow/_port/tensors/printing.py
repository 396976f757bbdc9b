"""``print(tensor)`` as OneFlow prints it: always with the dtype, under OneFlow's name."""

from __future__ import annotations

from collections.abc import Callable

import torch

_WIDTH, _INDENT = 80, len("tensor(")
_torch_repr: Callable[[torch.Tensor], str] = torch.Tensor.__repr__


def represent(self: torch.Tensor) -> str:
    """The text of a tensor. OneFlow: ``repr(tensor)``."""
    if type(self) not in (torch.Tensor, torch.nn.Parameter) or self.layout != torch.strided:
        return _torch_repr(self)
    text, _, rest = _torch_repr(self.detach()).removesuffix(")").rpartition("dtype=")
    text, suffixes = (text.rstrip(", \n"), []) if text else (rest, [])
    if ", size=" in text:
        text, _, size = text.rpartition(", size=")
        suffixes.append(f"size={size}")
    suffixes.append(f"dtype=oneflow.{str(self.dtype).removeprefix('torch.')}")
    if self.grad_fn is not None:
        suffixes.append(f"grad_fn=<{self.grad_fn.name()}>")
    elif self.requires_grad:
        suffixes.append("requires_grad=True")
    return _with_suffixes(text, suffixes) + ")"


def _with_suffixes(text: str, suffixes: list[str]) -> str:
    # A line is broken where OneFlow breaks it: its count of the last line begins at 2.
    used = len(text) - text.rfind("\n") + 1
    for suffix in suffixes:
        is_long = used + len(suffix) + 2 > _WIDTH
        text += f",\n{' ' * _INDENT}{suffix}" if is_long else f", {suffix}"
        used = _INDENT + len(suffix) if is_long else used + len(suffix) + 2
    return text
