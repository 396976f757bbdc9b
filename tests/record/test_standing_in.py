"""Names that stand for builtins while a step is recorded, in namespaces of the user's modules."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torchgraph._torch.symbolic import also_in, standing_in


def names(namespace: Mapping[str, Any], code: object) -> dict[str, object]:
    return {"type": "ours"}


def test_nothing_stays_where_a_block_ends_after_the_one_around_it():
    """An error that is kept does that to blocks of generators."""
    modules: list[dict[str, Any]] = [{}, {}, {}]
    outer, inner = standing_in([modules[0]], names), standing_in([modules[1]], names)
    outer.__enter__()
    inner.__enter__()
    assert modules == [{"type": "ours"}, {"type": "ours"}, {}]
    outer.__exit__(None, None, None)
    inner.__exit__(None, None, None)
    also_in(modules[2], also_in.__code__)
    assert modules == [{}, {}, {}]


def test_what_runs_in_the_block_meets_them_until_it_ends():
    namespace: dict[str, Any] = {"own": 1}
    with standing_in([], names):
        also_in(namespace, also_in.__code__)
        assert namespace == {"own": 1, "type": "ours"}
    assert namespace == {"own": 1}
