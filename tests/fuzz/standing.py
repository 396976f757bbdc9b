"""A program with all that it needs to run alone."""

from __future__ import annotations

import inspect

from . import looking


def alone(text: str, tolerance: float) -> str:
    """``text`` behind the source of `looking`, and a line that prints the verdict."""
    header = inspect.getsource(looking)
    foot = f'if __name__ == "__main__":\n    print(verdict(run, {tolerance}))\n'
    return f"{header}\n\n{text}\n\n\n{foot}"
