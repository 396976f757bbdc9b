"""Optimizers that may update rows of an embedding table instead of the whole table."""

from __future__ import annotations

from torch.optim import SGD, Optimizer

from ..errors import UnsupportedOptimizer
from .rules import update_class

_EACH_STEP = ("momentum", "weight_decay", "maximize", "foreach", "fused")


def check_sparse(optimizer: Optimizer) -> None:
    """Raise UnsupportedOptimizer unless a row without a gradient keeps its value: plain SGD.

    Adam and others move such rows too, by their decaying moments. To leave them out is another
    algorithm (`torch.optim.SparseAdam` is one), not a faster form of the same.
    """
    name = type(optimizer).__name__
    if any(update_class(optimizer, group) is not SGD for group in optimizer.param_groups):
        raise UnsupportedOptimizer(
            f"add_optimizer(is_sparse=True): {name} may change rows of a table that were not "
            "looked up, so that updating only the others would give other numbers than PyTorch.",
            fix="use plain torch.optim.SGD for the tables, or leave is_sparse out.",
            falls_back=False,
        )
    for group in optimizer.param_groups:
        used = [option for option in _EACH_STEP if group[option]]
        if used:
            raise UnsupportedOptimizer(
                f"add_optimizer(is_sparse=True): SGD with {', '.join(used)} does not update row by "
                "row what PyTorch updates as a whole.",
                fix="give the tables an SGD without them, or leave is_sparse out.",
                falls_back=False,
            )
