"""Random programs leave what eager leaves. ``python -m tests.fuzz SEED`` prints and shrinks one."""

from __future__ import annotations

import pytest

from .programs import program
from .running import is_fault, verdict

QUICK, ALL, TOGETHER = 20, 2000, 20


def check(seeds: range, *, compiled: bool = False) -> None:
    found = {seed: verdict(*program(seed, compiled=compiled)) for seed in seeds}
    faults = {seed: v for seed, v in found.items() if is_fault(v)}
    assert not faults, "\n".join(f"python -m tests.fuzz {seed}: {v}" for seed, v in faults.items())
    replayed = [seed for seed, v in found.items() if v.startswith("same:")]
    assert len(replayed) >= 0.6 * len(found), found


@pytest.mark.parametrize("first", range(0, QUICK, TOGETHER))
def test_programs(first):
    check(range(first, first + TOGETHER))


@pytest.mark.slow
@pytest.mark.parametrize("first", range(QUICK, ALL, TOGETHER))
def test_more_programs(first):
    check(range(first, first + TOGETHER))


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("first", range(0, ALL // 20, 5))
def test_compiled_programs(first):
    check(range(first, first + 5), compiled=True)
