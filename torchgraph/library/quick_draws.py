"""Bernoulli draws of the CPU's default generator, many at a time: the bits that torch draws.

Dropout's draws are a tenth of a large step where torch draws one number after the other: 8 to 15 ns
each. ``torchgraph::bernoulli_from_`` computes the same numbers by vector code. Whether it does is
tried out, once in a process: where torch draws otherwise, as by oneMKL, its own kernel stays.
"""

from __future__ import annotations

import functools
import sys
import threading
from collections.abc import Callable
from typing import Any

import torch

from .._torch import OpOverload
from . import draws
from .definition import define, has_kernel

_LEAST = 4096
"""Elements for which it pays: asking for a generator's state takes as long as a thousand draws."""
_TRIED = 1500
"""Elements drawn to compare: more than twice as many words as the generator makes at a time."""


def _from_state(state: torch.Tensor, out: torch.Tensor, p: float) -> None:
    generator = torch.Generator()
    generator.set_state(state)
    out.bernoulli_(p, generator=generator)
    state.copy_(generator.get_state())


bernoulli_from_ = define(
    "bernoulli_from_(Tensor(a!) state, Tensor(b!) out, float p) -> ()", _from_state
)
"""Fill a contiguous tensor of the CPU as ``out.bernoulli_(p)`` does.

Args:
    state: of the generator, as `torch.Generator.get_state` gives it: uint8; it is moved on.
    out: filled with 0 and 1; bool, an integer or a floating-point dtype of 16 bits or more.
    p: the probability of 1.

Raises:
    RuntimeError: a state that is none, an ``out`` that has gaps or another dtype, or p outside of
        [0, 1].
"""


@functools.cache
def is_the_same(dtype: torch.dtype) -> bool:
    """True where compiled code draws what torch does, of a dtype, and leaves the same state."""
    if not has_kernel(bernoulli_from_, torch.device("cpu")):
        return False
    generator = torch.Generator().manual_seed(1)
    try:
        with torch.device("cpu"):  # whatever the default device is
            torch.empty(3).uniform_(generator=generator)  # an odd number of words
            ours, theirs = (torch.empty(_TRIED, dtype=dtype) for _ in range(2))
        state = generator.get_state()
        bernoulli_from_(state, ours, 0.3)
        theirs.bernoulli_(0.3, generator=generator)
        return torch.equal(ours, theirs) and torch.equal(state, generator.get_state())
    except RuntimeError:
        return False


def _alone() -> bool:
    """True where no other thread of Python's draws: the generator is free between two of its calls.

    Those of `multiprocessing`'s queues, as of a DataLoader with workers, and tqdm's never draw.
    """
    others = [one for one in threading.enumerate() if one is not threading.current_thread()]
    return len(sys._current_frames()) == len(others) + 1 and all(map(_never_draws, others))


def _never_draws(thread: threading.Thread) -> bool:
    return thread.name == "QueueFeederThread" or type(thread).__module__ == "tqdm._monitor"


def _quick(own: OpOverload, empty: Callable[[torch.Tensor], torch.Tensor]) -> Callable[..., Any]:
    def bernoulli(like: torch.Tensor, p: float, **more: object) -> Any:
        if (
            more
            or like.device.type != "cpu"
            or like.numel() < _LEAST
            or not like.is_contiguous()
            or not 0 <= p <= 1
            or not is_the_same(like.dtype)
            or not _alone()
        ):
            return own(like, p, **more)
        out = empty(like)
        state = torch.default_generator.get_state()
        bernoulli_from_(state, out, p)
        torch.default_generator.set_state(state)
        return out

    return bernoulli


def _contiguous(like: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(like, memory_format=torch.contiguous_format)


KERNELS: dict[OpOverload, Callable[..., object]] = {
    torch.ops.aten.bernoulli.p: _quick(torch.ops.aten.bernoulli.p, _contiguous),
    draws.bernoulli: _quick(draws.bernoulli, draws.as_strided_like),
}
"""What programs call in place of these ops."""
