from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch.nn import functional as F

import torchgraph as tg
from examples.models.gpt import GPT
from tests import support
from torchgraph.ir.program import Program
from torchgraph.lower.inplace.reinplace import reinplace
from torchgraph.passes import FuseCrossEntropy
from torchgraph.passes.fusions.cross_entropy import rule
from torchgraph.testing import Setup, assert_parity

aten = torch.ops.aten
X, T, W = torch.randn(6, 10), torch.tensor([0, 9, 3, -100, 3, 4]), torch.rand(10) + 0.1
FUSED = ["cross_entropy", "cross_entropy_backward"]


@pytest.fixture(autouse=True)
def compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if the ops were compiled here; what runs is whatever there is."""
    monkeypatch.setattr(rule, "has_kernel", lambda op, device: True)


def loss_and_gradient(x: Any, t: Any) -> Sequence[Any]:
    """What capture records of ``F.cross_entropy(x, t)`` and its backward."""
    probabilities = aten._log_softmax.default(x, 1, False)
    loss, total = aten.nll_loss_forward.default(probabilities, t, None, 1, -100)
    grad = aten.nll_loss_backward.default(
        aten.ones_like.default(loss), probabilities, t, None, 1, -100, total
    )
    return loss, aten._log_softmax_backward_data.default(grad, probabilities, 1, x.dtype)


def close(program: Program, done: Program, *examples: Any) -> None:
    """Within rounding: the pass is not exact."""
    for got, want in zip(done.gm(*examples), program.gm(*examples), strict=True):
        torch.testing.assert_close(got, want, rtol=2e-6, atol=1e-7)
        assert got.stride() == want.stride()


class Model(torch.nn.Module):
    def __init__(self, cast: str = "", weighted: bool = False, **options: Any) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(8, 10)
        self.weight = torch.nn.Buffer(W.clone()) if weighted else None
        self.cast = cast
        self.options = options

    def forward(self, x: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        logits = self.linear(x)
        weight = self.weight
        if self.cast:
            logits = logits.bfloat16()
        if self.cast == "and back":
            logits = logits.float()
        if self.cast == "only" and weight is not None:
            weight = weight.bfloat16()
        return F.cross_entropy(logits.view(-1, 10), target, weight, **self.options)


class Train(tg.Graph):
    def __init__(self, model: torch.nn.Module, *, fuse: bool = True) -> None:
        super().__init__()
        self.model = model
        self.add_optimizer(torch.optim.SGD(model.parameters(), lr=0.1))
        if fuse:
            fusing(self.config)

    def build(self, x: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        loss = self.model(x, target)
        (loss.sum() * 2).backward()
        return loss


def programs_of(graph: tg.Graph) -> list[Program]:
    return [replay.program for replay in support.replays(graph)]


# --- the five -------------------------------------------------------------------------------------


def test_match() -> None:
    program = support.build(loss_and_gradient, X, T)
    done, edits = support.apply(FuseCrossEntropy(), program)
    support.assert_golden("fuse_cross_entropy", support.before_and_after(program, done))
    assert edits == 1
    assert [name for name in support.targets(done) if "getitem" not in name] == [
        "cross_entropy",
        "ones_like",
        "cross_entropy_backward",
    ]


@pytest.mark.parametrize("reduction", ["none", "mean", "sum"])
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("cast", ["", "and back", "only"])
def test_match_as_captured(reduction, smoothing, weighted, cast) -> None:
    torch.manual_seed(0)
    model = Model(cast, weighted, reduction=reduction, label_smoothing=smoothing)
    eager, x = copy.deepcopy(model), torch.randn(2, 3, 8)
    graph, plain = Train(model), Train(eager, fuse=False)
    for _ in range(4):
        got, want = graph(x, T), plain(x, T)
        # ATen rounds the losses of rows to bfloat16 and then their sum: two units in the last place
        half = {"rtol": 2**-6, "atol": 1e-2} if cast == "only" else {"rtol": 2e-6, "atol": 1e-6}
        torch.testing.assert_close(got, want, **half)
        half = {"rtol": 1e-2, "atol": 1e-2} if cast else {"rtol": 2e-6, "atol": 1e-6}
        torch.testing.assert_close(model.linear.weight, eager.linear.weight, **half)
    targets = support.targets(programs_of(graph)[-1])
    assert [name for name in targets if name.startswith("cross_entropy")] == FUSED
    assert not [name for name in targets if "softmax" in name or "nll" in name]
    # to bfloat16, and the gradient from it: nothing of the logits' size in float32
    if cast == "and back":
        assert targets.count("_to_copy") == 2


def test_no_match() -> None:
    def step(x: Any, t: Any) -> Sequence[Any]:
        attention = aten._softmax.default(x, 1, False)
        return attention, aten._log_softmax.default(x, 1, False)

    support.assert_unchanged(FuseCrossEntropy(), support.build(step, X, T))


def test_effects_kept() -> None:
    def step(x: Any, t: Any) -> Sequence[Any]:
        kept, mask = aten.native_dropout.default(x, 0.5, True)
        loss, gradient = loss_and_gradient(kept, t)
        return loss, aten.native_dropout_backward.default(gradient, mask, 2.0), aten.rand_like(x)

    program = support.build(step, X, T)
    done, _ = support.apply(FuseCrossEntropy(), program)
    assert FUSED[1] in support.targets(done)
    torch.manual_seed(0)
    want, state = program.gm(X, T), torch.get_rng_state()
    torch.manual_seed(0)
    got = done.gm(X, T)
    assert torch.equal(state, torch.get_rng_state())
    assert torch.equal(got[2], want[2])
    torch.testing.assert_close(got[1], want[1], rtol=2e-6, atol=1e-7)


def test_idempotent() -> None:
    done, _ = support.apply(FuseCrossEntropy(), support.build(loss_and_gradient, X, T))
    support.assert_unchanged(FuseCrossEntropy(), done)


def test_parity() -> None:
    program = support.build(loss_and_gradient, X, T)
    done, _ = support.apply(FuseCrossEntropy(), program)
    close(program, done, X, T)
    assert not done.history[-1].exact


# --- whole Graphs ---------------------------------------------------------------------------------


def fusing(config: tg.GraphConfig) -> None:
    config.passes.insert(FuseCrossEntropy(), after="dce")


def make_gpt() -> Setup:
    def loss(model: torch.nn.Module, ids: torch.Tensor) -> torch.Tensor:
        logits = model(ids[:, :-1])
        return F.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten())

    model = GPT(vocabulary=97, block_size=16, layers=2, width=32, heads=2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=0.01)
    return Setup(model, optimizer, loss)


def test_parity_of_a_gpt() -> None:
    """Ten steps; the draws of dropout and the optimizer's state included."""
    torch.manual_seed(1)
    batches = [(torch.randint(0, 97, (4, 17)),) for _ in range(10)]
    graph = assert_parity(make_gpt, batches, rtol=1e-5, atol=1e-6, configure=fusing)
    assert [name for name in support.targets(programs_of(graph)[-1]) if "entropy" in name] == FUSED


def test_parity_under_amp() -> None:
    """The program casts the logits, which the op then reads as they are."""

    def configure(config: tg.GraphConfig) -> None:
        fusing(config)
        config.enable_amp(dtype=torch.bfloat16)

    def make() -> Setup:
        model = Model()
        return Setup(model, torch.optim.SGD(model.parameters(), lr=0.1), autocast)

    def autocast(model: torch.nn.Module, x: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            return model(x, target)

    batches = [(torch.randn(2, 3, 8), T) for _ in range(6)]
    graph = assert_parity(make, batches, rtol=1e-3, atol=1e-4, configure=configure)
    (op,) = (node for node in programs_of(graph)[-1].nodes if "backward" in str(node.target))
    assert op.meta["val"].dtype == torch.bfloat16


# --- lowering -------------------------------------------------------------------------------------


def test_the_gradient_takes_the_place_of_the_logits() -> None:
    def step(x: Any, t: Any) -> Sequence[Any]:
        loss, gradient = loss_and_gradient(aten.mul.Tensor(x, 2), t)
        return loss, aten.mul.Tensor(gradient, 2)

    program = support.build(step, X, T)
    done, _ = support.apply(FuseCrossEntropy(), program)
    lowered = reinplace(done)
    assert "cross_entropy_backward_" in support.targets(lowered)
    close(program, lowered, X, T)


def test_logits_that_are_returned_keep_their_memory() -> None:
    class Returning(Train):
        def build(self, x: torch.Tensor, target: torch.Tensor) -> Any:
            logits = self.model.linear(x).view(-1, 10)
            loss = F.cross_entropy(logits, target)
            loss.backward()
            return loss, logits

    model, x = Model(), torch.randn(2, 3, 8)
    logits = model.linear(x).view(-1, 10).detach()
    assert torch.equal(Returning(model)(x, T)[1], logits)


def test_evaluation() -> None:
    class Evaluate(tg.Graph):
        def __init__(self, model: torch.nn.Module) -> None:
            super().__init__()
            self.model = model
            fusing(self.config)

        def build(self, x: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
            return self.model(x, target)

    model, x = Model("and back", True, label_smoothing=0.1), torch.randn(2, 3, 8)
    graph = Evaluate(model)
    torch.testing.assert_close(support.settle(graph, x, T), model(x, T))
    assert FUSED[0] in support.targets(programs_of(graph)[-1])


# --- refusals -------------------------------------------------------------------------------------


def refusals(step: Any, *examples: Any) -> list[str]:
    program = support.build(step, *examples)
    support.assert_unchanged(FuseCrossEntropy(), program)
    done, _ = support.apply(FuseCrossEntropy(), program)
    return [refusal.reason for refusal in done.history[-1].refusals]


def test_log_probabilities_that_are_read_elsewhere() -> None:
    def step(x: Any, t: Any) -> Sequence[Any]:
        probabilities = aten._log_softmax.default(x, 1, False)
        loss, _ = aten.nll_loss_forward.default(probabilities, t, None, 1, -100)
        return loss, aten.exp.default(probabilities)

    assert refusals(step, X, T) == ["something else reads the log-probabilities"]


def test_the_total_weight_read_elsewhere() -> None:
    def step(x: Any, t: Any) -> Sequence[Any]:
        probabilities = aten._log_softmax.default(x, 1, False)
        return aten.nll_loss_forward.default(probabilities, t, None, 1, -100)

    assert refusals(step, X, T) == ["something else reads a part of the loss"]


def test_a_gradient_of_more_than_the_loss() -> None:
    def step(x: Any, t: Any) -> Sequence[Any]:
        probabilities = aten._log_softmax.default(x, 1, False)
        loss, total = aten.nll_loss_forward.default(probabilities, t, None, 1, -100)
        grad = aten.nll_loss_backward.default(loss, probabilities, t, None, 1, -100, total)
        grad = aten.add.Tensor(grad, x)
        return loss, aten._log_softmax_backward_data.default(grad, probabilities, 1, x.dtype)

    assert refusals(step, X, T) == ["the gradient of the log-probabilities is not the loss's alone"]


def test_another_dimension() -> None:
    def images(x: Any, t: Any) -> Sequence[Any]:
        probabilities = aten._log_softmax.default(x, 1, False)
        return aten.nll_loss2d_forward.default(probabilities, t, None, 1, -100)[:1]

    def across(x: Any, t: Any) -> Sequence[Any]:
        probabilities = aten._log_softmax.default(x, 0, False)
        return aten.nll_loss_forward.default(probabilities, t, None, 1, -100)[:1]

    targets = torch.zeros(2, 4, 5, dtype=torch.int64)
    reason = "the classes are not the last of two dimensions"
    assert refusals(images, torch.randn(2, 3, 4, 5), targets) == [reason]
    assert refusals(across, X, T) == ["the softmax is not over the classes"]


def test_factors_that_are_not_those_of_label_smoothing() -> None:
    def step(x: Any, t: Any) -> Sequence[Any]:
        probabilities = aten._log_softmax.default(x, 1, False)
        loss, _ = aten.nll_loss_forward.default(probabilities, t, None, 2, -100)
        rows = aten.neg.default(aten.sum.dim_IntList(probabilities, [1]))
        rows = aten.masked_fill.Scalar(rows, aten.eq.Scalar(t, -100), 0.0)
        spread = aten.mul.Scalar(aten.sum.default(rows), 0.02)
        return (aten.add.Tensor(aten.mul.Scalar(loss, 0.9), spread),)

    assert refusals(step, X, T) == ["the factors of the loss are none of label smoothing"]


def test_a_second_derivative_is_left_to_aten() -> None:
    class Penalty(Train):
        def build(self, x: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
            x = x.detach().requires_grad_()
            loss = F.cross_entropy(self.model.linear(x), target)
            (slope,) = torch.autograd.grad(loss, x, create_graph=True)
            total = loss + slope.square().sum()
            total.backward()
            return total

    model, x = Model(), torch.randn(6, 8)
    eager = copy.deepcopy(model)
    got, want = Penalty(model)(x, T), Penalty(eager, fuse=False)(x, T)
    assert torch.equal(got, want)
    assert torch.equal(model.linear.weight, eager.linear.weight)


def test_refused_where_the_op_is_not_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rule, "has_kernel", lambda op, device: False)
    program = support.build(loss_and_gradient, X, T)
    support.assert_unchanged(FuseCrossEntropy(), program)
    done, _ = support.apply(FuseCrossEntropy(), program)
    (refusal,) = done.history[-1].refusals
    assert refusal.reason == "no kernel of cross_entropy is compiled for cpu"
