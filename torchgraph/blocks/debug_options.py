"""Options of ``debug(...)``, of a Graph or of a module in it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

from ..distributed.words.process import get_rank
from ..lines import Depth
from ..options.checking import Between

Level = Annotated[int, Between(-1, 3)]
Ranks = int | Sequence[int] | None


@dataclass(frozen=True)
class DebugOptions:
    """Options of ``debug(...)``: verbosity, ranks that print, and number of stack frames."""

    v_level: int = -1
    """-1: errors only. 0: stages, warnings. 1: modules, tensors. 2: each op. 3: its details."""
    ranks: tuple[int, ...] = (0,)
    """-1 stands for every rank."""
    max_py_stack_depth: int = 2
    only_user_py_stack: bool = True
    op_repr_with_py_stack: bool = False

    @classmethod
    def of(
        cls,
        v_level: int = -1,
        ranks: Ranks = None,
        max_py_stack_depth: int = 2,
        only_user_py_stack: bool = True,
        op_repr_with_py_stack: bool = False,
        mode: bool | None = None,
    ) -> DebugOptions:
        """The options for arguments of ``debug``. ``mode`` is OneFlow's older on and off."""
        if mode is not None:
            v_level = max(v_level, 0) if mode else -1
        return cls(
            v_level, _ranks(ranks), max_py_stack_depth, only_user_py_stack, op_repr_with_py_stack
        )

    @property
    def depth(self) -> Depth:
        """The number of stack frames that an op shows."""
        return Depth(self.max_py_stack_depth, not self.only_user_py_stack)

    def level(self) -> int:
        """The level that holds in this process: -1 where its rank is to print nothing."""
        return self.v_level if {-1, get_rank()}.intersection(self.ranks) else -1


def _ranks(ranks: Ranks) -> tuple[int, ...]:
    if ranks is None:
        return (0,)
    return (ranks,) if isinstance(ranks, int) else tuple(ranks)
