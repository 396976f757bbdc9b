"""The state of all random generators that a step may draw from."""

from __future__ import annotations

import random
import sys
from typing import Any

import torch


class RandomState:
    """torch's default generators, Python's and NumPy's, as they are now."""

    def __init__(self) -> None:
        self._cpu = torch.get_rng_state()
        cuda = torch.cuda.is_available() and torch.cuda.is_initialized()
        self._gpus = torch.cuda.get_rng_state_all() if cuda else []
        self._python = random.getstate()
        numpy: Any = sys.modules.get("numpy")
        self._numpy = None if numpy is None else numpy.random.get_state()

    def put_back(self) -> None:
        """Set them to the states that they had."""
        torch.set_rng_state(self._cpu)
        if self._gpus:
            torch.cuda.set_rng_state_all(self._gpus)
        random.setstate(self._python)
        if self._numpy is not None:
            numpy: Any = sys.modules["numpy"]
            numpy.random.set_state(self._numpy)
