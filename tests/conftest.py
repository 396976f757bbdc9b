"""What holds for every test: strict verification, one thread, a seed per test, no global traces."""

from __future__ import annotations

import gc
import random
import signal
import sys
import zlib
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from hypothesis import settings
from torch.distributions import Distribution

from tests.lower.conftest import interpreted as interpreted
from torchgraph._torch.patching import patching
from torchgraph.calls.spot_checks import schedule
from torchgraph.record.reads.line_reads import lines_of

torch.set_num_threads(1)

# The same examples each time: what `make test` finds, a change has made.
settings.register_profile("same", derandomize=True, deadline=None)
settings.load_profile("same")


def pytest_collectstart(collector: pytest.Collector) -> None:
    """What a module draws when it is imported depends on no other module."""
    if isinstance(collector, pytest.Module):
        torch.manual_seed(0)


@pytest.fixture(scope="module", autouse=True)
def _forgotten() -> Iterator[None]:
    """What the lines of a module read is of no use to the next: fewer objects to look through."""
    yield
    lines_of.cache_clear()


@pytest.fixture(autouse=True)
def _house(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("TORCHGRAPH_VERIFY", "strict")
    monkeypatch.setenv("TORCHGRAPH_BACKEND", "aten")
    seed = zlib.crc32(request.node.nodeid.encode())
    random.seed(seed)
    torch.manual_seed(seed)
    patching.forget_waits()
    Distribution.set_default_validate_args(__debug__)  # which torch.compile turns off for all
    before = _global_state()
    yield
    after = _global_state()
    assert after == before, "the test changed global state"


@pytest.fixture
def without_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each call that a program serves is run by it alone: for tests of what it does in which."""
    monkeypatch.setattr(schedule, "following", lambda *_: sys.maxsize)


@pytest.fixture
def small_heap() -> Iterator[None]:
    """Scans of Python's heap see only what the test makes, however many modules are imported."""
    gc.freeze()
    yield
    gc.unfreeze()


@pytest.fixture
def interruptible() -> Iterator[None]:
    """What runs in the background, or in a worker of xdist, is started with interrupts ignored."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def _global_state() -> dict[str, Any]:
    return {
        "default dtype": torch.get_default_dtype(),
        "default device": torch.get_default_device(),
        "grad mode": torch.is_grad_enabled(),
        "inference mode": torch.is_inference_mode_enabled(),
        "anomaly mode": torch.is_anomaly_enabled(),
        "autocast": (torch.is_autocast_enabled("cpu"), torch.is_autocast_enabled("cuda")),
        "deterministic": torch.are_deterministic_algorithms_enabled(),
        "threads": torch.get_num_threads(),
        "autograd threads": torch.autograd.is_multithreading_enabled(),
    }
