"""Containers of optimizers that a step replaces: ``group["c"] = [*group["c"]]``."""

from __future__ import annotations

import sys
from collections import OrderedDict, defaultdict

from ...live.step import Nested, Step

_KINDS = (dict, list, OrderedDict, defaultdict)
"""Classes of which a replay makes a new container."""
_OWN = 3
"""References to a container that one place holds: the place, `Nested`, and the call that counts."""


def renewed(step: Step, after: Step) -> tuple[frozenset[str], str]:
    """The names of the containers that replays replace by new ones, and why none can.

    Args:
        step: as it began; ``after``: as it ended.
    """
    before = {one.fqn: one for one in step.nested}
    known = {id(one.value) for one in step.nested}
    found = []
    for one in after.nested:
        was = before.get(one.fqn)
        if was is None or was.root is not one.root or was.value is one.value:
            continue
        if why := _why_not(one, was, known):
            return frozenset(), why
        found.append(one.fqn)
    return frozenset(found), ""


def _why_not(one: Nested, was: Nested, known: set[int]) -> str:
    kind = type(one.value).__name__
    if id(one.value) in known or sys.getrefcount(one.value) > _OWN:
        return f"{one.fqn} becomes a {kind} that is held elsewhere too: write into the one there"
    if type(one.value) is not type(was.value) or type(one.value) not in _KINDS:
        return f"{one.fqn} becomes another {kind} in each step: write into the one there"
    return ""
