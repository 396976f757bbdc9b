"""Models of third-party libraries, where installed, train in a Graph bitwise as in eager."""

from __future__ import annotations

import pytest

from torchgraph.errors import AttributeReadAndWritten
from torchgraph.testing import Setup, assert_parity

from .idioms import Idiom, adam, assert_eager_is_sound, assert_steps_are_eagers, itself
from .libraries import LIBRARIES, labels, with_memory
from .libraries_diffusers import DIFFUSERS
from .libraries_timm import TIMM

CASES = [*LIBRARIES, *DIFFUSERS, *TIMM]

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


@pytest.mark.filterwarnings("ignore::torchgraph.errors.AttributeWriteWarning")
def test_a_pointer_that_is_a_number_is_named_and_the_steps_before_stand():
    def make() -> Setup:
        model = with_memory()
        return Setup(model, adam(model), itself)

    batches = [labels(step) for step in range(2)]
    with pytest.raises(AttributeReadAndWritten, match=r"model\.loss\.queue_idx was 6 and is 0"):
        assert_parity(make, batches)  # the third call raises, after two that were compared
