"""What is refused: a real row may see a padded one, or nobody can tell. The line is named."""

from __future__ import annotations

import gc
import time
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import torchgraph as tg
from tests import cudnn
from torchgraph.errors import PaddingRefused

from .graphs import Padded


def batch_norm(x):
    return F.batch_norm(x, None, None, training=True)


def constant(x):
    return x + torch.tensor([float(len(x))])


def by_order(x):
    return x[torch.argsort(x[:, 0])]


def written(x):
    x.add_(1)
    return x * 2


INFERENCE: dict[str, tuple[Any, str]] = {
    "mean": (lambda x: x - x.mean(0), "averages"),
    "sum": (lambda x: x / x.sum(0), "not zero"),
    "all": (lambda x: x + x.abs().max(), "looks at all rows"),
    "softmax": (lambda x: torch.softmax(x, 0), "across rows"),
    "variance": (lambda x: x / x.var(0), "averages"),
    "sort": (lambda x: x.sort(0)[0], "across rows"),
    "top": (lambda x: x.topk(2, 0)[0], "across rows"),
    "flip": (lambda x: x.flip(0), "across rows"),
    "roll": (lambda x: x.roll(1, 0), "across rows"),
    "roll of all": (lambda x: x.roll(1), "across rows"),
    "last row": (lambda x: x + x[-1], "end of the padded dimension"),
    "last rows": (lambda x: x[-2:], "end of the padded dimension"),
    "by order": (by_order, "across rows"),
    "by data": (lambda x: x[x[:, 0].long().clamp(0, 1)], "padded dimension"),
    "gather": (lambda x: x.gather(0, x.long().clamp(0, 1)), "across rows"),
    "products of rows": (lambda x: torch.softmax(x @ x.t(), -1) @ x, "across rows"),
    "sum of products": (lambda x: x @ (x.t() @ x), "not zero"),
    "halves": (lambda x: x.view(2, -1, 6).sum(1) if len(x) % 2 == 0 else x, "mixed"),
    "chosen by data": (lambda x: x[x[:, 0] > 0] * 2, "depends on the data"),
    "split in pieces": (lambda x: x.split(2)[0], "parts"),
    "split": (lambda x: x.chunk(2)[0] if len(x) % 2 == 0 else x, "divides"),
    "below": (lambda x: torch.cat([x, x * 2]), "behind padded"),
    "repeat": (lambda x: x.repeat(2, 1), "behind padded"),
    "dropout": (lambda x: F.dropout(x, 0.5, training=True), "random"),
    "noise": (lambda x: x + torch.randn_like(x), "random"),
    "batch norm": (batch_norm, "batch norm"),
    "the count": (lambda x: x / len(x), "follows the size"),
    "a constant": (constant, "follows the size"),
    "less for more": (lambda x: torch.arange(20 - len(x)) * 2 + x.sum(1).new_zeros(1), "less"),
    "distances": (lambda x: torch.cdist(x, x).min(1)[0], "no rule"),
    "unique rows": (lambda x: torch.cumsum(x.flip(0), 0), "across rows"),
    "interpolated": (lambda x: F.interpolate(x[None, None], scale_factor=2.0), "padded"),
    "convolved": (lambda x: F.conv1d(x.t(), torch.ones(6, 6, 3), padding=1), "padded dimension"),
    "written": (written, "writes its argument"),
}  # fmt: skip


@pytest.mark.parametrize("name", INFERENCE)
def test_inference(name):
    build, why = INFERENCE[name]
    graph = Padded(build)
    with pytest.raises(PaddingRefused, match=why) as error:
        graph(torch.randn(4, 6))
    assert error.value.where is not None
    assert error.value.where.filename == __file__
    got = graph(torch.randn(8, 6))  # as it is, it runs
    assert isinstance(got, torch.Tensor)


def test_rows_in_front_of_which_something_stands():
    graph = Padded(lambda x: x.reshape(-1) * 2, dim=1)
    with pytest.raises(PaddingRefused, match="rows follow another dimension"):
        graph(torch.randn(3, 4))


@pytest.mark.parametrize("norm", [nn.BatchNorm1d, cudnn.BatchNorm])
def test_a_state_that_follows_the_rows(norm):
    class Norm(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm = norm(6)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.norm(x)

    graph = Padded(lambda net, x: net(x), Norm())
    before = graph.modules_[0].norm.running_mean.clone()
    with pytest.raises(PaddingRefused, match="batch norm"):
        graph(torch.randn(4, 6))
    assert torch.equal(graph.modules_[0].norm.running_mean, before)
    graph.modules_[0].eval()
    assert graph(torch.randn(4, 6)).shape == (4, 6)


def test_a_returned_number_that_tells_the_size():
    graph = Padded(lambda x: {"rows": x * 2, "count": len(x), "name": "x", "none": None})
    with pytest.raises(PaddingRefused, match=r"returns 4 at \['count'\], but 8"):
        graph(torch.ones(4))
    got = Padded(lambda x: (x * 2, "x", None, 1.5))(torch.ones(4))
    assert got[0].shape == (4,)
    assert got[1:] == ("x", None, 1.5)


class Training(tg.Graph):
    def __init__(self, loss: Any, model: nn.Module | None = None) -> None:
        super().__init__()
        self.model = model or nn.Linear(6, 3)
        self.loss = loss
        self.add_optimizer(torch.optim.SGD(self.model.parameters(), lr=0.1))
        self.config.set_shape_buckets(0, [8], mask="mask")

    def build(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        loss = self.loss(self.model(x), mask)
        loss.backward()
        return loss


def sum_of(x, function):
    return function(x).sum()


TRAINING: dict[str, tuple[Any, str]] = {
    "no mask": (lambda out, mask: out.square().mean(), "averages"),
    "a sum": (lambda out, mask: out.square().sum(), "not zero"),
    "mean after the mask": (lambda out, mask: (out * mask[:, None]).mean(), "averages"),
    "of the count": (lambda out, mask: (out * mask[:, None]).sum() / len(out), "follows"),
    "not the mask": (lambda out, mask: (out * ~mask[:, None]).sum(), "not zero"),
    "exponential": (lambda out, mask: (out * mask[:, None]).exp().sum(), "not zero"),
    "divided by zeros": (lambda out, mask: (out / mask[:, None]).sum(), "not zero"),
    "filled with ones": (lambda out, mask: out.masked_fill(~mask[:, None], 1.0).sum(), "not zero"),
    "nothing by nothing": (
        lambda out, mask: (out * mask[:, None] / (out * mask[:, None])).sum(), "not zero"
    ),
    "one nothing by itself": (
        lambda out, mask: sum_of(out * mask[:, None], lambda x: x / x), "not zero"
    ),
    "infinite where masked": (
        lambda out, mask: (out.masked_fill(~mask[:, None], -torch.inf) * mask[:, None]).sum(),
        "not zero",
    ),
    "infinite by a tensor": (
        lambda out, mask: (
            torch.where(mask[:, None], out, torch.full((3,), torch.inf)) * mask[:, None]
        ).sum(),
        "not zero",
    ),
    "in one direction": (
        lambda out, mask: ((out @ out.t()).exp() * mask[:, None]).sum(), "not zero"
    ),
    "by nothing where filled": (
        lambda out, mask: (
            (1 / (1 - out.masked_fill(~mask[:, None], 1.0))).sum(1) * mask
        ).sum(),
        "not zero",
    ),
    "a gradient at its pole": (
        lambda out, mask: torch.where(mask, (out.sigmoid()[:, 0] * mask).logit(), 0).sum(),
        "not zero",
    ),
    "mean reduction": (
        lambda out, mask: F.cross_entropy(out, out.argmax(1)) * mask.sum(), "mean or the sum"
    ),
    "logarithm of nothing": (
        lambda out, mask: ((out * mask[:, None]).abs().log() * mask[:, None]).sum(), "not zero"
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", TRAINING)
def test_training(name):
    loss, why = TRAINING[name]
    graph = Training(loss)
    before = graph.model.weight.clone()
    with pytest.raises(PaddingRefused, match=why) as error:
        graph(torch.randn(5, 6))
    assert error.value.where is not None
    assert error.value.where.filename == __file__
    assert torch.equal(graph.model.weight, before)


TABLE = torch.arange(9.0)
SUMS: dict[str, tuple[Any, str]] = {
    "a sum in every row": (
        lambda x, mask: (x * mask[:, None]).sum(0, keepdim=True).expand_as(x).sum(), "not zero"
    ),
    "a sum added for every row": (
        lambda x, mask: torch.zeros(6).index_put(
            (x.argmax(1),), (x * mask[:, None]).sum(), accumulate=True
        ),
        "writes rows",
    ),
    "the first row in every row": (
        lambda x, mask: (x * mask[:, None])[torch.arange(1).expand(len(x))].sum(),
        "padded dimension",
    ),
    "by nothing between copies": (
        lambda x, mask: ((1 / (x[1:] - x[:-1])).sum(1) * mask[1:]).sum(), "not zero"
    ),
    "by nothing of a table": (
        lambda x, mask: (1 / (6 - TABLE[: len(x)]) * mask).sum(), "not zero"
    ),
    "an entry that no real row looks up": (
        lambda x, mask: (torch.arange(9.0).log()[(x.argmax(1) + 1) * mask] * mask).sum(),
        "not zero",
    ),
}  # fmt: skip


class Masked(Padded):
    """A function of rows and the mask."""

    def build(self, x: torch.Tensor, mask: torch.Tensor) -> Any:
        return self.function(x, mask)


@pytest.mark.parametrize("name", SUMS)
def test_sums_under_a_mask(name):
    build, why = SUMS[name]
    x = torch.randn(5, 6)
    with pytest.raises(PaddingRefused, match=why):
        Masked(build, mask="mask")(x)
    got = Masked(build, mask="mask", sizes=(5,))(x)  # not padded, it runs
    assert torch.equal(got, build(x, torch.ones(5, dtype=torch.bool)))


def test_training_with_dropout():
    model = nn.Sequential(nn.Linear(6, 3), nn.Dropout(0.5))
    graph = Training(lambda out, mask: (out.sum(1) * mask).sum(), model)
    with pytest.raises(PaddingRefused, match="random"):
        graph(torch.randn(5, 6))
    model.eval()
    assert graph(torch.randn(5, 6)).isfinite()


BOTH_WAYS: dict[str, Any] = {
    "products": lambda out, mask: (out @ out.t() * (mask[:, None] * mask[None, :])).sum(),
    "where": lambda out, mask: torch.where(mask[:, None], out, 0).sum() / mask.sum(),
    "filled": lambda out, mask: out.square().masked_fill(~mask[:, None], 0).sum(),
    "squared": lambda out, mask: (out * mask[:, None]).square().sum().sqrt(),
    "mask as number": lambda out, mask: (out.sum(1) * mask.float()).sum() / mask.float().sum(),
    "dotted": lambda out, mask: torch.dot(out.sum(1), mask.to(out.dtype)),
    "huber": lambda out, mask: (
        F.smooth_l1_loss(out, out.detach() * 2, reduction="none") * mask[:, None]
    ).sum(),
    "picked": lambda out, mask: (out[torch.arange(len(out)), 1] * mask).sum(),
    "differences of neighbours": lambda out, mask: (
        (out[1:] - out[:-1]).square().sum(1) * mask[1:]
    ).sum() / mask[1:].sum(),
    "the first rows": lambda out, mask: out[:3].square().sum() + (out.sum(1) * mask).sum(),
    "shifted scores": lambda out, mask: (
        F.cross_entropy(out[:-1], out[1:].argmax(1), reduction="none") * mask[1:]
    ).sum() / mask[1:].sum(),
    "binary cross entropy": lambda out, mask: (
        F.binary_cross_entropy_with_logits(out, (out > 0).float(), reduction="none").sum(1) * mask
    ).sum(),
    "binary cross entropy by weight": lambda out, mask: F.binary_cross_entropy_with_logits(
        out[:, 0], (out[:, 1] > 0).float(), weight=mask.float(), reduction="none"
    ).sum(),
    "log of a sigmoid": lambda out, mask: (F.logsigmoid(out).sum(1) * mask).sum(),
    "entropy": lambda out, mask: (
        -(out.softmax(1) * out.log_softmax(1)).sum(1) * mask
    ).sum() / mask.sum(),
}  # fmt: skip


@pytest.mark.parametrize("name", BOTH_WAYS)
def test_allowed_with_a_mask(name):
    loss, x = BOTH_WAYS[name], torch.randn(5, 6)
    graph = Training(loss)
    weight = graph.model.weight.detach().clone().requires_grad_()
    expected = loss(F.linear(x, weight, graph.model.bias.detach()), torch.ones(5).bool())
    expected.backward()
    got = graph(x)
    torch.testing.assert_close(got, expected.detach())
    torch.testing.assert_close(graph.model.weight.detach(), (weight - 0.1 * weight.grad).detach())


def test_a_collection_while_a_step_runs_aside_is_none_of_it():
    """A callback of the collector that asks a clock, as those of profilers do."""
    asked = []

    def collected(phase, info):
        asked.append(time.perf_counter())

    threshold = gc.get_threshold()
    gc.callbacks.append(collected)
    gc.set_threshold(1, 1, 1)
    try:
        test_training("one nothing by itself")
    finally:
        gc.set_threshold(*threshold)
        gc.callbacks.remove(collected)
    assert asked
