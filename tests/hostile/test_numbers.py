"""Numbers and containers that Python reads, and that change between calls."""

from __future__ import annotations

import pytest

from tests.hostile.kit import Cases, net, trains

case = Cases()


@case(forms="step graph")
def closure_number():
    model, scale = net(), 1.0

    def change():
        nonlocal scale
        scale = 3.0

    return trains(model, lambda x, y: (model(x) - y).square().mean() * scale, before={5: change})


@pytest.mark.parametrize("case", case)
def test_numbers(case):
    case.check()
