"""For tests of what reports, labels and pages say of calls."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def _served_by_programs(without_looks: None) -> None:
    """What is shown here is of calls that a program runs alone."""
