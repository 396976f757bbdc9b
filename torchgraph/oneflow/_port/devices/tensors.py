"""``to_global`` and its kin, of tensors and modules.

One process has the whole of each tensor: there ``to_global`` moves it to the placement's device,
``to_local`` gives it back, and nothing is global. Several ranks: `torchgraph.to_global`, DTensor.
"""

from __future__ import annotations

import inspect
from typing import Any

import torch
from torch import nn

from ...._torch.distributed.held import is_dtensor
from ....blocks.block import GraphBlock
from ....calls.live_step import in_build
from ....distributed import words
from ....distributed.errors import PlacementMismatch
from ..errors import NotPorted
from . import lazy, on_cpu
from .placement import placement as Placement


def to_global(
    self: Any,
    placement: Placement | None = None,
    sbp: Any = None,
    *,
    grad_sbp: Any = None,
    check_meta: bool = True,
    copy: bool = False,
) -> Any:
    """A tensor or a module on all ranks of a placement. OneFlow: ``to_global``.

    Args:
        placement: it stays where it is by default.
        sbp: how it lies there; for one process only read.
        grad_sbp: with several ranks not supported: a gradient lies as the tensor did.
        check_meta: without effect: what ranks hold is always compared.
        copy: a new tensor in any case.

    Raises:
        PlacementMismatch; NotPorted for ``grad_sbp``.
    """
    if _is_alone():
        found = self if placement is None else self.to(on_cpu.meant(placement.type))
        return (
            found.clone() if copy and found is self and isinstance(found, torch.Tensor) else found
        )
    if grad_sbp is not None:
        raise NotPorted(
            "to_global with grad_sbp is not here: the gradient lies as the tensor did.",
            fix="leave grad_sbp out.",
        )
    if placement is None and sbp is None:
        return self
    where = placement.words if placement is not None else None
    found = words.to_global(self, where, sbp)
    return _copied(found, self, copy)


def to_local(self: Any, *, copy: bool = False) -> Any:
    """What this rank holds. OneFlow: ``to_local``.

    Raises:
        PlacementMismatch: one of several ranks, and the tensor is local already.
    """
    found = self if _is_alone() and not _is_global(self) else words.to_local(self)
    return _copied(found, self, copy)


def _copied(found: Any, given: object, copy: bool) -> Any:
    is_same = found is given and isinstance(found, torch.Tensor)
    return found.clone() if copy and is_same else found


def _is_alone() -> bool:
    return words.env.get_world_size() == 1


def _is_global(tensor: Any) -> bool:
    return isinstance(tensor, torch.Tensor) and is_dtensor(tensor)


def _placement(self: torch.Tensor) -> Placement:
    """OneFlow: ``tensor.placement``. One process: its device, and rank 0."""
    if not _is_global(self):
        _check_alone("placement")
        return Placement(self.device.type, [0])
    return Placement.of(words.placement.of(self))


def _sbp(self: torch.Tensor) -> tuple[words.sbp.sbp, ...]:
    """OneFlow: ``tensor.sbp``. One process: broadcast."""
    if not _is_global(self):
        _check_alone("sbp")
        return (words.sbp.broadcast,)
    return words.sbp.of(self)


def _check_alone(what: str) -> None:
    if not _is_alone():
        raise PlacementMismatch(
            f"Only global tensors have '{what}', and this one is local.",
            fix="x.to_global(placement, sbp), or x.device",
        )


placement = property(_placement)
sbp = property(_sbp)
is_global = property(_is_global)
is_local = property(lambda self: not _is_global(self))
is_lazy = property(lambda self: lazy.is_lazy())
is_eager = property(lambda self: not lazy.is_lazy())


def to(self: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
    """OneFlow: ``tensor.to``, which takes a placement and sbp, too."""
    where, how = kwargs.pop("placement", None), kwargs.pop("sbp", None)
    if _is_itself(args, torch.Tensor):
        return self
    if args and isinstance(args[0], Placement):
        where, args = args[0], args[1:]
    if where is not None or how is not None:
        self = to_global(self, where, how)
        if not args and not kwargs:
            return self
    return torch.Tensor.to(self, *map(on_cpu.meant, args), **_meant(kwargs))


def module_to(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
    """OneFlow: ``module.to``; ``.to(nn.Module)`` is the module itself, as of a proxy.

    In `build`, ``.to(GraphModule)`` is its block.

    Raises:
        NotPorted: a block is asked for of a module that has none.
    """
    if _is_itself(args, nn.Module):
        return self
    if (block := _block(self, args)) is not None:
        return block
    return nn.Module.to(self, *map(on_cpu.meant, args), **_meant(kwargs))


def cuda(self: torch.Tensor, device: Any = None, **kwargs: Any) -> torch.Tensor:
    """OneFlow: ``tensor.cuda``."""
    return torch.Tensor.to(self, on_cpu.cuda(device), **kwargs)


def module_cuda(self: nn.Module, device: Any = None) -> nn.Module:
    """OneFlow: ``module.cuda``."""
    return nn.Module.to(self, on_cpu.cuda(device))


def _is_itself(args: tuple[Any, ...], kind: type) -> bool:
    """Whether a class is asked for, as of the proxies of a Graph: that of the value itself."""
    return len(args) == 1 and inspect.isclass(args[0]) and issubclass(args[0], kind)


def _block(module: nn.Module, args: tuple[Any, ...]) -> Any:
    """The block of a module of the Graph whose `build` runs; None where none is asked for.

    Raises:
        NotPorted: no `build` runs, or its Graph does not hold the module.
    """
    if not _is_itself(args, GraphBlock):
        return None
    step = in_build.get()
    for root, held in step.modules.items() if step is not None else ():
        for path, found in held.named_modules(prefix=root):
            if found is module and step is not None:
                return step.blocks.block(path)
    raise NotPorted(
        f"to({args[0].__name__}): this {type(module).__name__} is held by no Graph whose build "
        "runs, and has no block.",
        fix=f"graph.model.to({args[0].__name__}), or ask for it in build.",
    )


def _meant(kwargs: dict[str, Any]) -> dict[str, Any]:
    return {name: on_cpu.meant(value) for name, value in kwargs.items()}


def made_global(tensor: torch.Tensor, where: Placement | None, how: Any) -> torch.Tensor:
    """What a factory made, whole on each rank, as a tensor of a placement.

    Random ones have the numbers of the first rank, as OneFlow's global factories have one seed.
    """
    if where is None:
        return tensor
    if _is_alone():
        return tensor.to(on_cpu.meant(where.type))
    count = where.words.shape
    on_all = words.to_global(tensor.to(where.type), where.words, [words.sbp.broadcast] * len(count))
    return words.to_global(on_all, where.words, how)
