"""Parts of `unsafe_split` and `unsafe_chunk` are views in eager, and share memory."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

import torchgraph as tg
from tests.support import settle

Function = Callable[[torch.Tensor], torch.Tensor | tuple[torch.Tensor, ...]]


class Compute(tg.Graph):
    def __init__(self, function: Function) -> None:
        super().__init__()
        self.function = function

    def build(self, x: torch.Tensor) -> torch.Tensor | tuple[torch.Tensor, ...]:
        return self.function(x)


def written_parts(x: torch.Tensor) -> torch.Tensor:
    first, second, third = (x * 2).unsafe_chunk(3, 1)
    first.sigmoid_()
    second.add_(1).tanh_()
    return first * second + third


def safe_parts(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    whole = x * 2
    first, second, _ = whole.split(5, 1)
    first.add_(1).sigmoid_()
    second.exp_()
    return whole + 1, first


def written_part_as_strided(x: torch.Tensor) -> torch.Tensor:
    first, *_ = (x * 2).unsafe_chunk(3, 1)
    first.add_(1)
    return first.as_strided((2, 5), (15, 1)).exp()


def a_view_of_another_part(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    first, second, _ = (x * 2).unsafe_split(5, 1)
    view = second[:, :2]
    first.add_(1).exp_()
    second.mul_(2)
    return first, view, second


def transposed_in_place(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    whole = (x * 2).transpose_(0, 1)
    whole.add_(1)
    return whole, whole[0]


def whole_read_after_a_part_was_written(x: torch.Tensor) -> torch.Tensor:
    whole = x * 2
    whole.unsafe_chunk(3, 1)[0].sigmoid_()
    return whole + 1


def part_read_after_the_whole_was_written(x: torch.Tensor) -> torch.Tensor:
    whole = x * 2
    part = whole.unsafe_split(5, 1)[1]
    whole.add_(1)
    return part * 2


def part_of_a_slice_that_is_written(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """As a packed GRU does: gates in place, rows of the result written one after the other."""
    rows = torch.zeros(6, 5)
    for number, half in enumerate((x * 2, x + 1)):
        reset, update, new = half.unsafe_chunk(3, 1)
        new = new.mul_(reset.add_(1).sigmoid_()).tanh_()
        rows[3 * number : 3 * number + 3].copy_(new.sub(update).mul_(update.sigmoid_()))
    return rows, half


@pytest.mark.parametrize(
    "function",
    [
        written_parts,
        safe_parts,
        a_view_of_another_part,
        transposed_in_place,
        whole_read_after_a_part_was_written,
        part_read_after_the_whole_was_written,
        written_part_as_strided,
        part_of_a_slice_that_is_written,
    ],
)
def test_bitwise_eager(function: Function) -> None:
    x = torch.randn(3, 15)
    expected, got = function(x.clone()), settle(Compute(function), x.clone())
    torch.testing.assert_close(got, expected, rtol=0, atol=0)
