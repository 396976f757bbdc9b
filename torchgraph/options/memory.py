"""The memory of a step: the order of its ops, and the place of their results."""

from __future__ import annotations

from typing import Annotated

from .checking import OneOf
from .verbs import Verbs

STRAIGHTEN_MODES = ("Disable", "SpeedFirst", "MemoryFirst", "OverlapCpuGpu", "DelayShortGpu")


class MemoryVerbs(Verbs):
    """See `GraphConfig`."""

    def enable_straighten_algorithm(
        self, mode: Annotated[str, OneOf(STRAIGHTEN_MODES)] = "MemoryFirst"
    ) -> None:
        """The order in which the ops of a step run. Bitwise equal in every mode.

        ``"Disable"``, the default: as captured. ``"MemoryFirst"``: of several orders the one whose
        lowered program has the least peak; updates run as soon as their gradient is there.
        ``"SpeedFirst"``: the longest way first. ``"OverlapCpuGpu"``: ops of the host while the
        device works. ``"DelayShortGpu"``: views and casts right before their first reader. A mode
        that cannot matter for a program keeps its order, and ``report()`` says so. `inductor`
        orders its own code.

        OneFlow: the option of the same name, whose default is MemoryFirst.

        Raises:
            InvalidOption: another mode.
        """
        self._set(straighten=mode)

    def enable_compress_memory(self, mode: bool = True) -> None:
        """Temporaries in one block, at offsets chosen for the least peak; less is kept at all.

        On the CPU under `aten`; bitwise equal. Ops write over arguments that they are the last to
        read, elementwise results that the backward part needs are computed again from what it keeps
        anyway, and all that an op can be given memory for lies in one arena, which exists while a
        step runs. Never more than without the arena, as planned; ``report()`` says how much, and
        what is outside. `inductor` plans its own buffers. OneFlow: the option of the same name.
        """
        self._set(compress_memory=mode)

    def enable_choose_best_memory_allocation(self, mode: bool = True) -> None:
        """Try OneFlow's four ways to lay out the arena, compact or not, and keep the best.

        Without `enable_compress_memory` that is all that is done. OneFlow: the option of the same
        name; there, False cannot undo True.
        """
        self._set(best_memory_allocation=mode)
