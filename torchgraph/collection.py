"""Python's garbage collection, for the length of a block without it."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

from .counters import counters


@contextmanager
def paused() -> Iterator[None]:
    """Collect nothing in the block; as it was afterwards.

    For what makes many objects and no garbage: collections are a quarter of the time then. A
    program lives long: what it is made of is looked at once, and not in each collection to come.
    """
    enabled, made = gc.isenabled(), counters.captures
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            if counters.captures > made:
                gc.collect(1)
            gc.enable()
