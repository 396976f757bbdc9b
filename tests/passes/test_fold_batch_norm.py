from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import nn

import torchgraph as tg
from tests import cudnn as cudnn, support
from torchgraph.ir.program import Program
from torchgraph.passes import FoldBatchNorm, run

aten = torch.ops.aten
ALWAYS = FoldBatchNorm(least_saving=-(2**20))
X = torch.randn(2, 3, 8, 8)
WEIGHT, BIAS = torch.randn(4, 3, 3, 3), torch.randn(4)
GAMMA, BETA, MEAN, VARIANCE = torch.rand(4), torch.randn(4), torch.randn(4), torch.rand(4) + 0.5
EXAMPLES = (X, WEIGHT, BIAS, GAMMA, BETA, MEAN, VARIANCE)


def convolution(x: Any, weight: Any, bias: Any, *, transposed: bool = False) -> Any:
    return aten.convolution.default(x, weight, bias, [1, 1], [1, 1], [1, 1], transposed, [0, 0], 1)


def norm(x: Any, gamma: Any, beta: Any, mean: Any, variance: Any) -> Any:
    return aten._native_batch_norm_legit_no_training.default(
        x, gamma, beta, mean, variance, 0.1, 1e-5
    )


def folds(x: Any, w: Any, b: Any, g: Any, beta: Any, m: Any, v: Any) -> Sequence[Any]:
    return (norm(convolution(x, w, b), g, beta, m, v)[0],)


def folds_without_bias(x: Any, w: Any, b: Any, g: Any, beta: Any, m: Any, v: Any) -> Sequence[Any]:
    return (norm(convolution(x, w, None), None, None, m, v)[0],)


def folds_as_on_cuda(x: Any, w: Any, b: Any, g: Any, beta: Any, m: Any, v: Any) -> Sequence[Any]:
    y = convolution(x, w, b)
    return (aten.cudnn_batch_norm.default(y, g, beta, m, v, False, 0.1, 1e-5)[0],)


def no_pattern(x: Any, w: Any, b: Any, g: Any, beta: Any, m: Any, v: Any) -> Sequence[Any]:
    return (norm(aten.relu.default(convolution(x, w, b)), g, beta, m, v)[0],)


def program(step: Callable[..., Sequence[Any]] = folds) -> Program:
    return support.build(step, *EXAMPLES)


def assert_close(before: Program, after: Program, *examples: torch.Tensor) -> None:
    for expected, got in zip(before.gm(*examples), after.gm(*examples), strict=True):
        torch.testing.assert_close(got, expected)
        assert got.stride() == expected.stride()


def test_match() -> None:
    before = program()
    done, edits = support.apply(ALWAYS, before)
    support.assert_golden("fold_batch_norm", support.before_and_after(before, done))
    assert edits == 1


def test_no_match() -> None:
    support.assert_unchanged(ALWAYS, program(no_pattern))


def test_effects_kept() -> None:
    def step(x: Any, w: Any, b: Any, g: Any, beta: Any, m: Any, v: Any) -> Sequence[Any]:
        noise = aten.rand_like.default(x)
        y = norm(convolution(aten.add.Tensor(x, noise), w, b), g, beta, m, v)[0]
        return (aten.mul.Tensor(y, aten.rand_like.default(y)),)

    before = program(step)
    done, edits = support.apply(ALWAYS, before)
    assert edits == 1
    torch.manual_seed(0)
    expected = before.gm(*EXAMPLES)[0]
    torch.manual_seed(0)
    torch.testing.assert_close(done.gm(*EXAMPLES)[0], expected)


def test_idempotent() -> None:
    done, _ = support.apply(ALWAYS, program())
    support.assert_unchanged(ALWAYS, done)


@pytest.mark.parametrize("step", [folds, folds_without_bias, folds_as_on_cuda])
@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_parity(step: Any, layout: torch.memory_format, dtype: torch.dtype) -> None:
    x, *rest = (example.to(dtype) for example in EXAMPLES)
    examples = (x.to(memory_format=layout), *rest)
    before = support.build(step, *examples)
    done, edits = support.apply(ALWAYS, before)
    assert edits == 1
    assert_close(before, done, *examples)
    tg.testing.check_pass(before, ALWAYS, examples)
    assert not ALWAYS.exact(before)


def two_readers(x: Any, w: Any, b: Any, g: Any, beta: Any, m: Any, v: Any) -> Sequence[Any]:
    y = convolution(x, w, b)
    return norm(y, g, beta, m, v)[0], y


def in_training(x: Any, w: Any, b: Any, g: Any, beta: Any, m: Any, v: Any) -> Sequence[Any]:
    y = convolution(x, w, b)
    return (aten._native_batch_norm_legit_functional.default(y, g, beta, m, v, True, 0.1, 1e-5)[0],)


def in_training_as_on_cuda(
    x: Any, w: Any, b: Any, g: Any, beta: Any, m: Any, v: Any
) -> Sequence[Any]:
    y = convolution(x, w, b)
    return (aten.cudnn_batch_norm.default(y, g, beta, None, None, True, 0.1, 1e-5)[0],)


def transposed(x: Any, w: Any, b: Any, g: Any, beta: Any, m: Any, v: Any) -> Sequence[Any]:
    turned = aten.transpose.int(w, 0, 1)
    return (norm(convolution(x, turned, b, transposed=True), g, beta, m, v)[0],)


def half(x: Any, w: Any, b: Any, g: Any, beta: Any, m: Any, v: Any) -> Sequence[Any]:
    x, w, b = (t.to(torch.bfloat16) for t in (x, w, b))
    return (norm(convolution(x, w, b), g, beta, m, v)[0],)


def reads_statistics(x: Any, w: Any, b: Any, g: Any, beta: Any, m: Any, v: Any) -> Sequence[Any]:
    y, mean, _ = norm(convolution(x, w, b), g, beta, m, v)
    return y, aten.add.Tensor(mean, 1)


@pytest.mark.parametrize(
    ("step", "reason"),
    [
        (two_readers, "something else reads"),
        (in_training, "training mode"),
        (in_training_as_on_cuda, "training mode"),
        (transposed, "transposed"),
        (half, "half"),
        (reads_statistics, "statistics"),
    ],
)
def test_refusals(step: Any, reason: str) -> None:
    before = program(lambda x, w, b, g, beta, m, v: step(x, w, b, g, beta, m, v))
    done, edits = support.apply(ALWAYS, before)
    assert edits == 0
    (refusal,) = done.history[-1].refusals
    assert reason in refusal.reason


def test_small_outputs_are_refused() -> None:
    done = run(program(), (FoldBatchNorm(),), support.STRICT)
    assert done.history[-1].edits == 0
    assert "65536 outputs" in done.history[-1].refusals[0].reason


class Folding(tg.Graph):
    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model
        self.config.passes.insert(ALWAYS, after="cse")

    def build(self, x: Any) -> Any:
        return self.model(x)


def block() -> nn.Sequential:
    shared = nn.Conv2d(3, 3, 3, padding=1)
    model = nn.Sequential(shared, nn.BatchNorm2d(3), nn.ReLU(), shared, nn.BatchNorm2d(3))
    for module in model:
        if isinstance(module, nn.BatchNorm2d):
            nn.init.normal_(module.weight)
            nn.init.uniform_(module.running_var, 0.5, 2.0)
    return model.eval()


def test_a_graph_with_a_shared_weight_that_moves_unseen() -> None:
    model = block()
    graph = Folding(model)
    for _ in range(5):
        torch.testing.assert_close(graph(X), model(X))
        model[0].weight.data.copy_(torch.randn_like(model[0].weight))  # no version, no pointer
        model[1].running_mean.data.add_(1.0)
        model[4].weight.data.mul_(0.5)
    record = next(r for r in graph.report().passes if r.name == "fold_batch_norm")
    assert record.edits == 2
    assert not record.exact


def test_back_in_training_mode_nothing_is_folded() -> None:
    model, twin = block(), block()
    twin.load_state_dict(model.state_dict())
    graph = Folding(model)
    support.settle(graph, X)
    model.train()
    twin.train()
    for _ in range(4):
        assert torch.equal(graph(X), twin(X))
    assert torch.equal(model[1].running_mean, twin[1].running_mean)
    record = next(r for r in graph.report().passes if r.name == "fold_batch_norm")
    assert record.edits == 0
    assert "training mode" in record.refusals[0].reason
