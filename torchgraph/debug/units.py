"""Numbers as text: bytes and counts with units, times with few digits."""

from __future__ import annotations

import math
from typing import NamedTuple


class Units(NamedTuple):
    """The names of some units, each so many times as large as the one before."""

    names: tuple[str, ...]
    base: int = 1000

    def scaled(self, value: float, reached: float = 1.0) -> tuple[float, str]:
        """The value in the largest unit that it reaches to this fraction, and the unit's name."""
        last, power = len(self.names) - 1, 0
        while power < last and value >= reached * self.base ** (power + 1):
            power += 1
        return value / self.base**power, self.names[power]


BYTES = Units(("B", "KiB", "MiB", "GiB", "TiB"), 1024)
COUNTS = Units(("", "K", "M", "G", "T", "P"))


def size(count: int) -> str:
    """``2.4 MiB``."""
    scaled, unit = BYTES.scaled(count)
    return f"{count} B" if scaled == count else f"{scaled:.1f} {unit}"


def short(value: float, units: Units = COUNTS) -> str:
    """``11.2 G`` of 1.12e10; ``896 `` of what reaches no unit."""
    scaled, unit = units.scaled(value)
    return f"{scaled:.3g} {unit}"


def digits(value: float, least: float = 0.01) -> str:
    """Three digits, two of what is below ``least``; never in powers of ten."""
    if value >= 100 or not value:
        return f"{value:.0f}"
    if value >= least:
        return f"{value:.3g}"
    return f"{value:.{1 - math.floor(math.log10(value))}f}"
