"""``add_optimizer(optimizer, is_sparse=True)``: OneFlow updates only the rows that were looked up.

OneFlow does so for a table that a step looks up once (an embedding without ``padding_idx``, a
gather of rows) and uses for nothing else, with Adam, AdamW and SGD, and only where nothing stands
between the gradient of the lookup and the update: no decay that is added to the gradient, no
clipping, no accumulation, no dynamic grad scaler. Everything else is updated as a whole, as without
``is_sparse``. By rows, Adam and AdamW have no bias correction and no amsgrad there. Here the
optimizer updates all rows, and those that were not looked up are put back, moments too: the numbers
of OneFlow, at the cost of a dense update.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from itertools import chain, repeat
from typing import Any

import torch
from torch.optim import SGD, Adam, Optimizer
from torch.overrides import TorchFunctionMode

from ...._torch import pytree
from ....errors import InvalidOption, UnsupportedOptimizer
from ....optimizers.sparse import check_sparse
from ..errors import NotPorted

_CLIPPING = ("clip_grad_max_norm", "clip_grad_norm_type")


def refuse_half_clipping(optimizer: Optimizer) -> None:
    """Raise InvalidOption for a param group with one of the two: OneFlow does not clip it then."""
    for group in optimizer.param_groups:
        found = [name for name in _CLIPPING if group.get(name) is not None]
        if len(found) == 1:
            raise InvalidOption(
                f"A param group has {found[0]} alone: OneFlow does not clip it, torchgraph would.",
                fix=f"give both, {' and '.join(_CLIPPING)}, or neither.",
            )


def needs_no_moments(optimizer: Optimizer) -> bool:
    """True for plain SGD: updating the other rows, too, gives the same numbers."""
    try:
        check_sparse(optimizer)
    except UnsupportedOptimizer:
        return False
    return True


class Rows:
    """The tables of one optimizer whose rows are updated one by one.

    Raises:
        UnsupportedOptimizer: OneFlow has no such update of that optimizer.
    """

    def __init__(self, optimizer: Optimizer) -> None:
        if not isinstance(optimizer, (SGD, Adam)):
            raise UnsupportedOptimizer(
                f"add_optimizer(is_sparse=True): {type(optimizer).__name__} does not support "
                "sparse updating, in OneFlow neither.",
                fix="use SGD, Adam or AdamW for the tables, or leave is_sparse out.",
                falls_back=False,
            )
        self._optimizer = optimizer
        self._uses: dict[torch.Tensor, list[torch.Tensor | None]] = {}
        """By table, the rows of each use in this step; None for one that is no lookup."""
        self._before: dict[torch.Tensor, list[torch.Tensor]] = {}
        optimizer.register_step_pre_hook(self._keep)
        optimizer.register_step_post_hook(self._put_back)

    def tables(self) -> Iterator[torch.Tensor]:
        """Parameters that may be updated by rows."""
        decoupled = self._optimizer.defaults.get("decoupled_weight_decay", False)
        for group in self._optimizer.param_groups:
            is_decayed = group.get("weight_decay", 0) != 0 and not decoupled
            if not is_decayed and all(group.get(name) is None for name in _CLIPPING):
                yield from (table for table in group["params"] if table.dim() > 0)

    def begin(self) -> None:
        """A step begins."""
        self._uses = {table: [] for table in self.tables()}

    def end(self) -> None:
        """A step has ended, one way or another."""
        self._uses, self._before = {}, {}

    def use(self, table: torch.Tensor, rows: torch.Tensor | None) -> None:
        """A function of torch takes a parameter; ``rows``: it looks these up."""
        if table in self._uses:
            self._uses[table].append(rows)

    def _looked_up(self) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        for table, uses in self._uses.items():
            if len(uses) == 1 and uses[0] is not None:
                yield table, uses[0]

    def _keep(self, *_: Any) -> None:
        self._before = {
            table: [one.detach().clone() for one in self._of(table)]
            for table, _ in self._looked_up()
        }

    def _put_back(self, *_: Any) -> None:
        for table, rows in self._looked_up():
            is_met = torch.zeros(len(table), dtype=torch.bool, device=table.device)
            is_met[rows.flatten()] = True
            is_met = is_met.reshape(-1, *[1] * (table.dim() - 1))
            before = self._before[table]
            with torch.no_grad():
                if isinstance(self._optimizer, Adam):
                    table.copy_(self._adams(table, before[0]))
                for one, old in zip(self._of(table), chain(before, repeat(None)), strict=False):
                    kept = torch.zeros_like(one) if old is None else old
                    one.copy_(torch.where(is_met, one, kept))

    def _adams(self, table: torch.Tensor, old: torch.Tensor) -> torch.Tensor:
        """The table, updated as OneFlow does it by rows: without bias correction and amsgrad."""
        group = next(one for one in self._optimizer.param_groups if _is_in(table, one["params"]))
        state = self._optimizer.state[table]
        step = state["exp_avg"] / (state["exp_avg_sq"].sqrt() + group["eps"])
        if group["weight_decay"] != 0:
            step = step + group["weight_decay"] * old
        updated: torch.Tensor = old - group["lr"] * step
        return updated

    def _of(self, table: torch.Tensor) -> list[torch.Tensor]:
        """The table and what the optimizer keeps of each of its elements."""
        kept = self._optimizer.state.get(table, {})
        slots = [one for one in kept.values() if torch.is_tensor(one) and one.shape == table.shape]
        return [table, *slots]


class Uses(TorchFunctionMode):
    """While it is entered, tells of each function of torch that takes one of the tables."""

    def __init__(self, optimizers: list[Rows]) -> None:
        super().__init__()
        self._optimizers = optimizers

    def __torch_function__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        named = dict(kwargs or {})
        returned = func(*args, **named)
        taken = [one for one in pytree.tree_leaves((args, named)) if _is_parameter(one)]
        if taken and any(map(_has_history, pytree.tree_leaves(returned))):
            table, rows = _lookup(func, args, named)
            for one in taken:
                for optimizer in self._optimizers:
                    optimizer.use(one, rows if one is table else None)
        return returned


def _is_in(table: torch.Tensor, tensors: list[torch.Tensor]) -> bool:
    return any(one is table for one in tensors)


def _is_parameter(value: object) -> bool:
    return isinstance(value, torch.nn.Parameter)


def _has_history(value: object) -> bool:
    return isinstance(value, torch.Tensor) and value.grad_fn is not None


def _lookup(
    func: Any, args: tuple[Any, ...], named: Mapping[str, Any]
) -> tuple[torch.Tensor | None, torch.Tensor | None]:
    """The table that a call looks rows up in and their numbers, where OneFlow keeps them apart."""
    if func is torch.nn.functional.embedding:
        bound = _EMBEDDING.bind(*args, **named)
        bound.apply_defaults()
        given = bound.arguments
        if given["max_norm"] is not None:
            raise NotPorted(
                "add_optimizer(is_sparse=True): an embedding with max_norm is written in build, "
                "and nobody has compared it with OneFlow.",
                fix="leave max_norm or is_sparse out.",
            )
        if given["padding_idx"] is None and not given["scale_grad_by_freq"]:
            return given["weight"], given["input"]
    elif func in (torch.index_select, torch.Tensor.index_select):
        bound = _SELECT.bind(*args, **named)
        if bound.arguments["dim"] in (0, -bound.arguments["input"].dim()):
            return bound.arguments["input"], bound.arguments["index"]
    return None, None


def _select(input: torch.Tensor, dim: int, index: torch.Tensor) -> None: ...


_EMBEDDING = inspect.signature(torch.nn.functional.embedding)
_SELECT = inspect.signature(_select)


@contextmanager
def watched(optimizers: list[Rows]) -> Iterator[None]:
    """A step runs in the block."""
    for one in optimizers:
        one.begin()
    try:
        with Uses(optimizers):
            yield
    finally:
        for one in optimizers:
            one.end()
