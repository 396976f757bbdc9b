"""OneFlow's own scripts run unchanged where a checkout of them is at hand."""

from __future__ import annotations

import math

import pytest

from .as_they_stand import MODELS, SCRIPTS, checkout, losses

pytestmark = pytest.mark.slow


@pytest.mark.timeout(1200)
@pytest.mark.parametrize("name", SCRIPTS)
def test_a_script_as_it_stands(name, tmp_path):
    models = checkout(MODELS)
    if models is None:
        pytest.skip(f"{MODELS} names no checkout of OneFlow's models")
    one = SCRIPTS[name]
    for package in one.needs:
        pytest.importorskip(package)

    found = losses(one, models, tmp_path)

    assert all(math.isfinite(loss) for loss in found)
    if one.falls:
        assert sum(found[-5:]) < sum(found[:5])
