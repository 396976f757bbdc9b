"""What rounding explains of a difference between a program and eager, and what it does not."""

import pytest
import torch

from torchgraph.calls.spot_checks.schedule import SpotChecks
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


class Program:
    """What the schedule knows of a program."""

    runs = 0


@pytest.mark.parametrize("count", [1, 2, 3])
def test_a_due_look_waits_for_its_program(count):
    """Each of several long programs is looked at, whichever call it gets."""
    programs, schedule, looked = [Program() for _ in range(count)], SpotChecks("doubling"), []
    for hits in range(600):
        program = programs[hits % count]
        if hits >= schedule.from_hits and schedule.wants(program, programs, hits):
            if schedule.leaves_out(is_long=True):
                schedule.put_off(hits)
            else:
                schedule.made(program, programs, hits + 1)  # this call, too, is served
                looked.append((hits + 1, programs.index(program)))
        program.runs += 1
    assert len(looked) == 3, looked
    assert len({number for _, number in looked}) == count
    wanted = (32, 128, 512)
    assert all(0 <= call - due < 2 * count for (call, _), due in zip(looked, wanted, strict=True))
