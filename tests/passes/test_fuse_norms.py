"""Norms and the additions around them: fuse_layer_norm, fuse_rms_norm."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import torchgraph as tg
from examples.models.gpt import GPT
from tests import support
from torchgraph.ir.program import Program
from torchgraph.passes import FuseLayerNorm, FuseRmsNorm, Pass
from torchgraph.passes.fusions.norm import layer_norm as layer_rule, rms_norm as rms_rule
from torchgraph.testing import Setup, assert_parity

aten = torch.ops.aten
X, R, W, B, G = (
    torch.randn(2, 3, 8),
    torch.randn(2, 3, 8),
    torch.rand(8),
    torch.randn(8),
    torch.randn(2, 3, 8),
)


@pytest.fixture(autouse=True)
def compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if the ops were compiled here; what runs is whatever there is."""
    for rule in (layer_rule, rms_rule):
        monkeypatch.setattr(rule, "has_kernel", lambda op, device: True)


LAYER_NORM = FuseLayerNorm(least_size=0)
LAYER = ["add_layer_norm", "add_layer_norm_backward"]
RMS = ["add_rms_norm", "add_rms_norm_backward"]


def layer_norm(x: Any, r: Any, w: Any, b: Any, g: Any) -> Sequence[Any]:
    """A residual connection around a layer norm, and its backward."""
    total = aten.add.Tensor(x, r)
    out, mean, rstd = aten.native_layer_norm.default(total, [8], w, b, 1e-5)
    back = aten.native_layer_norm_backward.default(
        g, total, [8], mean, rstd, w, b, [True, True, True]
    )
    return out, total, aten.add.Tensor(g, back[0]), back[1], back[2]


def rms_norm(x: Any, r: Any, w: Any, b: Any, g: Any) -> Sequence[Any]:
    """What capture records of the same around ``F.rms_norm``."""
    total = aten.add.Tensor(x, r)
    square = aten.mean.dim(aten.pow.Tensor_Scalar(total, 2), [2], True)
    rstd = aten.rsqrt.default(aten.add.Scalar(square, 1e-6))
    normal = aten.mul.Tensor(total, rstd)
    out = aten.mul.Tensor(normal, w)
    by_weight = aten.sum.dim_IntList(aten.mul.Tensor(g, normal), [0, 1], True)
    by_weight = aten.view.default(by_weight, [8])
    weighted = aten.mul.Tensor(g, w)
    dot = aten.sum.dim_IntList(aten.mul.Tensor(weighted, total), [2], True)
    grad = aten.add.Tensor(g, aten.mul.Tensor(weighted, rstd))
    half = aten.mul.Tensor(aten.mul.Scalar(dot, -0.5), aten.pow.Tensor_Scalar(rstd, 3))
    share = aten.div.Scalar(aten.expand.default(half, [2, 3, 8]), 8)
    twice = aten.mul.Scalar(aten.pow.Tensor_Scalar(total, 1.0), 2.0)
    return out, total, aten.add.Tensor(grad, aten.mul.Tensor(share, twice)), by_weight


CASES: list[tuple[Pass, Any, list[str]]] = [
    (LAYER_NORM, layer_norm, LAYER),
    (FuseRmsNorm(), rms_norm, RMS),
]
both = pytest.mark.parametrize(("one", "step", "fused"), CASES, ids=["layer", "rms"])


def close(program: Program, done: Program, *examples: Any) -> None:
    """Within rounding: the passes are not exact."""
    for got, want in zip(done.gm(*examples), program.gm(*examples), strict=True):
        torch.testing.assert_close(got, want, rtol=1e-5, atol=1e-6)
        assert got.stride() == want.stride()


def ops_of(program: Program) -> list[str]:
    return [name for name in support.targets(program) if "norm" in name]


# --- the five -------------------------------------------------------------------------------------


@both
def test_match(one, step, fused) -> None:
    program = support.build(step, X, R, W, B, G)
    done, edits = support.apply(one, program)
    support.assert_golden(one.name, support.before_and_after(program, done))
    assert edits == (2 if one.name == "fuse_layer_norm" else 1)
    assert [name for name in support.targets(done) if name != "getitem"] == fused


@both
def test_no_match(one, step, fused) -> None:
    def nothing(x: Any, r: Any, w: Any, b: Any, g: Any) -> Sequence[Any]:
        out, mean, rstd = aten.native_layer_norm.default(x, [8], w, b, 1e-5)
        back = aten.native_layer_norm_backward.default(
            g, x, [8], mean, rstd, w, b, [True, True, True]
        )
        return out, *back, aten.mul.Tensor(x, aten.rsqrt.default(aten.add.Scalar(r, 1.0)))

    support.assert_unchanged(one, support.build(nothing, X, R, W, B, G))


@both
def test_effects_kept(one, step, fused) -> None:
    def random(x: Any, r: Any, w: Any, b: Any, g: Any) -> Sequence[Any]:
        noise = aten.rand_like.default(x)
        return *step(x, aten.add.Tensor(r, noise), w, b, g), aten.rand_like.default(x)

    program = support.build(random, X, R, W, B, G)
    done, _ = support.apply(one, program)
    assert set(fused) <= set(support.targets(done))
    torch.manual_seed(0)
    want, state = program.gm(X, R, W, B, G), torch.get_rng_state()
    torch.manual_seed(0)
    got = done.gm(X, R, W, B, G)
    assert torch.equal(state, torch.get_rng_state())
    assert torch.equal(got[-1], want[-1])


@both
def test_idempotent(one, step, fused) -> None:
    done, _ = support.apply(one, support.build(step, X, R, W, B, G))
    support.assert_unchanged(one, done)


@both
def test_parity(one, step, fused) -> None:
    program = support.build(step, X, R, W, B, G)
    done, _ = support.apply(one, program)
    close(program, done, X, R, W, B, G)
    double = [each.double() for each in (X, R, W, B, G)]
    program = support.build(step, *double)
    done, _ = support.apply(one, program)
    close(program, done, *double)


# --- whole Graphs ---------------------------------------------------------------------------------


class Llama(nn.Module):
    """RMS norm as Hugging Face's Llama writes it."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.rand(width) + 0.5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        wide = x.to(torch.float32)
        wide = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-6)
        return self.weight * wide.to(x.dtype)


NORMS = {"layer": nn.LayerNorm, "rms": nn.RMSNorm, "llama": Llama}


def make(kind: str) -> Setup:
    def loss(model: nn.Module, ids: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(model(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten())

    model = GPT(vocabulary=31, block_size=8, layers=2, width=16, heads=2)
    for block in model.blocks:
        block.attention_norm, block.mlp_norm = NORMS[kind](16), NORMS[kind](16)
    model.norm = NORMS[kind](16)
    return Setup(model, torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9), loss)


@pytest.mark.parametrize("kind", NORMS)
def test_parity_of_a_gpt(kind) -> None:
    def configure(config: tg.GraphConfig) -> None:
        config.passes.insert(LAYER_NORM, after="dce")
        config.passes.insert(FuseRmsNorm(), after="dce")

    torch.manual_seed(1)
    batches = [(torch.randint(0, 31, (2, 9)),) for _ in range(6)]
    graph = assert_parity(lambda: make(kind), batches, rtol=1e-4, atol=1e-6, configure=configure)
    program = [replay.program for replay in support.replays(graph)][-1]
    forward, backward = LAYER if kind == "layer" else RMS
    # Five norms. The first normalizes no sum, and the gradient of the last is added to none.
    assert ops_of(program).count(forward) == (4 if kind == "layer" else 5)
    assert ops_of(program).count(backward) == (4 if kind == "layer" else 5)


@pytest.mark.parametrize("kind", NORMS)
def test_the_option_for_additions_is_for_norms_too(kind) -> None:
    torch.manual_seed(1)
    graph = assert_parity(
        lambda: make(kind),
        [(torch.randint(0, 31, (2, 9)),) for _ in range(6)],
        rtol=1e-4,
        atol=1e-6,
        configure=lambda config: config.allow_fuse_add_to_output(),
    )
    passes = {record.name: record for record in graph.report().passes}
    if kind == "layer":  # of 256 numbers
        (reason,) = {refusal.reason for refusal in passes["fuse_layer_norm"].refusals}
        assert reason == "there are too few numbers for the op to gain"
    else:
        assert passes["fuse_rms_norm"].edits == 5


def test_evaluation_has_no_backward() -> None:
    class Evaluate(tg.Graph):
        def __init__(self, model: nn.Module) -> None:
            super().__init__()
            self.model = model
            self.config.passes.insert(FuseRmsNorm(), after="dce")

        def build(self, x: torch.Tensor) -> torch.Tensor:
            return self.model(x)

    model = nn.Sequential(nn.Linear(8, 8), nn.RMSNorm(8))
    graph = Evaluate(model.eval())
    torch.testing.assert_close(support.settle(graph, X), model(X))
    (replay,) = support.replays(graph)
    assert ops_of(replay.program) == RMS[:1]


def test_a_frozen_weight() -> None:
    class Train(tg.Graph):
        def __init__(self, model: nn.Module) -> None:
            super().__init__()
            self.model = model
            self.add_optimizer(torch.optim.SGD([model[0].weight], lr=0.1))
            self.config.passes.insert(FuseRmsNorm(), after="dce")

        def build(self, x: torch.Tensor) -> torch.Tensor:
            loss = self.model(x).square().sum()
            loss.backward()
            return loss

    model = nn.Sequential(nn.Linear(8, 8, bias=False), nn.RMSNorm(8))
    model[1].weight.requires_grad_(False)
    other = copy.deepcopy(model)
    graph = Train(model)
    for _ in range(3):
        graph(X)
        loss = other(X).square().sum()
        loss.backward()
        with torch.no_grad():
            other[0].weight.sub_(other[0].weight.grad, alpha=0.1)
        other[0].weight.grad = None
        torch.testing.assert_close(model[0].weight, other[0].weight)
    (replay,) = support.replays(graph)
    assert ops_of(replay.program) == RMS


# --- refusals -------------------------------------------------------------------------------------


def refusals(one: Pass, step: Any, *examples: Any) -> list[str]:
    program = support.build(step, *examples)
    support.assert_unchanged(one, program)
    done, _ = support.apply(one, program)
    return [refusal.reason for refusal in done.history[-1].refusals]


@both
def test_half_precision(one, step, fused) -> None:
    half = [each.bfloat16() for each in (X, R, W, B, G)]
    reasons = set(refusals(one, step, *half))
    assert reasons == {"only float32 and float64 on the CPU were measured to gain"}


@both
def test_where_the_op_is_not_compiled(one, step, fused, monkeypatch) -> None:
    for rule in (layer_rule, rms_rule):
        monkeypatch.setattr(rule, "has_kernel", lambda op, device: False)
    reasons = set(refusals(one, step, X, R, W, B, G))
    assert reasons == {f"no kernel of {fused[0]} is compiled for cpu"}


def test_a_norm_over_two_dimensions() -> None:
    def step(x: Any, r: Any, w: Any) -> Sequence[Any]:
        return (aten.native_layer_norm.default(aten.add.Tensor(x, r), [3, 8], w, None, 1e-5)[0],)

    reasons = refusals(LAYER_NORM, step, X, R, torch.rand(3, 8))
    assert reasons == ["more than the last dimension is normalized, or there is no weight"]


def test_a_root_that_is_read_elsewhere() -> None:
    def step(x: Any, w: Any) -> Sequence[Any]:
        square = aten.mean.dim(aten.pow.Tensor_Scalar(x, 2), [2], True)
        rstd = aten.rsqrt.default(aten.add.Scalar(square, 1e-6))
        return aten.mul.Tensor(aten.mul.Tensor(x, rstd), w), rstd

    assert refusals(FuseRmsNorm(), step, X, W) == ["its gradient is computed in another way"]


def test_a_gradient_of_a_weight_that_is_read_early() -> None:
    def step(x: Any, r: Any, w: Any, b: Any, g: Any) -> Sequence[Any]:
        out, mean, rstd = aten.native_layer_norm.default(x, [8], w, b, 1e-5)
        back = aten.native_layer_norm_backward.default(
            g, x, [8], mean, rstd, w, b, [True, True, True]
        )
        other = aten.mul.Tensor(g, back[1])
        return out, aten.add.Tensor(back[0], other)

    assert refusals(LAYER_NORM, step, X, R, W, B, G) == [
        "the gradient by a parameter is read before the other gradient is there"
    ]
