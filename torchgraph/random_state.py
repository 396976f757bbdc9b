"""States of random generators: saved, compared and set once more."""

from __future__ import annotations

import ctypes
import random
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch


class TorchRandomState:
    """The states of torch's default generators: the CPU's, and those of GPUs.

    Args:
        gpus: whose generators are saved; None for all GPUs, once CUDA is initialized.
    """

    def __init__(self, gpus: Iterable[torch.device] | None = None) -> None:
        # Not torch.get_rng_state(): a recording puts a function of its own there.
        self._cpu = torch.default_generator.get_state()
        self._gpus = {
            gpu: torch.cuda.get_rng_state(gpu) for gpu in (_all_gpus() if gpus is None else gpus)
        }

    def equal(self, other: TorchRandomState) -> bool:
        """True when ``other``, of the same GPUs, holds the same states."""
        pairs = ((state, other._gpus[gpu]) for gpu, state in self._gpus.items())
        return all(torch.equal(*pair) for pair in ((self._cpu, other._cpu), *pairs))

    @property
    def gpus(self) -> set[torch.device]:
        """The GPUs whose generators were saved."""
        return set(self._gpus)

    def put_back(self) -> None:
        """Set the generators to these states."""
        torch.default_generator.set_state(self._cpu)
        for gpu, state in self._gpus.items():
            torch.cuda.set_rng_state(state, gpu)

    @contextmanager
    def again(self) -> Iterator[TorchRandomState]:
        """Draw from these states once more in the block; gives, and then sets, those before it."""
        before = TorchRandomState(self.gpus)
        with before.kept():
            self.put_back()
            yield before

    @contextmanager
    def kept(self) -> Iterator[None]:
        """Set the generators to these states when the block ends, also when it raises."""
        try:
            yield
        finally:
            self.put_back()


class RandomState(TorchRandomState):
    """The states of torch's default generators on all devices, of Python's and of NumPy's."""

    def __init__(self) -> None:
        super().__init__()
        self._python = _of_python.state()
        self._numpy = _of_numpy.state()

    def put_back(self) -> None:
        """Set the generators to these states."""
        super().put_back()
        random.setstate(self._python)
        if self._numpy is not None:
            _of_numpy.put_back(self._numpy)


class _OfNumPy:
    """The state of NumPy's default generator: reading it takes 40 us, comparing its memory one.

    Beside its memory the generator may keep the second of two normal numbers: while it does, it is
    read anew. While it does not, its memory is another one when it does again: that takes a draw.
    """

    def __init__(self) -> None:
        self._known: tuple[object, bytes, Any] | None = None
        """(generator, its memory, its state) as read last, where it kept no number."""

    def state(self) -> Any:
        """The state; None where NumPy is not loaded."""
        numpy: Any = sys.modules.get("numpy")
        if numpy is None:
            return None
        source = numpy.random.get_bit_generator()
        if type(source) is not numpy.random.MT19937:
            return numpy.random.get_state()
        memory = ctypes.string_at(source.ctypes.state_address, _MT19937_BYTES)
        known = self._known
        if known is not None and known[0] is source and known[1] == memory:
            return known[2]
        state = numpy.random.get_state()
        keeps_number = state[3]
        self._known = None if keeps_number else (source, memory, state)
        return state

    def put_back(self, state: Any) -> None:
        """Set the generator to a state."""
        self._known = None  # the memory may be the known one, and a number be kept all the same
        numpy: Any = sys.modules["numpy"]
        numpy.random.set_state(state)


class _OfPython:
    """The state of Python's generator, read anew only where its memory is another one."""

    def __init__(self) -> None:
        self._known: tuple[object, bytes, object, Any] | None = None
        """(generator, its memory, the number that it keeps, its state) as read last."""

    def state(self) -> Any:
        """The state."""
        source: Any = getattr(random.getstate, "__self__", None)
        if not _shows_memory or type(source) is not random.Random:
            return random.getstate()
        memory = _memory_of(source)
        known, keeps = self._known, vars(source).get("gauss_next")
        if known is not None and known[:3] == (source, memory, keeps):
            return known[3]
        self._known = (source, memory, keeps, random.getstate())
        return self._known[3]


_HEAD = object.__basicsize__


def _memory_of(generator: random.Random) -> bytes:
    """What a generator holds in C."""
    size = random.Random.__base__.__basicsize__  # type: ignore[union-attr]
    return ctypes.string_at(id(generator) + _HEAD, size - _HEAD)


def _found_to_show_memory() -> bool:
    """True where `_memory_of` tells states apart, as it does in CPython."""
    if sys.implementation.name != "cpython" or random.Random.__base__ is object:
        return False
    generator = random.Random(0)
    state, memory = generator.getstate(), _memory_of(generator)
    generator.random()
    other = _memory_of(generator)
    generator.setstate(state)
    return other != memory and _memory_of(generator) == memory


_shows_memory = _found_to_show_memory()
_of_python = _OfPython()
_MT19937_BYTES = 625 * 4
"""Its key of 624 words, and the position in it."""
_of_numpy = _OfNumPy()


def _all_gpus() -> list[torch.device]:
    if not (torch.cuda.is_initialized() and torch.cuda.is_available()):
        return []
    return [torch.device("cuda", number) for number in range(torch.cuda.device_count())]
