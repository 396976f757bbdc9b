"""The way back from a state that could be loaded only in part."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch.nn import parameter as parameters
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from ..._torch.optimizers import loads_plainly
from ...random_state import TorchRandomState
from ..snapshot import Snapshot
from .held import Held
from .schedulers import inside


@contextmanager
def undoing(held: Held) -> Iterator[None]:
    """When the block raises, an interrupt too, everything is as before, to the last bit.

    Attributes, containers and tensors are the same objects again. What other objects hold that a
    module keeps is left to its own loading.
    """
    modules, optimizers, schedulers, scaler = held
    found = (each for module in modules.values() for each in module.modules())
    inner = list({id(each): each for each in found}.values())
    all_schedulers = [each for one in schedulers for each in (one, *inside(one))]
    owners = [*inner, *optimizers, *all_schedulers, *([] if scaler is None else [scaler])]
    functions = [f for one in all_schedulers for f in _functions(one) if hasattr(f, "__dict__")]
    kept = Snapshot([*owners, *functions], [], unwritten=_replaced(optimizers))
    lazy = [(p, type(p), p.data) for module in inner for p in module.parameters() if _is_lazy(p)]
    random = TorchRandomState()
    try:
        yield
    except BaseException:
        for parameter, cls, data in lazy:
            parameter.data = data
            parameter.__class__ = cls
        kept.restore()
        random.put_back()
        raise


def _is_lazy(parameter: torch.Tensor) -> bool:
    return bool(parameters.is_lazy(parameter))


def _functions(scheduler: LRScheduler) -> Iterable[Any]:
    """The functions of a LambdaLR: those that are objects have a state, and it is loaded."""
    found: Iterable[Any] = vars(scheduler).get("lr_lambdas", ())
    return found


def _replaced(optimizers: Sequence[Optimizer]) -> set[int]:
    """The ids of slots that loading replaces, and does not write into."""
    return {
        id(value)
        for optimizer in optimizers
        if loads_plainly(optimizer)
        for slots in optimizer.state.values()
        if isinstance(slots, dict)
        for value in slots.values()
    }
