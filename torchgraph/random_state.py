"""States of random generators: saved, compared and set once more."""

from __future__ import annotations

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
        self._python = random.getstate()
        numpy: Any = sys.modules.get("numpy")
        self._numpy = None if numpy is None else numpy.random.get_state()

    def put_back(self) -> None:
        """Set the generators to these states."""
        super().put_back()
        random.setstate(self._python)
        if self._numpy is not None:
            numpy: Any = sys.modules["numpy"]
            numpy.random.set_state(self._numpy)


def _all_gpus() -> list[torch.device]:
    if not (torch.cuda.is_initialized() and torch.cuda.is_available()):
        return []
    return [torch.device("cuda", number) for number in range(torch.cuda.device_count())]
