"""Modules written as third-party libraries write theirs train in a Graph bitwise as in eager."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from tests.support import same_bits, thinned

from . import (
    idioms_graphs,
    idioms_metric,
    idioms_numerics,
    idioms_optimizers,
    idioms_parameters,
    idioms_sequence,
    idioms_states,
    idioms_vision,
)
from .idioms import Idiom, assert_eager_is_sound, assert_steps_are_eagers

FAMILIES = (
    idioms_graphs,
    idioms_metric,
    idioms_numerics,
    idioms_optimizers,
    idioms_parameters,
    idioms_sequence,
    idioms_states,
    idioms_vision,
)
IDIOMS = [idiom for family in FAMILIES for idiom in family.IDIOMS]


def _name(idiom: Idiom) -> str:
    return idiom.name


@pytest.mark.parametrize(
    "idiom", thinned(IDIOMS, keep=[one for one in IDIOMS if not one.seldom]), ids=_name
)
def test_its_steps_are_eagers(idiom, monkeypatch):
    if idiom.served is None:
        monkeypatch.setenv("TORCHGRAPH_VERIFY", "fast")  # some have a program for each value
    assert_steps_are_eagers(idiom)


@pytest.mark.slow
@pytest.mark.parametrize("idiom", idioms_optimizers.OF_USERS, ids=_name)
def test_optimizers_of_users_move_convolutions_and_norms(idiom):
    assert_steps_are_eagers(idioms_optimizers.of_images(idiom))


@pytest.mark.slow
@pytest.mark.parametrize("idiom", IDIOMS, ids=_name)
def test_eager_itself_repeats_bit_by_bit_and_learns(idiom):
    assert_eager_is_sound(idiom)


@pytest.mark.slow
@pytest.mark.parametrize("idiom", IDIOMS, ids=_name)
def test_each_step_has_data_of_its_own(idiom):
    batches = idiom.batches()
    assert len(batches) >= 3
    for before, after in itertools.pairwise(batches):
        assert not all(
            same_bits(left, right)
            for left, right in zip(_leaves(before), _leaves(after), strict=False)
        )


def _leaves(batch: Any) -> list[Any]:
    if isinstance(batch, (list, tuple)):
        return [leaf for item in batch for leaf in _leaves(item)]
    return [batch]


def test_names_are_unique():
    names = [idiom.name for idiom in IDIOMS]
    assert len(set(names)) == len(names)
    assert len(names) >= 40
