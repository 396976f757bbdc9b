"""Comparison of two values: what is finite on both sides, and what is not."""

import math

import pytest
import torch

from torchgraph.verify.compare import Gap, gap, largest

INF, NAN = math.inf, math.nan


@pytest.mark.parametrize(
    ("left", "right", "found"),
    [
        ([1.0, 2.0], [1.0, 3.0], Gap(1.0)),
        ([1.0, NAN], [1.0, NAN], Gap()),
        ([1.0, NAN], [1.5, 2.0], Gap(0.5, 1)),
        ([INF, 1.0], [INF, 1.5], Gap(0.5)),
        ([INF, 1.0], [-INF, 1.0], Gap(0.0, 1)),
        ([INF, -INF], [1.0, -INF], Gap(0.0, 1)),
    ],
)
def test_values_that_are_not_finite(left, right, found):
    assert gap(torch.tensor(left), torch.tensor(right)) == found


@pytest.mark.parametrize("place", [0, 150_000, 399_999])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_large_values_are_compared_to_their_end(place, dtype):
    left = torch.zeros(400_000, dtype=dtype)
    right = left.clone()
    right[place] = 2.0
    assert gap(left, right) == Gap(2.0)
    assert gap(left.view(2, -1).t(), right.view(2, -1).t()) == Gap(2.0)
    right[place] = NAN
    assert gap(left, right) == Gap(0.0, 1)


def test_the_largest_magnitude():
    assert largest(torch.tensor([-3, 2])) == 3.0
    assert largest(torch.tensor([1.0, -INF, NAN])) == 1.0
    assert largest(torch.tensor([-1.5], dtype=torch.bfloat16)) == 1.5
    assert largest(torch.tensor([3 + 4j])) == 5.0
    assert largest(torch.tensor([])) == 0.0
    assert largest(torch.tensor([-(2**31)], dtype=torch.int32)) == 2.0**31
