"""What the tests of `torchgraph.oneflow._port` share: stored numbers, and how close a value is."""

import json
from pathlib import Path
from typing import Any

import numpy as np

NUMBERS = Path(__file__).with_name("numbers")


def stored(name: str) -> dict[str, Any]:
    """What a script in `numbers` wrote."""
    found: dict[str, Any] = json.loads((NUMBERS / name).read_text())
    return found


def difference(found: Any, expected: Any) -> float:
    """The largest difference of two nested lists of one shape, by the largest number in them."""
    left, right = np.asarray(found, dtype=float), np.asarray(expected, dtype=float)
    assert left.shape == right.shape
    return float(np.abs(left - right).max() / max(1e-9, np.abs(right).max()))
