"""The training features together: a covering array of strength 3 over the grid of their settings.

    python -m tests.features.covering

prints it. Every three settings of three factors are together in some row.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence

Grid = Mapping[str, Sequence[str]]
Row = tuple[str, ...]

GRID: Grid = {
    "precision": ("float32", "bfloat16", "float16 + scaler"),
    "k": ("1", "4"),
    "checkpointing": ("no", "module", "budget"),
    "clipping": ("no", "group", "whole"),
    "optimizer": ("SGD, momentum", "AdamW"),
    "model": ("MLP", "ConvNet", "GPT"),
}


def interactions(row: Row, strength: int) -> Iterator[tuple[tuple[int, str], ...]]:
    """What a row covers: each choice of so many factors, with the row's settings of them."""
    return itertools.combinations(enumerate(row), strength)


def covering_array(grid: Grid, strength: int) -> list[Row]:
    """Rows of settings that cover every choice of ``strength`` factors and settings of them.

    Greedy: the next row is the one of the whole grid that covers most of what is left, the first
    among equals. Not the smallest array there is, but the same each time.
    """
    rows = list(itertools.product(*grid.values()))
    waiting = {found for row in rows for found in interactions(row, strength)}
    chosen: list[Row] = []
    while waiting:
        best = max(rows, key=lambda row: sum(i in waiting for i in interactions(row, strength)))
        chosen.append(best)
        waiting.difference_update(interactions(best, strength))
    return chosen


ARRAY = covering_array(GRID, 3)


def main() -> None:
    """Print the array as a table."""
    widths = [max(map(len, (name, *settings))) for name, settings in GRID.items()]
    for row in (tuple(GRID), *ARRAY):
        cells = zip(row, widths, strict=True)
        print("  ".join(cell.ljust(width) for cell, width in cells).rstrip())
    print(f"{len(ARRAY)} rows")


if __name__ == "__main__":
    main()
