"""A classifier that is all but sure: what rounds inside of a log-softmax is larger than the loss.

A compiled log-softmax sums its exponentials in another order. No compiler is needed for that.
"""

import copy
import itertools
import warnings
from typing import Any

import pytest
import torch
from torch import nn, optim

import torchgraph as tg
from tests.lower.conftest import Interpretation
from torchgraph.errors import ConfirmWarning
from torchgraph.replay import switch

aten = torch.ops.aten
LOOKED = 50


def log_softmax(x: torch.Tensor, dim: int, half_to_float: bool) -> torch.Tensor:
    """Of which the sum begins with the last class."""
    shifted = x - x.amax(dim, keepdim=True)
    return shifted - shifted.exp().flip(dim).cumsum(dim).narrow(dim, -1, 1).log()


def backward(
    gradient: torch.Tensor, log: torch.Tensor, dim: int, dtype: torch.dtype
) -> torch.Tensor:
    """With an exponential that is rounded once."""
    return gradient - log.double().exp().to(dtype) * gradient.sum(dim, keepdim=True)


FORMS: dict[Any, Any] = {
    aten._log_softmax.default: log_softmax,
    aten._log_softmax_backward_data.default: backward,
}


def in_another_form(region: Any) -> Any:
    """The function of a region, as a compiler may write it."""
    gm = copy.deepcopy(region.gm)
    for node in gm.graph.nodes:
        node.target = FORMS.get(node.target, node.target)
    gm.recompile()
    return gm


def training(monkeypatch: pytest.MonkeyPatch, function_of: Any, classes: int) -> Any:
    """The losses of a step over one batch, and its graph; ``function_of`` makes compiled code."""

    def finish(self: Any, limit: Any = None, goes_on: Any = None) -> None:
        for region in self.regions:
            region.compiled(function_of(region))

    monkeypatch.setattr(switch, "Compilation", Interpretation)
    monkeypatch.setattr(Interpretation, "finish", finish)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, classes))
    optimizer = optim.AdamW(model.parameters(), lr=0.05, weight_decay=0.0)
    graph = tg.train_step(model, nn.functional.cross_entropy, optimizer)
    graph.config.set_backend("inductor")
    graph.config.set_look_again(LOOKED)
    x, y = torch.randn(32, 16), torch.randint(classes, (32,))
    return (graph(x, y).item() for _ in itertools.count()), graph


@pytest.mark.parametrize(("classes", "count"), [(10, 2_000), (1_000, 400)])
def test_what_rounds_inside_of_a_log_softmax_is_no_fault(classes, count, monkeypatch):
    steps, graph = training(monkeypatch, in_another_form, classes)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        losses = list(itertools.islice(steps, count))
    assert losses[-1] < 1e-5, "the classes are not sure"
    assert graph.report().calls.looked >= count // LOOKED - 1


def off_by(amount: float, share: float) -> Any:
    """Compiled code of which a small loss is off by ``amount``, and its gradients by a share."""

    def function_of(region: Any) -> Any:
        gm = in_another_form(region)

        def function(*inputs: Any) -> Any:
            loss, *others = gm(*inputs)
            if loss.item() > 1e-3:
                return loss, *others
            return loss + amount, *(one * (1 + share) for one in others)

        return function

    return function_of


def past(steps: Any, size: float) -> None:
    """Until the loss is smaller than ``size``, and past the looks after that."""
    assert any(loss < size for loss in steps)
    list(itertools.islice(steps, 2 * LOOKED))


@pytest.mark.parametrize(("amount", "share"), [(2e-6, 0.0), (0.0, 0.5)])
def test_a_fault_of_a_sure_classifier_is_found(amount, share, monkeypatch):
    steps, graph = training(monkeypatch, off_by(amount, share), 10)
    with pytest.warns(ConfirmWarning, match="Compiled code does not compute what eager does"):
        past(steps, 5e-4)
    assert graph.report().confirmation.dropped
