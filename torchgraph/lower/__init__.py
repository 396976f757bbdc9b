"""Program → Executable: Python over ATen ops, or over regions that Inductor compiles."""

from __future__ import annotations

import functools
from collections.abc import Callable

from ..options import Options
from ..program import Program
from . import executable
from .compilation import Compilation as Compilation, CompilationFailed as CompilationFailed
from .cut import cut
from .disk_cache import DiskCache as DiskCache
from .executable import Executable
from .plan import Plan
from .region import Region

__all__ = [
    "Compilation",
    "CompilationFailed",
    "DiskCache",
    "Executable",
    "Plan",
    "Region",
    "lower",
    "lower_to_regions",
]

_DEFAULT = Options()


def lower(program: Program, name: str, options: Options = _DEFAULT) -> Executable | Plan:
    """One executable, or the plan of a step that accumulates gradients.

    Of ``options``, those about memory count.

    Raises:
        NotSupported: the step cannot be split into micro-batches and an update.
    """
    return _lower(program, name, functools.partial(executable.lower, options=options))


def lower_to_regions(
    program: Program, name: str, *, eager_draws: bool
) -> tuple[Executable | Plan, list[Region]]:
    """As `lower`; most of it are calls of regions, which have to be compiled before the first run.

    ``eager_draws``: random numbers are those of eager.
    """
    regions: list[Region] = []

    def lower_part(part: Program, part_name: str) -> Executable:
        calling, found = cut(part, eager_draws=eager_draws)
        regions.extend(found)
        return executable.lower(calling, part_name)

    return _lower(program, name, lower_part), regions


def _lower(
    program: Program, name: str, lower_part: Callable[[Program, str], Executable]
) -> Executable | Plan:
    if program.signature.micro_batches > 1:
        return Plan.of(program, name, lower_part)
    return lower_part(program, name)
