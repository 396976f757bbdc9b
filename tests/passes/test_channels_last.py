from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import torchgraph as tg
from tests import support
from torchgraph.ir.program import Program
from torchgraph.passes import ChannelsLast
from torchgraph.testing import Setup, assert_parity

aten = torch.ops.aten
NHWC = torch.channels_last
X = torch.randn(2, 3, 16, 16)
FIRST, SECOND = torch.randn(6, 3, 3, 3), torch.randn(6, 6, 3, 3)


def convolution(x: Any, weight: Any) -> Any:
    return aten.convolution.default(x, weight, None, [1, 1], [1, 1], [1, 1], False, [0, 0], 1)


def two(x: Any, first: Any, second: Any) -> Sequence[Any]:
    return (convolution(aten.relu.default(convolution(x, first)), second),)


def no_convolution(x: Any, first: Any, second: Any) -> Sequence[Any]:
    return aten.relu.default(x), aten.mul.Tensor(first, 2), aten.add.Tensor(second, 1)


def program(step: Callable[..., Sequence[Any]] = two) -> Program:
    return support.build(step, X, FIRST, SECOND)


def test_match() -> None:
    before = program()
    done, edits = support.apply(ChannelsLast(), before)
    support.assert_golden("channels_last", support.before_and_after(before, done))
    assert edits == 1
    first = support.find(done, aten.convolution.default)
    assert first.meta["val"].is_contiguous(memory_format=NHWC)


def test_no_match() -> None:
    support.assert_unchanged(ChannelsLast(), program(no_convolution))


def test_weights_count() -> None:
    """Large ones over few activations: each kernel would convert them."""
    x = torch.randn(1, 3, 4, 4)
    first, second = torch.randn(64, 3, 3, 3), torch.randn(64, 64, 3, 3)
    support.assert_unchanged(ChannelsLast(), support.build(two, x, first, second))


def test_weights_that_are_the_same_in_both_layouts() -> None:
    def step(x: Any, weight: Any) -> Sequence[Any]:
        padding = [0, 0]
        given = (aten.relu.default(x), weight, None, [1, 1], padding, [1, 1], False, padding, 1)
        return (aten.mean.dim(aten.convolution.default(*given), [2, 3]),)

    before = support.build(step, torch.randn(1, 64, 2, 2), torch.randn(512, 64, 1, 1))
    assert support.apply(ChannelsLast(), before)[1] > 0


def test_may_be_disabled() -> None:
    """Also where the program is not compiled, and the pass does not run."""
    model = nn.Conv2d(3, 6, 3, padding=1)
    graph = tg.train_step(model, F.mse_loss, torch.optim.SGD(model.parameters(), lr=0.1))
    graph.config.passes.disable("channels_last")
    for _ in range(3):
        graph(torch.randn(4, 3, 8, 8), torch.randn(4, 6, 8, 8))


def test_effects_kept() -> None:
    def step(x: Any, first: Any, second: Any) -> Sequence[Any]:
        y = convolution(convolution(convolution(x, first), second), second)
        noise = aten.rand_like.default(y)  # the order of draws depends on the strides of y
        return noise, convolution(aten.add.Tensor(y, noise), second)

    before = program(step)
    done, edits = support.apply(ChannelsLast(), before)
    assert edits == 1
    torch.manual_seed(0)
    expected = before.gm(X, FIRST, SECOND)
    torch.manual_seed(0)
    got = done.gm(X, FIRST, SECOND)
    assert support.same_bits(got[0], expected[0])
    torch.testing.assert_close(got[1], expected[1])


def test_idempotent() -> None:
    done, _ = support.apply(ChannelsLast(), program())
    support.assert_unchanged(ChannelsLast(), done)


def test_parity() -> None:
    before = program()
    done = tg.testing.check_pass(before, ChannelsLast(), (X, FIRST, SECOND))
    (expected,), (got,) = before.gm(X, FIRST, SECOND), done.gm(X, FIRST, SECOND)
    assert got.stride() == expected.stride()
    assert not ChannelsLast().exact(before)


def test_a_lone_convolution_is_refused() -> None:
    def step(x: Any, first: Any, second: Any) -> Sequence[Any]:
        return (convolution(x, first),)

    before = program(step)
    done, edits = support.apply(ChannelsLast(), before)
    assert edits == 0
    (refusal,) = done.history[-1].refusals
    assert "4770 elements would be converted for 3072" in refusal.reason


def test_doubles_and_ready_inputs_are_left_alone() -> None:
    double = support.build(two, *(t.double() for t in (X, FIRST, SECOND)))
    support.assert_unchanged(ChannelsLast(), double)
    ready = support.build(two, X.to(memory_format=NHWC), FIRST, SECOND)
    support.assert_unchanged(ChannelsLast(), ready)


def test_two_regions_one_of_them_worth_it() -> None:
    def step(x: Any, first: Any, second: Any) -> Sequence[Any]:
        (deep,) = two(x, first, second)
        shallow = convolution(aten.flip.default(x, [0]), first)
        return aten.sum.default(deep), shallow

    before = program(step)
    done, edits = support.apply(ChannelsLast(), before)
    assert edits == 1
    assert len(done.history[-1].refusals) == 1


class Gate(nn.Module):
    """Squeeze and excite: a gate of shape (N, C, 1, 1)."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.down = nn.Conv2d(channels, channels, 1)

    def forward(self, x: Any) -> Any:
        return x * torch.sigmoid(self.down(F.adaptive_avg_pool2d(x, 1)))


class Zoo(nn.Module):
    """Every kind of op that a region carries, and some that end one."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU6())
        self.deep = nn.Sequential(nn.Conv2d(8, 8, 3, padding=1, groups=8), nn.Hardswish())
        self.gate = Gate(8)
        self.dropout = nn.Dropout2d(0.2)
        self.mix = nn.Conv2d(16, 8, 1, bias=False)
        self.norm = nn.GroupNorm(2, 8)
        self.up = nn.ConvTranspose2d(8, 4, 2, stride=2)
        self.head = nn.Linear(4 * 9, 5)

    def forward(self, x: Any) -> Any:
        x = F.max_pool2d(self.stem(x), 2)
        x = x + self.gate(self.deep(x))
        x = self.mix(torch.cat([self.dropout(x), F.avg_pool2d(x, 3, 1, 1)], 1))
        x = self.up(F.interpolate(F.silu(self.norm(x)), scale_factor=2))
        return self.head(F.adaptive_avg_pool2d(F.leaky_relu(x), 3).flatten(1))


class Train(tg.Graph):
    def __init__(self, model: nn.Module, optimizer: torch.optim.Optimizer | None, **amp: Any):
        super().__init__()
        self.model = model
        self.amp = amp
        if optimizer is not None:
            self.add_optimizer(optimizer)
        self.config.passes.insert(ChannelsLast(), after="cse")

    def build(self, x: Any, y: Any) -> Any:
        with torch.autocast("cpu", torch.bfloat16, enabled=bool(self.amp)):
            loss = F.cross_entropy(self.model(x), y)
        if self.training:
            loss.backward()
        return loss


SGD = (torch.optim.SGD, {"lr": 0.1, "momentum": 0.9, "weight_decay": 1e-4})
# A large eps: the bias before a batch norm has a gradient of rounding errors, which Adam blows up.
FUSED = (torch.optim.AdamW, {"lr": 1e-3, "eps": 1e-2, "fused": True})
LABELS = torch.tensor([1, 4])


@pytest.mark.parametrize(("optimizer", "options"), [SGD, FUSED])
def test_training(optimizer: Any, options: dict[str, Any]) -> None:
    torch.manual_seed(0)
    eager = Zoo()
    model = copy.deepcopy(eager)
    expected = optimizer(eager.parameters(), **options)
    mine = optimizer(model.parameters(), **options)
    graph = Train(model, mine)
    strides = [p.stride() for p in model.parameters()]
    for step in range(4):
        torch.manual_seed(step)
        loss = F.cross_entropy(eager(X), LABELS)
        loss.backward()
        expected.step()
        expected.zero_grad()
        torch.manual_seed(step)
        torch.testing.assert_close(graph(X, LABELS), loss.detach(), rtol=1e-4, atol=1e-5)
    assert [p.stride() for p in model.parameters()] == strides
    for name, old in eager.state_dict().items():
        torch.testing.assert_close(model.state_dict()[name], old, rtol=1e-3, atol=1e-3, msg=name)
    for slots in mine.state.values():
        assert all(s.is_contiguous() for s in slots.values() if isinstance(s, torch.Tensor))
    record = next(r for r in graph.report().passes if r.name == "channels_last")
    assert record.edits > 0


def test_autocast() -> None:
    torch.manual_seed(0)
    eager = Zoo().eval()
    model = copy.deepcopy(eager)
    graph = Train(model, None, dtype=torch.bfloat16)
    with torch.autocast("cpu", torch.bfloat16):
        loss = F.cross_entropy(eager(X), LABELS)
    torch.testing.assert_close(
        support.settle(graph, X, LABELS), loss.detach(), rtol=0.02, atol=0.02
    )


@pytest.mark.parametrize("layout", [torch.contiguous_format, NHWC])
@pytest.mark.parametrize(("optimizer", "options"), [(torch.optim.SGD, {"lr": 0.1}), FUSED])
def test_a_channels_last_model_is_bitwise(
    layout: torch.memory_format, optimizer: Any, options: dict[str, Any]
) -> None:
    """Without the pass: what ``model.to(memory_format=torch.channels_last)`` asks for."""

    def make() -> Setup:
        model = Zoo().to(memory_format=NHWC)
        made = optimizer(model.parameters(), **options)
        return Setup(model, made, lambda net, x, y: F.cross_entropy(net(x), y))

    batch = (X.to(memory_format=layout), LABELS)
    assert_parity(make, [batch] * 3)
