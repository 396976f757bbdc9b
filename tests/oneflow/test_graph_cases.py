"""Steps of `nn.Graph`, written for OneFlow: here they give the numbers that OneFlow 0.9 gave."""

import json
import math
from pathlib import Path
from typing import Any

import pytest

import torchgraph.oneflow as flow
from torchgraph.errors import GraphError

from .cases import CASES

STORED = json.loads((Path(__file__).parent / "cases" / "oneflow-0.9.json").read_text())


def flat(value: Any, path: str = "") -> dict[str, Any]:
    """Leaves by path."""
    items = enumerate(value) if isinstance(value, list) else getattr(value, "items", tuple)()
    if not isinstance(value, (list, dict)):
        return {path: value}
    found = {path: f"{type(value).__name__} of {len(value)}"}
    for key, one in items:
        found |= flat(one, f"{path}.{key}")
    return found


def compare(got: Any, expected: Any, within: float) -> None:
    """Numbers as near as ``within`` of the largest one; all else, kinds too, the same."""
    mine, theirs = flat(got), flat(expected)
    assert list(mine) == list(theirs)
    numbers = [abs(one) for one in theirs.values() if type(one) is float and math.isfinite(one)]
    scale = max([1e-3, *numbers])
    for path, one in theirs.items():
        if type(one) is float:
            assert type(mine[path]) is float
            assert mine[path] == pytest.approx(one, rel=within, abs=within * scale), path
        else:
            assert mine[path] == one, path


def test_there_are_enough():
    assert set(STORED) == set(CASES)
    assert len(CASES) >= 140


@pytest.mark.parametrize("name", CASES)
def test_case(name):
    case = CASES[name]
    if case.refused:
        with pytest.raises(GraphError):
            case.run(flow)
        return

    got = case.run(flow)

    expected = dict(STORED[name])
    for key, (reason, right) in case.bugs.items():
        assert reason
        mine, theirs = got.pop(key), expected.pop(key)
        with pytest.raises(AssertionError):
            compare(mine, theirs, case.within)
        compare(mine, right(STORED) if callable(right) else right, case.within)
    assert list(got) == list(expected)
    for key, value in expected.items():
        compare(got[key], value, case.within)
