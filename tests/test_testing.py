"""torchgraph.testing catches what it is for: each test feeds it two sides that differ."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import pytest
import torch
from torch import nn

from torchgraph.errors import ConfirmWarning, ParityError, VerifyError
from torchgraph.ir.program import Program
from torchgraph.ir.rewriter import Rewriter
from torchgraph.passes import Pass
from torchgraph.testing import Setup, assert_parity, check_pass, counters

from .support import build, find

aten = torch.ops.aten
Change = Callable[[nn.Module, torch.optim.Optimizer], Any]


class _Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(3, 2)
        self.register_buffer("seen", torch.zeros(()))
        self.register_buffer("table", torch.ones(2, 3))
        self.limit = 99

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.seen.add_(1)
        return self.fc(x) * torch.where(self.seen > self.limit, 2.0, 1.0)


def _loss(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
    return model(x).square().sum()


def _maker(change: Change | None = None, **options: Any) -> Callable[[], Setup]:
    """Makes two setups; ``change`` is applied to the second one, the Graph's."""
    count = itertools.count()

    def make() -> Setup:
        model = _Net()
        optimizer = torch.optim.AdamW(model.parameters(), **options)
        if next(count) and change is not None:
            change(model, optimizer)
        return Setup(model, optimizer, _loss)

    return make


def _batches(count: int = 3) -> list[tuple[torch.Tensor]]:
    return [(torch.randn(4, 3),) for _ in range(count)]


def _nudge(model: nn.Module, optimizer: Any) -> None:
    with torch.no_grad():
        model.fc.bias[0] += 1e-6


def _other_rate(model: nn.Module, optimizer: Any) -> None:
    optimizer.param_groups[0]["lr"] = 0.01


def _extra_setting(model: nn.Module, optimizer: Any) -> None:
    optimizer.param_groups[0]["note"] = "mine"


def _other_buffer(model: nn.Module, optimizer: Any) -> None:
    model.seen += 1


def _other_dtype(model: nn.Module, optimizer: Any) -> None:
    model.seen = model.seen.double()


def _other_stride(model: nn.Module, optimizer: Any) -> None:
    model.table = model.table.t().contiguous().t()


def _draw(model: nn.Module, optimizer: Any) -> None:
    def hook(module: nn.Module, args: Any) -> None:
        torch.rand(1)

    model.register_forward_pre_hook(hook)


def test_equal_sides_pass():
    graph = assert_parity(_maker(), _batches())
    assert graph.is_compiled
    assert graph.training


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (_nudge, "step 0: loss: differs from eager by up to"),
        (_other_rate, "step 0: fc.weight: differs from eager by up to"),
        (_extra_setting, "step 0: param_groups.0: eager has the entries"),
        (_other_buffer, "step 0: seen: differs from eager by up to 1"),
        (_other_dtype, "step 0: seen: eager has .*float32.*the Graph .*float64"),
        (_other_stride, "step 0: table: eager has .*the Graph"),
        (_draw, "step 0: RNG state: differs"),
    ],
)
def test_different_sides_fail(change, message):
    with pytest.raises(ParityError, match=message):
        assert_parity(_maker(change), _batches())


@pytest.mark.parametrize("count", [1, 2, 3])
def test_it_goes_on_until_a_program_serves(count):
    with counters.expect(captures=1, replays=1):
        assert_parity(_maker(), _batches(count))


def test_a_step_that_no_program_serves_proves_nothing():
    def make() -> Setup:
        return Setup(nn.Linear(3, 2), None, lambda model, x: torch.sin(model(x)).sum())

    def spoil(config: Any) -> None:
        config.passes.insert(_Rewrite(aten.tan.default))

    with (
        pytest.warns(ConfirmWarning, match="output 0 differs"),
        pytest.raises(ParityError, match="no program"),
    ):
        assert_parity(make, _batches(), configure=spoil)
    assert_parity(make, _batches())


def test_later_steps_are_compared():
    def from_the_second_step(model: nn.Module, optimizer: Any) -> None:
        model.limit = 1

    with pytest.raises(ParityError, match="step 1: loss"):
        assert_parity(_maker(from_the_second_step), _batches())


def test_tolerance_is_asked_for():
    batches = _batches(1)
    with pytest.raises(ParityError):
        assert_parity(_maker(_nudge, lr=1e-5), batches)
    assert_parity(_maker(_nudge, lr=1e-5), batches, rtol=1e-3, atol=1e-3)


def test_evaluation_has_no_optimizer():
    def make() -> Setup:
        return Setup(_Net(), None, _loss)

    assert not assert_parity(make, _batches(2)).training


@dataclass(frozen=True)
class _Rewrite(Pass):
    """Calls ``new`` in the place of ``sin``."""

    name: ClassVar[str] = "rewrite"
    new: Any
    claims: bool = True

    def exact(self, program: Program) -> bool:
        return self.claims

    def apply(self, program: Program, edit: Rewriter) -> None:
        node = find(program, aten.sin.default)
        edit.replace(node, edit.call(self.new, node.args, before=node, like=node))


@dataclass(frozen=True)
class _Illegal(Pass):
    """Leaves a node behind that nothing computes."""

    name: ClassVar[str] = "illegal"

    def exact(self, program: Program) -> bool:
        return True

    def apply(self, program: Program, edit: Rewriter) -> None:
        find(program, aten.sin.default).meta.pop("val")


def _sine(x: torch.Tensor) -> tuple[torch.Tensor]:
    return (torch.sin(x),)


def test_check_pass_returns_the_rewritten_program():
    x = torch.zeros(3)  # where sine and tangent agree
    done = check_pass(build(_sine, x), _Rewrite(aten.tan.default), (x,))
    assert find(done, aten.tan.default).name == "tan"
    assert done.history[-1].edits == 2


def test_check_pass_holds_a_pass_to_its_word():
    x = torch.full((3,), 1e-2)
    program = build(_sine, x)
    with pytest.raises(ParityError, match="output 0 after rewrite"):
        check_pass(program, _Rewrite(aten.tan.default), (x,))
    near = torch.full((3,), 1e-3)  # they differ by 5e-10 here
    check_pass(program, _Rewrite(aten.tan.default, claims=False), (near,))
    with pytest.raises(ParityError):
        check_pass(program, _Rewrite(aten.cos.default, claims=False), (x,))


def test_check_pass_verifies():
    x = torch.randn(3)
    with pytest.raises(VerifyError):
        check_pass(build(_sine, x), _Illegal(), (x,))


def test_check_pass_repeats_random_draws():
    def noisy(x: torch.Tensor) -> tuple[torch.Tensor]:
        return (torch.sin(x) + torch.rand_like(x),)

    x = torch.zeros(3)
    check_pass(build(noisy, x), _Rewrite(aten.tan.default), (x,))


def test_counters_expect():
    with counters.expect(captures=1, replays=4, lowers=1):  # after two recorded calls
        assert_parity(_maker(), _batches(6))
    wrong = r"expected counter increments .*, got {'replays': 0}"
    with pytest.raises(AssertionError, match=wrong), counters.expect(replays=1):
        pass
    with counters.expect():  # counters that are not named may do as they like
        assert_parity(_maker(), _batches(1))


def test_counters_leave_the_error_of_the_block_alone():
    with pytest.raises(KeyError), counters.expect(captures=1):
        raise KeyError
