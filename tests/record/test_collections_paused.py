"""Python's garbage collection while several threads record."""

from __future__ import annotations

import gc
import sys

import pytest

from torchgraph import collection
from torchgraph.collection import paused
from torchgraph.counters import counters


def test_it_is_paused_until_the_last_block_ends():
    first, second = paused(), paused()
    assert gc.isenabled()
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    assert not gc.isenabled()
    second.__exit__(None, None, None)
    assert gc.isenabled()


def test_who_has_none_gets_none():
    gc.disable()
    try:
        with paused():
            pass
        assert not gc.isenabled()
    finally:
        gc.enable()


@pytest.mark.skipif(sys.version_info >= (3, 14), reason="Python collects by increments")
@pytest.mark.parametrize("is_first", [True, False])
def test_a_first_capture_tips_no_full_collection(
    monkeypatch: pytest.MonkeyPatch, is_first: bool
) -> None:
    """Those after it do: else nothing would ever look at what they leave."""
    monkeypatch.setattr(collection._pauses, "_has_captured", not is_first)
    kept, full = [], []

    def collected(phase: str, found: dict[str, int]) -> None:
        if phase == "start" and found["generation"] == 2:
            full.append(found)

    gc.collect()
    threshold = gc.get_threshold()
    gc.callbacks.append(collected)
    try:
        with paused():
            counters.captures += 1
            kept += [[] for _ in range(len(gc.get_objects()))]
        old = set(map(id, gc.get_objects(generation=2)))
        assert {id(one) for one in kept} <= old
        gc.set_threshold(10, 2, 2)
        kept += [[] for _ in range(500)]  # makes each generation be collected
        assert bool(full) is not is_first
    finally:
        gc.set_threshold(*threshold)
        gc.callbacks.remove(collected)


def test_what_a_user_froze_stays_frozen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(collection._pauses, "_has_captured", False)
    gc.freeze()
    try:
        frozen = gc.get_freeze_count()
        with paused():
            counters.captures += 1
        assert gc.get_freeze_count() == frozen
    finally:
        gc.unfreeze()
