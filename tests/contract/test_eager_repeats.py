"""Where a program is not what eager is, eager is asked first whether it repeats itself."""

import time

import pytest
import torch
from torch import Tensor, nn

import torchgraph as tg
from tests.support import replay_of
from torchgraph.errors import ConfirmWarning
from torchgraph.ir.program import Role
from torchgraph.verify.repeats import AGAIN, ELSEWHERE, first_unrepeated

CALLS = [0]


def define(function):
    name = f"torchgraph_repeats::{function.__name__}"
    op = torch.library.custom_op(name, function, mutates_args=())
    op.register_fake(torch.empty_like)
    op.register_autograd(lambda ctx, gradient: gradient)
    return op


@define
def counted(x: Tensor) -> Tensor:
    CALLS[0] += 1
    return x + CALLS[0]


@define
def timed(x: Tensor) -> Tensor:
    return x + time.perf_counter_ns() % 100_000


@define
def unfilled(x: Tensor) -> Tensor:
    made = torch.empty_like(x)
    made[0] = x[0]
    return made


@define
def by_address(x: Tensor) -> Tensor:
    return x + x.data_ptr() // 64 % 1009


@define
def by_alignment(x: Tensor) -> Tensor:
    return x + float(x.data_ptr() % 64 > 0)


@define
def counted_later(x: Tensor) -> Tensor:
    CALLS[0] += 1
    return x + max(CALLS[0] - 20, 0)


def step_of(op, momentum=0.0, fused=False):
    torch.manual_seed(0)
    model = nn.Linear(16, 10)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=momentum, fused=fused)

    @tg.step
    def step(x):
        optimizer.zero_grad()
        hidden = model(x)
        loss = op(hidden).square().mean()
        loss.backward()
        optimizer.step()
        return loss.detach()

    step.config.set_backend("aten")
    step.config.set_fallback("eager")
    return step


def run(step, count):
    for _ in range(count):
        step(torch.randn(5, 16))
    return step


@pytest.mark.parametrize("op", [counted, timed])
def test_an_op_that_gives_other_bits_is_named(op):
    step, CALLS[0] = step_of(op), 0
    with pytest.warns(ConfirmWarning) as found:
        run(step, 5)
    text = str(found[0].message)
    assert f"since eager does not repeat itself: torchgraph_repeats.{op._name}" in text
    assert "test_eager_repeats" in text
    assert "fault of torchgraph" not in text
    assert "does not repeat itself" in step.report().calls.eager[0].why


def test_a_later_look_names_it_too():
    step, CALLS[0] = step_of(counted_later), 0
    step.config.set_look_again(4)
    with pytest.warns(ConfirmWarning, match="ran in eager to be compared(.|\n)*not repeat itself"):
        run(step, 60)


def odd_op_of(step):
    replay, batch = replay_of(run(step, 5)), iter([torch.randn(5, 16)])
    values = [next(batch) if leaf.role is Role.INPUT else leaf.read() for leaf in replay.leaves]
    return first_unrepeated(replay.captured.program, values)


@pytest.mark.filterwarnings("ignore::torchgraph.errors.ConfirmWarning")
@pytest.mark.parametrize(
    ("op", "how"), [(by_alignment, ELSEWHERE), (by_address, AGAIN), (unfilled, AGAIN)]
)
def test_how_an_op_does_not_repeat_itself(op, how):
    found = odd_op_of(step_of(op))
    assert found is not None
    assert (found.op, found.how) == (f"torchgraph_repeats.{op._name}.default", how)


def test_what_repeats_itself_is_not_excused():
    assert odd_op_of(step_of(torch.relu, momentum=0.9, fused=True)) is None


def test_a_check_says_so():
    step, CALLS[0] = step_of(counted_later), 0
    run(step, 5)
    CALLS[0] = 30
    found = step.check(torch.randn(5, 16))
    assert not found.repeatable
    assert "It may be noise: eager does not repeat itself: torchgraph_repeats" in str(found)
