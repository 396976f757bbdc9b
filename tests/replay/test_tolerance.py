"""What rounding explains of a difference between a program and eager, and what it does not."""

import pytest
import torch

from torchgraph.verify.tolerance import Update, agree


def allowed(moves: dict[str, torch.Tensor], name: str) -> tuple[float, float]:
    before = {key: torch.zeros_like(value) for key, value in moves.items()}
    pairs = [(key, value, value) for key, value in moves.items()]
    return Update.of(pairs, before, list(moves)).allowed(name)


def agrees(dtype: torch.dtype, weights: float, step: float, other: float) -> bool:
    w, b = torch.full((1000, 1000), weights, dtype=dtype), torch.full((100,), step, dtype=dtype)
    got = torch.full((100,), other, dtype=dtype)
    return agree(b, got, torch.zeros_like(b), False, *allowed({"w": w, "b": b}, "b"))


FLOATS = [torch.float64, torch.float32, torch.bfloat16, torch.float16]


@pytest.mark.parametrize("dtype", FLOATS)
def test_a_step_the_other_way_is_no_rounding(dtype):
    assert not agrees(dtype, 1e-2, 1e-2, -1e-2)


def test_a_step_that_is_short_beside_others_is_none_either():
    assert not agrees(torch.float32, 1e2, 1e-1, -1e-1)


@pytest.mark.parametrize("dtype", FLOATS)
def test_a_gradient_of_zero_moves_by_the_rounding_of_others(dtype):
    tiny = 4 * min(torch.finfo(dtype).eps, torch.finfo(torch.float32).eps) * 1e-2
    assert agrees(dtype, 1e-2, tiny, -tiny)
