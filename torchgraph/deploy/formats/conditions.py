"""The branches that Python took on an optimizer's numbers, in words."""

from __future__ import annotations

from collections.abc import Collection

from ...guards import ValueGuard
from ...inspect.facts import decisions


def conditions(guard: ValueGuard) -> list[str]:
    """``optimizer.0.param_groups.0.momentum != 0``, ``not (...)``, each once."""
    found = set()
    for text, expected, _ in decisions(guard, map(str, guard.fqns)):
        if expected is False:
            text = f"not ({text})"
        elif expected is not True:
            text = f"{text} == {expected!r}"
        found.add(text)
    return sorted(found)


def moved(guard: ValueGuard, written: Collection[str]) -> str:
    """A state among ``written`` that a branch is about; empty for none."""
    return next((str(fqn) for fqn in guard.fqns if str(fqn) in written), "")
