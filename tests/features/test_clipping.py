"""Clipping: by group, all together, in build. And the gradients and norms that build returns."""

import math

import pytest
import torch
from torch import nn, optim

import torchgraph as tg
from tests.features.scaling import Train, assert_same, batches, follow, sides, weighted_loss
from tests.parity.models import ConvNet, Mlp
from torchgraph.errors import GradientNotFinal, InvalidOption
from torchgraph.testing import counters

NORMS = [1.0, 2.0, 3.5, 0.5, math.inf, -math.inf]


def sgd(parameters):
    return optim.SGD(parameters, lr=0.1, momentum=0.9)


def adamw(parameters):
    return optim.AdamW(parameters, lr=0.01)


def fused(parameters):
    return optim.AdamW(parameters, lr=0.01, fused=True)


class Unscaled:
    """Stands for a scaler in the eager loop where there is none."""

    _per_optimizer_states = {}  # noqa: RUF012  # as in torch

    def scale(self, loss):
        return loss

    def unscale_(self, optimizer):
        pass

    def step(self, optimizer):
        optimizer.step()

    def update(self):
        pass


def plain_sides(model, make, k=1):
    """Both sides without a scaler."""
    mine, other = sides(model, make, k=k)
    mine.step.set_grad_scaler(None)
    other.step.scaler = Unscaled()
    Unscaled._per_optimizer_states = {id(other.optimizer): {"found_inf_per_device": {}}}
    return mine, other


@pytest.mark.parametrize("scaled", [False, True])
@pytest.mark.parametrize("k", [1, 2])
@pytest.mark.parametrize("p", NORMS)
def test_norms_of_all_gradients(p, k, scaled):
    mine, other = (sides if scaled else plain_sides)(Mlp, adamw, k=k)
    mine.step.config.set_clip_grad_norm(0.05, p)
    parameters = list(other.model.parameters())
    other.step.clip = lambda: nn.utils.clip_grad_norm_(parameters, 0.05, p)
    follow(mine, other, batches(Mlp, 4))


# Without fused=True the fused update rounds otherwise than the default branch.
@pytest.mark.parametrize(
    ("make", "fuse"), [(sgd, False), (adamw, False), (fused, False), (fused, True)]
)
def test_norms_with_each_optimizer(make, fuse):
    mine, other = plain_sides(ConvNet, make)
    mine.step.config.set_clip_grad_norm(0.05)
    if fuse:
        mine.step.fuse()
    other.step.clip = lambda: nn.utils.clip_grad_norm_(other.model.parameters(), 0.05)
    follow(mine, other, batches(ConvNet, 4))


def test_a_fused_update_multiplies_by_the_coefficient_itself():
    mine, _ = plain_sides(Mlp, fused)
    mine.step.config.set_clip_grad_norm(0.05)
    mine.step.fuse()
    for batch in batches(Mlp, 2):
        mine.step(*batch)
    program = mine.step.program
    (update,) = [n for n in program.nodes if "adam_update" in str(n.target)]

    assert update.kwargs["clip_coef"] is not None


@pytest.mark.parametrize("scaled", [False, True])
@pytest.mark.parametrize("k", [1, 2])
@pytest.mark.parametrize("make", [sgd, fused])
def test_values(make, k, scaled):
    mine, other = (sides if scaled else plain_sides)(Mlp, make, k=k)
    mine.step.config.set_clip_grad_value(0.01)
    parameters = list(other.model.parameters())
    other.step.clip = lambda: nn.utils.clip_grad_value_(parameters, 0.01)
    infinite = (2,) if scaled else ()
    follow(mine, other, batches(Mlp, 5, infinite))


def test_norm_and_value_together_and_off_again():
    mine, other = plain_sides(Mlp, adamw)
    mine.step.config.set_clip_grad_norm(0.05)
    mine.step.config.set_clip_grad_value(0.01)
    parameters = list(other.model.parameters())

    def clip():
        nn.utils.clip_grad_norm_(parameters, 0.05)
        nn.utils.clip_grad_value_(parameters, 0.01)

    other.step.clip = clip
    data = batches(Mlp, 4)
    follow(mine, other, data[:2])
    mine.step.config.set_clip_grad_norm(None)
    mine.step.config.set_clip_grad_value(None)
    other.step.clip = None
    follow(mine, other, data[2:])


def test_all_optimizers_are_clipped_together_in_the_order_of_the_modules():
    class Both(tg.Graph):
        def __init__(self, model, optimizers):
            super().__init__()
            self.model = model
            for optimizer in optimizers:
                self.add_optimizer(optimizer)
            self.config.set_clip_grad_norm(0.05)

        def build(self, x, y, weight):
            loss = weighted_loss(self.model, x, y, weight)
            loss.backward()
            return loss

    def made(model):
        return [sgd(model.second.parameters()), adamw(model.first.parameters())]

    mine, other = Mlp().eval(), Mlp().eval()
    other.load_state_dict(mine.state_dict())
    others = made(other)
    graph = Both(mine, made(mine))
    for batch in batches(Mlp, 3):
        graph(*batch)
        weighted_loss(other, *batch).backward()
        nn.utils.clip_grad_norm_(other.parameters(), 0.05)
        for optimizer in others:
            optimizer.step()
            optimizer.zero_grad()

        for name, value in other.state_dict().items():
            assert torch.equal(mine.state_dict()[name], value), name


@pytest.mark.parametrize("p", NORMS)
@pytest.mark.parametrize("scaled", [False, True])
def test_groups(p, scaled):
    def make(parameters):
        first, *rest = parameters
        return optim.AdamW(
            [
                {"params": [first], "clip_grad_max_norm": 0.02, "clip_grad_norm_type": p},
                {"params": rest},
            ],
            lr=0.01,
        )

    mine, other = (sides if scaled else plain_sides)(Mlp, make)
    first, *_ = other.model.parameters()
    del other.optimizer.param_groups[0]["clip_grad_max_norm"]
    other.step.clip = lambda: nn.utils.clip_grad_norm_([first], 0.02, p)
    for number, batch in enumerate(batches(Mlp, 4)):
        torch.manual_seed(number)
        mine.step(*batch)
        torch.manual_seed(number)
        other.step(*batch)
        for name, value in other.model.state_dict().items():
            assert torch.equal(mine.model.state_dict()[name], value), name


@pytest.mark.parametrize("max_norm", [-1.0, math.nan, "1", True])
def test_bad_norms(max_norm):
    mine, _ = plain_sides(Mlp, sgd)
    with pytest.raises(InvalidOption):
        mine.step.config.set_clip_grad_norm(max_norm)
    with pytest.raises(InvalidOption):
        mine.step.config.set_clip_grad_value(max_norm)
    with pytest.raises(InvalidOption):
        mine.step.config.set_clip_grad_norm(1.0, math.nan)


# --- in build ------------------------------------------------------------------------------------


class Clips(Train):
    """Clips in build, as one does in a loop, and returns the norm."""

    how = "norm"

    def build(self, x, y, weight):
        loss = weighted_loss(self.model, x, y, weight)
        loss.backward()
        return loss, CLIPS[self.how](self.model)


CLIPS = {
    "norm": lambda model: nn.utils.clip_grad_norm_(model.parameters(), 0.05),
    "value": lambda model: nn.utils.clip_grad_value_(model.parameters(), 0.01),
    "total": lambda model: nn.utils.get_total_norm([p.grad for p in model.parameters()]),
    "p = 1": lambda model: nn.utils.clip_grad_norm_(model.parameters(), 0.05, 1.0),
}


@pytest.mark.parametrize("how", CLIPS)
@pytest.mark.parametrize("make", [sgd, adamw, fused])
def test_clipping_in_build(make, how):
    mine, other = plain_sides(Mlp, make)
    graph = Clips(mine.model, mine.optimizer, None)
    graph.how = how
    graph.config.allow_fuse_model_update_ops(make is fused)
    for number, batch in enumerate(batches(Mlp, 4)):
        torch.manual_seed(number)
        _, norm = graph(*batch)
        torch.manual_seed(number)
        weighted_loss(other.model, *batch).backward()
        expected = CLIPS[how](other.model)
        other.optimizer.step()
        other.optimizer.zero_grad()

        assert norm is expected if expected is None else torch.equal(norm, expected)
        for name, value in other.model.state_dict().items():
            assert torch.equal(mine.model.state_dict()[name], value), name


class UnscalesFirst(Clips):
    """What one writes under a scaler."""

    def build(self, x, y, weight):
        loss = weighted_loss(self.model, x, y, weight)
        loss.backward()
        self.held[0].unscale_(self.held[1])
        return loss, CLIPS[self.how](self.model)


@pytest.mark.parametrize("how", CLIPS)
@pytest.mark.parametrize("make", [sgd, adamw, fused])
def test_clipping_in_build_under_a_scaler(make, how):
    mine, other = sides(Mlp, make)
    mine.lr_sch.optimizer = mine.optimizer
    graph = UnscalesFirst(mine.model, mine.optimizer, mine.scaler, mine.lr_sch)
    graph.how, graph.held = how, (mine.scaler, mine.optimizer)
    norms = []
    other.step.clip = lambda: norms.append(CLIPS[how](other.model))
    mine.step = lambda *batch: graph(*batch)[0]
    # A first step that is skipped leaves an optimizer with fused=True other slots in eager.
    follow(mine, other, batches(Mlp, 6, infinite=(1, 3)))


def test_clipping_scaled_gradients_in_build_is_refused():
    mine, _ = sides(Mlp, sgd)
    graph = Clips(mine.model, mine.optimizer, mine.scaler)
    for how in CLIPS:
        graph.how = how
        with pytest.raises(GradientNotFinal, match="still scaled"):
            graph(*batches(Mlp, 1)[0])


def test_clipping_the_gradients_of_a_micro_batch_is_refused():
    mine, _ = plain_sides(Mlp, sgd)
    graph = Clips(mine.model, mine.optimizer, None, k=2)
    with pytest.raises(GradientNotFinal, match="micro-batch"):
        graph(*batches(Mlp, 1)[0])


def test_an_error_on_infinite_norms_is_raised_as_in_eager():
    class Checks(Clips):
        def build(self, x, y, weight):
            loss = weighted_loss(self.model, x, y, weight)
            loss.backward()
            parameters = self.model.parameters()
            return nn.utils.clip_grad_norm_(parameters, 0.05, error_if_nonfinite=True)

    mine, other = plain_sides(Mlp, sgd)
    graph = Checks(mine.model, mine.optimizer, None)
    infinite, replays = (0, 2, 6), counters.replays
    for number, batch in enumerate(batches(Mlp, 9, infinite)):
        if number in infinite:
            with pytest.raises(RuntimeError, match="non-finite"):
                graph(*batch)
            continue
        torch.manual_seed(number)
        got = graph(*batch)
        torch.manual_seed(number)
        weighted_loss(other.model, *batch).backward()
        expected = nn.utils.clip_grad_norm_(other.model.parameters(), 0.05)
        other.optimizer.step()
        other.optimizer.zero_grad()

        assert torch.equal(got, expected)
        assert_same(mine, other)
    assert counters.replays - replays == 3


# --- gradients in reach --------------------------------------------------------------------------


class Returns(Train):
    def build(self, x, y, weight):
        loss = weighted_loss(self.model, x, y, weight)
        loss.backward()
        return {
            "first": self.model.first.weight.grad,
            "loss": loss,
            "bias": [self.model.second.bias.grad],
        }


@pytest.mark.parametrize("scaled", [False, True])
@pytest.mark.parametrize("k", [1, 2])
@pytest.mark.parametrize("make", [sgd, adamw, fused])
def test_build_returns_gradients_as_the_optimizer_reads_them(make, k, scaled):
    mine, other = (sides if scaled else plain_sides)(Mlp, make, k=k)
    graph = Returns(mine.model, mine.optimizer, mine.scaler if scaled else None, mine.lr_sch, k=k)
    graph.config.set_clip_grad_norm(0.05)
    seen = []

    def clip():
        nn.utils.clip_grad_norm_(other.model.parameters(), 0.05)
        seen[:] = [other.model.first.weight.grad.clone(), other.model.second.bias.grad.clone()]

    other.step.clip = clip
    for number, batch in enumerate(batches(Mlp, 8, infinite=(2, 6) if scaled else ())):
        torch.manual_seed(number)
        got = graph(*batch)
        torch.manual_seed(number)
        loss = other.step(*batch)

        assert torch.equal(got["loss"], loss)
        assert torch.equal(got["first"].nan_to_num(7.0), seen[0].nan_to_num(7.0))
        assert torch.equal(got["bias"][0].nan_to_num(7.0), seen[1].nan_to_num(7.0))
        mine.step = graph
        assert_same(mine, other)
    kept = got["first"].clone()
    graph(*batches(Mlp, 1)[0])

    assert torch.equal(got["first"], kept)


def test_returned_gradients_without_clipping():
    mine, other = plain_sides(Mlp, sgd)
    mine.model.eval()
    other.model.eval()
    graph = Returns(mine.model, mine.optimizer, None)
    for batch in batches(Mlp, 5):
        got = graph(*batch)
        weighted_loss(other.model, *batch).backward()

        assert torch.equal(got["first"], other.model.first.weight.grad)
        other.optimizer.step()
        other.optimizer.zero_grad()


@pytest.mark.parametrize("scaled", [False, True])
@pytest.mark.parametrize("k", [1, 2])
def test_the_report_shows_norms_by_group(k, scaled):
    def make(parameters):
        first, *rest = parameters
        return optim.SGD([{"params": [first]}, {"params": rest}], lr=0.1)

    mine, other = (sides if scaled else plain_sides)(Mlp, make, k=k)
    mine.step.config.enable_gradient_norms()
    mine.step.config.set_clip_grad_norm(0.05)
    expected = []

    def clip():
        first, *rest = other.model.parameters()
        expected[:] = [
            nn.utils.get_total_norm([p.grad for p in group]) for group in ([first], rest)
        ]
        nn.utils.clip_grad_norm_(other.model.parameters(), 0.05)

    other.step.clip = clip
    follow(mine, other, batches(Mlp, 6))
    report = mine.step.report()

    assert [name for name, _ in report.gradient_norms] == [
        "optimizer.0.param_groups.0",
        "optimizer.0.param_groups.1",
    ]
    assert [norm for _, norm in report.gradient_norms] == [norm.item() for norm in expected]
    assert "Gradients of the last step" in str(report)
    plain, _ = plain_sides(Mlp, sgd)
    plain.step(*batches(Mlp, 1)[0])
    assert plain.step.report().gradient_norms == ()
