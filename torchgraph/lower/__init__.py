"""Program → Executable: Python over ATen ops, or over regions that Inductor compiles.

Touches: copies of a functional program.
Never: a live tensor, the program that it was given.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

from ..ir.program import Program
from ..options.options import Options
from .halves.halves import Halves as Halves, halve as halve
from .halves.scan import scan as scan
from .inductor.compilation import Compilation as Compilation, CompilationFailed as CompilationFailed
from .inductor.disk_cache import DiskCache as DiskCache
from .lowered import Lowered as Lowered
from .plan import Plan, packed as packed
from .regions.cut import cut
from .regions.region import Crossing as Crossing, Region
from .split import split as split
from .write import executable
from .write.executable import Executable, LowerPart as LowerPart

__all__ = [
    "Around",
    "Compilation",
    "CompilationFailed",
    "Crossing",
    "DiskCache",
    "Executable",
    "Halves",
    "LowerPart",
    "Lowered",
    "Part",
    "Plan",
    "Region",
    "halve",
    "lower",
    "lower_to_regions",
    "packed",
    "plain",
    "scan",
    "split",
]

Part = Callable[[Program, str], Lowered]
"""What stands in the place of a `LowerPart`."""
Around = Callable[[LowerPart], Part]
"""Puts something else around the lowering of a part."""
_DEFAULT = Options()


def plain(part: LowerPart) -> Part:
    """Nothing is put around it."""
    return part


def lower(
    program: Program, name: str, options: Options = _DEFAULT, around: Around = plain
) -> Lowered:
    """One executable, or the plan of a step that accumulates gradients.

    Of ``options``, those about memory count.

    Raises:
        NotSupported: the step cannot be split into micro-batches and an update.
    """
    lower_part = functools.partial(executable.lower, options=options)
    return _lower(program, name, around(lower_part))


def lower_to_regions(
    program: Program, name: str, *, eager_draws: bool, around: Around = plain
) -> tuple[Lowered, list[Region]]:
    """As `lower`; most of it are calls of regions, which have to be compiled before the first run.

    ``eager_draws``: random numbers are those of eager.
    """
    regions: list[Region] = []
    parts: dict[str, int] = {}

    def lower_part(part: Program, part_name: str) -> Executable:
        calling, found = cut(part, eager_draws=eager_draws)
        for region in found:
            region.part = parts.setdefault(part_name, len(parts))
        regions.extend(found)
        return executable.lower(calling, part_name)

    return _lower(program, name, around(lower_part)), regions


def _lower(program: Program, name: str, lower_part: Part) -> Lowered:
    if program.signature.micro_batches > 1:
        return Plan.of(program, name, lower_part)
    return lower_part(program, name)
