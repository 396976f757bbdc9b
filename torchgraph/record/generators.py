"""The random generators that a step may move: their states, and those that it must leave alone."""

from __future__ import annotations

import random
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from ..errors import NoProgram, RandomStateTouched, SourceLine
from .threads import OtherThreads


def generators() -> tuple[Any, ...]:
    """The states of Python's, NumPy's and torch's generators."""
    numpy = sys.modules.get("numpy")
    array = numpy.random.get_state() if numpy is not None else None
    cuda = torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else None
    return random.getstate(), array, torch.default_generator.get_state(), cuda


def set_generators(states: tuple[Any, ...]) -> None:
    """Put them back."""
    python, array, cpu, cuda = states
    random.setstate(python)
    if array is not None:
        sys.modules["numpy"].random.set_state(array)
    torch.default_generator.set_state(cpu)
    if cuda is not None:
        torch.cuda.set_rng_state_all(cuda)


def own_generators(arguments: Any) -> list[torch.Generator]:
    """The generators among the arguments of an op."""
    args, kwargs = arguments
    return [value for value in (*args, *kwargs.values()) if isinstance(value, torch.Generator)]


def without_default(arguments: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The arguments of an op, where a default generator is none at all: None means it as well."""
    own: tuple[Any, ...] = (torch.default_generator, *torch.cuda.default_generators)
    defaults = {generator._cdata for generator in own}  # each look has an object of its own

    def known(value: Any) -> Any:
        return None if getattr(value, "_cdata", None) in defaults else value

    args, kwargs = arguments
    return tuple(map(known, args)), {name: known(value) for name, value in kwargs.items()}


ELSEWHERE = (
    "a random generator moved while the step ran: other threads that draw, or seed, keep it from "
    "being recorded. Give them a generator of their own, or draw before the call"
)
"""Why a call was not recorded."""


@contextmanager
def python_random_unchanged(
    disturbed: Callable[[str], None],
    line: Callable[[], SourceLine | None],
    refuse: Callable[[NoProgram], None],
) -> Iterator[None]:
    """``refuse`` a block that moves Python's generator, or NumPy's.

    ``disturbed``: told why, where other threads may have done so.
    """
    before, others = generators(), OtherThreads()
    yield
    after = generators()
    if after[0] != before[0] or _comparable(after[1]) != _comparable(before[1]):
        if others.ran():
            disturbed(ELSEWHERE)
            return
        error = RandomStateTouched(
            "build draws from Python's random or numpy.random: the draw would be the same at every "
            "step.",
            fix="draw outside of build and pass the result in, or use torch.rand.",
        )
        refuse(error)


def _comparable(state: Any) -> Any:
    """NumPy's state, without an array that would be compared element by element."""
    if not isinstance(state, tuple):  # of another bit generator than the usual one
        return repr(state)
    return [part.tobytes() if hasattr(part, "tobytes") else part for part in state]
