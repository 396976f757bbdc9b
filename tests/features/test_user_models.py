"""What users' models do besides, under the features of training: bitwise eager's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn, optim
from torch.nn.utils import parametrizations
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from torch.utils.checkpoint import checkpoint

import torchgraph as tg
from tests.features.test_accumulation import assert_same

FEATURES = {
    "plain": (1, 1, None),
    "scaler": (8, 1, None),
    "accumulation": (1, 2, None),
    "both": (8, 2, None),
    "bfloat16": (1, 1, torch.bfloat16),
    "float16 and both": (8, 2, torch.float16),
}
"""Scale, micro-batches, autocast."""


def losses(model: nn.Module, x: torch.Tensor) -> list[torch.Tensor]:
    out = model(x)
    return [one.square().mean() for one in (out if isinstance(out, tuple) else (out,))]


class Side:
    """A model and what trains it; ``hooked`` gets both before the first step."""

    def __init__(
        self, make: Callable[[], nn.Module], feature: str, hooked: Callable[..., Any]
    ) -> None:
        torch.manual_seed(0)
        self.model = make()
        self.optimizer = optim.AdamW(self.model.parameters(), lr=0.1)
        scale, self.k, self.dtype = FEATURES[feature]
        self.scaler = torch.amp.GradScaler("cpu", init_scale=scale, enabled=scale > 1)
        self.kept = hooked(self.model, self.optimizer)

    def step(self, x: torch.Tensor) -> None:
        for part in x.chunk(self.k):
            with torch.autocast("cpu", self.dtype, enabled=self.dtype is not None):
                found = losses(self.model, part)
            for loss in found:
                self.scaler.scale(loss / self.k).backward(retain_graph=True)
        self.scaler.step(self.optimizer)
        self.scaler.update()
        self.optimizer.zero_grad()


class Train(tg.Graph):
    def __init__(self, side: Side) -> None:
        super().__init__()
        self.model = side.model
        self.add_optimizer(side.optimizer)
        self.set_grad_scaler(side.scaler)
        self.config.set_gradient_accumulation_steps(side.k)
        if side.dtype is not None:
            self.config.enable_amp(dtype=side.dtype)

    def build(self, x: torch.Tensor) -> None:
        for loss in losses(self.model, x):
            loss.backward(retain_graph=True)


def assert_bitwise(
    make: Callable[[], nn.Module],
    feature: str,
    hooked: Callable[..., Any] = lambda model, optimizer: None,
) -> tuple[Side, Side]:
    mine, other = Side(make, feature, hooked), Side(make, feature, hooked)
    graph = Train(mine)
    for number in range(6):
        x = torch.randn(4, 6)
        torch.manual_seed(number)
        graph(x)
        torch.manual_seed(number)
        other.step(x)

        assert_same(mine.model, mine.optimizer, other.model, other.optimizer)
    return mine, other


class Checkpointed(nn.Module):
    def __init__(self, *, reentrant: bool) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(6, 6), nn.Linear(6, 2)
        self.inner = nn.Sequential(nn.Linear(6, 6), nn.Dropout(0.3), nn.Tanh())
        self.reentrant = reentrant

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = checkpoint(self.inner, self.first(x), use_reentrant=self.reentrant)
        out: torch.Tensor = self.last(checkpoint(self.inner, x, use_reentrant=self.reentrant))
        return out


@pytest.mark.parametrize("feature", FEATURES)
@pytest.mark.parametrize("reentrant", [True, False])
def test_torchs_checkpoint_scales_gradients_once(feature, reentrant):
    # The reentrant kind calls backward() inside of backward().
    assert_bitwise(lambda: Checkpointed(reentrant=reentrant), feature)


class Siamese(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(6, 16), nn.Softplus(), nn.Linear(16, 1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.net(x) - self.net(x.flip(1))
        return out


class Penalized(Siamese):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x.clone().requires_grad_()
        (slope,) = torch.autograd.grad(self.net(x).sum(), x, create_graph=True)
        return super().forward(x) + (slope.norm(dim=1) - 1)[:, None]


@pytest.mark.parametrize("feature", FEATURES)
@pytest.mark.parametrize("model", [Siamese, Penalized])
def test_a_weight_read_twice_is_cast_once(model, feature):
    # So its gradients are added in half precision.
    assert_bitwise(model, feature)


def test_a_users_own_autocast_casts_once_too():
    class Own(Siamese):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            with torch.autocast("cpu", torch.bfloat16):
                return super().forward(x)

    assert_bitwise(Own, "plain")


def test_a_users_autocast_around_the_graph_holds_no_stand_ins():
    graph = Train(Side(Siamese, "plain", lambda model, optimizer: None))
    with torch.autocast("cpu", torch.bfloat16):
        graph(torch.randn(4, 6))
        assert type(graph.model.net(torch.randn(4, 6))) is torch.Tensor


class ThreeHeads(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body, self.heads = nn.Linear(6, 6), nn.ModuleList(nn.Linear(6, 2) for _ in range(3))

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        x = self.body(x).tanh()
        return tuple(head(x) for head in self.heads)


@pytest.mark.parametrize("feature", FEATURES)
def test_several_backwards_add_up_in_eagers_order(feature):
    assert_bitwise(ThreeHeads, feature)


@pytest.mark.parametrize("feature", FEATURES)
def test_the_average_of_a_spectral_norm(feature):
    # The norm writes its vectors through views, and the hook finds the average's tensors in
    # mid-trace.
    def hooked(model, optimizer):
        average = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.9))
        optimizer.register_step_post_hook(lambda *_: average.update_parameters(model))
        return average

    mine, other = assert_bitwise(
        lambda: nn.Sequential(parametrizations.spectral_norm(nn.Linear(6, 6)), nn.Linear(6, 2)),
        feature,
        hooked,
    )

    for name, value in other.kept.state_dict().items():
        assert torch.equal(mine.kept.state_dict()[name], value), name
