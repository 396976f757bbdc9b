"""timm, where installed: models, layers and optimizers in a Graph, bitwise as in eager."""

from __future__ import annotations

import pytest

from .idioms import Idiom, assert_eager_is_sound, assert_steps_are_eagers
from .libraries_timm import TIMM

CASES = TIMM

# What a library warns of is its own matter; what the Graph warns of is not.
pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore"),
    pytest.mark.filterwarnings("error::torchgraph.errors.GraphWarning"),
]


def _name(case: Idiom) -> str:
    return case.name


@pytest.mark.parametrize("case", CASES, ids=_name)
def test_its_steps_are_eagers(case):
    assert_steps_are_eagers(case)


@pytest.mark.parametrize("case", CASES, ids=_name)
def test_eager_itself_repeats_bit_by_bit_and_learns(case):
    assert_eager_is_sound(case)
