"""Python's garbage collection while several threads record."""

from __future__ import annotations

import gc

from torchgraph.collection import paused


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
