"""``getattr`` and its like while a step is recorded: by which name they look, no code tells."""

from __future__ import annotations

import builtins
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

from ..._torch.names import standing_for
from ...guards import ABSENT
from ..chains.chains import Chain, ChainStep, Root, Use

_USES = {
    "getattr": Use.INSIDE,
    "hasattr": Use.INSIDE,
    "setattr": Use.STORED,
    "delattr": Use.STORED,
}


Looked = tuple[object, Chain, Use]
"""A value, the attribute of it that is looked at or replaced, and which of both."""
Told = Callable[[FrameType, Looked, object], None]
"""Told of the frame that asks, of what, and of the result; `ABSENT` before there is one."""


@contextmanager
def looked_up_by(told: Told, *, traced: bool) -> Iterator[None]:
    """Tell of each call in the block; ``traced``: of those alone that a traced line makes."""
    made = {n: _telling(getattr(builtins, n), use, told, traced) for n, use in _USES.items()}
    with standing_for(vars(builtins), made):
        yield


def _telling(plain: Any, use: Use, told: Told, traced: bool) -> Callable[..., object]:
    def function(*given: Any) -> object:
        frame = sys._getframe(1)
        if (traced and frame.f_trace is None) or len(given) < 2:
            return plain(*given)
        name = type(given[0]).__name__
        looked = given[0], Chain(Root.RETURNED, name, (ChainStep(False, str(given[1])),)), use
        told(frame, looked, ABSENT)
        value = plain(*given)
        told(frame, looked, value)
        return value

    function.__name__ = function.__qualname__ = plain.__name__
    function.__module__, function.__doc__ = "builtins", plain.__doc__
    return function
