"""The random generators that a step may move: their states, and those that it must leave alone."""

from __future__ import annotations

import random
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from ..errors import RandomStateTouched


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


@contextmanager
def python_random_unchanged(line: Callable[[], Any]) -> Iterator[None]:
    """Refuse a block that moves Python's generator, or NumPy's."""
    before = generators()
    yield
    after = generators()
    if after[0] != before[0] or _comparable(after[1]) != _comparable(before[1]):
        raise RandomStateTouched(
            "build draws from Python's random or numpy.random: the draw would be the same at every "
            "step.",
            fix="draw outside of build and pass the result in, or use torch.rand.",
        )


def _comparable(state: Any) -> Any:
    """NumPy's state, without an array that would be compared element by element."""
    if not isinstance(state, tuple):  # of another bit generator than the usual one
        return repr(state)
    return [part.tobytes() if hasattr(part, "tobytes") else part for part in state]
