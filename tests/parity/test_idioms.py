"""Modules written as third-party libraries write theirs train in a Graph bitwise as in eager."""

from __future__ import annotations

import itertools
import warnings
from typing import Any

import pytest
import torch
from torch import nn

from tests.support import same_bits
from torchgraph.errors import AttributeWriteWarning
from torchgraph.testing import Setup, assert_parity

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
from .idioms import Batch, Idiom

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


def _setup(idiom: Idiom) -> Setup:
    model = idiom.model()
    optimizer = idiom.optimizer(model) if idiom.optimizer is not None else None
    return Setup(model, optimizer, idiom.loss)


def _train(idiom: Idiom, batches: list[Batch]) -> tuple[nn.Module, list[Any], list[Any]]:
    """Eager's model, losses, and what else it leaves: states, slots, the generator."""
    torch.manual_seed(0)
    model, optimizer, loss, _ = _setup(idiom)
    losses, left = [], []
    for batch in batches:
        value = loss(model, *batch)
        if optimizer is not None:
            value.backward()
            optimizer.step()
            optimizer.zero_grad()
        losses.append(value.detach())
    left += [t.detach() for t in (*model.state_dict().values(), *idiom.outside(model))]
    if optimizer is not None:
        left += [value for slots in optimizer.state.values() for value in slots.values()]
    return model, losses, [*left, torch.get_rng_state()]


@pytest.mark.parametrize("idiom", IDIOMS, ids=_name)
def test_its_steps_are_eagers(idiom):
    made: list[Setup] = []

    def make() -> Setup:
        made.append(_setup(idiom))
        return made[-1]

    with warnings.catch_warnings():
        if idiom.writes:
            warnings.simplefilter("ignore", AttributeWriteWarning)
        assert_parity(make, idiom.batches())

    eager, graphed = (idiom.outside(side.model) for side in made)
    assert len(eager) == len(graphed)
    for expected, got in zip(eager, graphed, strict=True):
        assert type(got) is type(expected)
        assert same_bits(expected.detach(), got.detach())


@pytest.mark.parametrize("idiom", IDIOMS, ids=_name)
def test_eager_itself_repeats_bit_by_bit_and_learns(idiom):
    """Without this, a difference from eager would say nothing about the Graph."""
    batches = idiom.batches()
    model, losses, left = _train(idiom, batches)
    _, again, left_again = _train(idiom, batches)
    assert len(left) == len(left_again)
    for first, second in zip((*losses, *left), (*again, *left_again), strict=True):
        assert same_bits(first, second)
    assert all(torch.isfinite(loss) for loss in losses)
    assert len({loss.item() for loss in losses}) > 1, "the steps do not differ"
    if idiom.optimizer is not None:
        torch.manual_seed(0)
        fresh = dict(_setup(idiom).model.named_parameters())
        assert any(not torch.equal(fresh[n], p) for n, p in model.named_parameters())


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
