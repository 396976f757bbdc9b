"""Which views keep the real entries in the corner, against arrays of their positions."""

from __future__ import annotations

import math

import torch
from hypothesis import given, settings, strategies as st

from torchgraph.buckets import dims
from torchgraph.buckets.dims import Dims, plain, reshape


def corner(found: Dims) -> torch.Tensor:
    """True at the real entries of a padded tensor, by the meaning of factors."""
    sizes = [padded for factors in found for _, padded in factors]
    marks = torch.zeros(sizes, dtype=torch.bool)
    marks[tuple(slice(0, real) for factors in found for real, _ in factors)] = True
    return marks.reshape([dims.size(factors)[1] for factors in found])


shapes = st.lists(st.sampled_from([1, 2, 3, 4, 6]), min_size=1, max_size=4)


@settings(max_examples=400, deadline=None, database=None)
@given(shape=shapes, place=st.integers(0, 3), data=st.data())
def test_a_view_keeps_the_corner_or_is_refused(shape: list[int], place: int, data: st.DataObject):
    place %= len(shape)
    real = data.draw(st.integers(1, shape[place]))
    before = [*shape[:place], real, *shape[place + 1 :]]
    start = plain(dims.pairs(before, shape))
    current, marks = start, corner(start)
    for _ in range(3):
        parts = data.draw(st.permutations(_splits(list(marks.shape))))
        wanted = parts[: data.draw(st.integers(1, len(parts)))][0]
        target = _sizes(current, wanted, before)
        if target is None:
            return
        found = reshape(current, target)
        if found is None:
            return
        marks = marks.reshape(wanted)
        assert torch.equal(corner(found), marks)
        current = found


def _splits(shape: list[int]) -> list[list[int]]:
    """Shapes with as many entries: joined neighbours, one dimension divided, flat."""
    found = [shape, [math.prod(shape)]]
    for i in range(len(shape) - 1):
        found.append([*shape[:i], shape[i] * shape[i + 1], *shape[i + 2 :]])
    for i, size in enumerate(shape):
        found += [[*shape[:i], size // d, d, *shape[i + 1 :]] for d in (2, 3) if size % d == 0]
    return found


def _sizes(current: Dims, wanted: list[int], before: list[int]) -> list[tuple[int, int]] | None:
    """What the same view would be for the real tensor: one dimension follows the count."""
    real = math.prod(before)
    for i, size in enumerate(wanted):
        rest = math.prod(wanted) // size if size else 0
        if rest and real % rest == 0 and real // rest <= size:
            return [(real // rest if j == i else s, s) for j, s in enumerate(wanted)]
    return None


def test_rows_behind_another_dimension_stay_two_factors():
    start = plain([(3, 3), (5, 8), (2, 2)])
    flat = reshape(start, [(15 * 2, 24 * 2)])
    assert flat == (((3, 3), (10, 16)),)
    assert reshape(flat, [(3, 3), (5, 8), (2, 2)]) == start
    assert reshape(flat, [(15, 24), (2, 2)]) == (((3, 3), (5, 8)), ((2, 2),))
    assert reshape(flat, [(6, 6), (5, 8)]) is None


def test_rows_in_front_are_one_factor():
    assert reshape(plain([(5, 8), (3, 3)]), [(15, 24)]) == (((15, 24),),)
    assert reshape(plain([(4, 8)]), [(2, 2), (2, 4)]) is None
    assert reshape(plain([(4, 8)]), [(2, 4), (2, 2)]) == (((2, 4),), ((2, 2),))
