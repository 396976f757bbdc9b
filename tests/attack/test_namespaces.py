"""Names of torch's that stand for something else while a step is recorded."""

from __future__ import annotations

import math
import sys
import threading
from typing import Any

import pytest
import torch

from torchgraph._torch import fused_kernels_as
from torchgraph._torch.names import standing_for
from torchgraph._torch.symbolic import symbolic_python_math

_OPTIMIZER: Any = sys.modules["torch.optim.optimizer"]


def test_other_threads_find_every_name_meanwhile() -> None:
    """No namespace of torch's is emptied, not for a moment."""
    lost: list[Exception] = []
    over = threading.Event()

    def look() -> None:
        while not over.is_set():
            try:
                _ = torch.ones, math.sqrt, _OPTIMIZER.torch
            except AttributeError as error:
                lost.append(error)

    threads = [threading.Thread(target=look) for _ in range(2)]
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        for thread in threads:
            thread.start()
        for _ in range(300):
            with fused_kernels_as({}), symbolic_python_math([vars(_OPTIMIZER)]):
                pass
    finally:
        sys.setswitchinterval(interval)
        over.set()
        for thread in threads:
            thread.join()
    assert not lost


def test_names_are_as_before_also_after_an_exception() -> None:
    space = {"kept": 1, "replaced": 2}

    def fails() -> None:
        with standing_for(space, {"replaced": 3, "new": 4}):
            assert space == {"kept": 1, "replaced": 3, "new": 4}
            space["mine"] = 5
            raise ValueError("out")

    with pytest.raises(ValueError, match="out"):
        fails()
    assert space == {"kept": 1, "replaced": 2, "mine": 5}
