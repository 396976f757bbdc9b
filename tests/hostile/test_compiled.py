"""A tenth of the hostile steps, compiled by Inductor: eager's numbers within rounding."""

from __future__ import annotations

import importlib
from pathlib import Path

import pytest

AREAS = sorted(set(Path(__file__).parent.glob("test_*.py")) - {Path(__file__)})


def tenth():
    """Of the cases under ``tg.step`` that have no known fault and no error."""
    areas = [importlib.import_module(f"tests.hostile.{path.stem}") for path in AREAS]
    cases = [one for area in areas for one in getattr(area, "case", ()) if not _has_fault(one)]
    plain = [one for one in cases if one.values[0].form == "step"]
    plain = [one for one in plain if not one.values[0].refused][::10]
    return [pytest.param(*one.values, id=one.id) for one in plain]


def _has_fault(case):
    return any(mark.name == "xfail" for mark in case.marks)


@pytest.mark.slow
@pytest.mark.parametrize("case", tenth())
def test_compiled(case):
    case._replace(form="compiled", tolerance=1e-4).check()
