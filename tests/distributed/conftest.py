"""Tests that start several processes take longer where few processors are shared."""

from __future__ import annotations

from pathlib import Path

import pytest

_HERE = Path(__file__).parent
_SECONDS = 900


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if _HERE in item.path.parents and not item.get_closest_marker("timeout"):
            item.add_marker(pytest.mark.timeout(_SECONDS))
