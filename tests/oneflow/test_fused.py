"""Fused functions against what OneFlow's own unit tests hold them to: the functions they fuse.

OneFlow 0.9 has these on CUDA only, so that no number of it was to be had on a CPU.
"""

from __future__ import annotations

import math

import pytest
import torch
from torch.nn import functional

import torchgraph as tg
from torchgraph.oneflow._port.errors import NotPorted
from torchgraph.oneflow._port.names import table


def of(name):
    return table()[f"_C.{name}"].value()


def close(found, expected):
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)


def test_bias_add_gelu_is_gelu_of_the_sum_along_an_axis():
    x, bias = torch.randn(2, 3, 4), torch.randn(3)
    close(of("fused_bias_add_gelu")(x, bias, axis=1), functional.gelu(x + bias[None, :, None]))


def test_masked_softmax_fills_where_the_mask_is_zero():
    x, mask = torch.randn(2, 3, 4, 4), torch.rand(2, 1, 4, 4) > 0.4
    filled = x * mask * 2.0 + -1e4 * (1.0 - mask.float())
    expected = torch.softmax(filled, -1)
    close(of("fused_scale_mask_softmax")(x, mask, fill_value=-1e4, scale=2.0), expected)
    both = of("fused_scale_mask_softmax_dropout")(
        x, mask.to(torch.int8), fill_value=-1e4, scale=2.0, p=0.0
    )
    close(list(both), [expected, expected])
    bias = torch.randn(1, 3, 4, 4)
    three = of("fused_bias_add_scale_mask_softmax_dropout")
    found = three(x - bias, bias, mask, fill_value=-1e4, scale=2.0, p=0.7, training=False)
    close(list(found), [expected, expected])


@pytest.mark.parametrize("diagonal", [-1, 0, 2])
def test_tril_scales_below_and_fills_above(diagonal):
    x = torch.randn(2, 4, 5)
    above = torch.full((4, 5), -3.0).triu(diagonal + 1)
    expected = (x * 2.5).tril(diagonal) + above
    close(of("fused_scale_tril")(x, diagonal, -3.0, 2.5), expected)
    softmax = torch.softmax(expected, -1)
    found = of("fused_scale_tril_softmax_mask_scale")(
        x, p=0.0, diagonal=diagonal, tril_scale_value=2.5, tril_fill_value=-3.0
    )
    close(list(found), [softmax, softmax])


def test_self_attention_takes_query_key_value_from_each_head():
    hidden = torch.randn(5, 2, 3 * 3 * 4)
    split = hidden.reshape(5, 2, 3, 12)
    query, key, value = (split[..., k : k + 4].permute(1, 2, 0, 3) for k in (0, 4, 8))
    products, values = of("fused_self_attention")(hidden, head_size=4, alpha=0.5)
    close(products, 0.5 * query @ key.transpose(2, 3))
    close(values, value)


@pytest.mark.parametrize("causal", [False, True])
def test_attention_of_all_heads(causal):
    query, key, value = torch.randn(2, 5, 8), torch.randn(2, 5, 8), torch.randn(2, 5, 6)
    found = of("fused_multi_head_attention_inference")(query, key, value, 2, causal=causal)
    for head in (0, 1):
        q, k = query[..., 4 * head : 4 * head + 4], key[..., 4 * head : 4 * head + 4]
        scores = q @ k.transpose(1, 2) / math.sqrt(4)
        if causal:
            scores = scores + torch.full((5, 5), -math.inf).triu(1)
        expected = torch.softmax(scores, -1) @ value[..., 3 * head : 3 * head + 3]
        close(found[..., 3 * head : 3 * head + 3], expected)
    part = of("fused_multi_head_attention_inference")(
        torch.cat([query, query], -1), key, value, 2, causal, query_hidden_slice_start=8
    )
    close(part, found)


def test_norms_over_the_last_dimensions():
    x, weight, bias = torch.randn(2, 3, 4), torch.randn(3, 4), torch.randn(3, 4)
    mean, variance = x.mean((1, 2), keepdim=True), x.var((1, 2), unbiased=False, keepdim=True)
    normal = (x - mean) / torch.sqrt(variance + 0.1)
    close(of("layer_norm")(x, 1, 1, 0.1), normal)
    close(of("layer_norm_affine")(x, weight, bias, 1, -2, 0.1), normal * weight + bias)
    with pytest.raises(NotPorted, match="begin_params_axis"):
        of("layer_norm_affine")(x, weight, bias, 1, 2, 0.1)
    rms = x / torch.sqrt(x.square().mean((1, 2), keepdim=True) + 1e-6)
    close(of("rms_norm")(x, weight, (3, 4)), rms * weight)
    module = table()["nn.RMSNorm"].value()((3, 4))
    assert module.eps == 1e-5
    close(module(x * 1e-3), x * 1e-3 / torch.sqrt((x * 1e-3).square().mean((1, 2), True) + 1e-5))
    grouped = functional.group_norm(x, 3)
    close(
        of("group_norm")(x, None, None, False, 3, 1e-5, activation="silu"), functional.silu(grouped)
    )


def test_products_of_features():
    first, others = torch.randn(3, 1, 6), torch.randn(3, 2, 6)
    a, b, c = first[:, 0], others[:, 0], others[:, 1]
    pairs = [(b * a).sum(1), (c * a).sum(1), (c * b).sum(1)]
    found = of("fused_dot_feature_interaction")([first, others], output_concat=a, output_padding=1)
    close(found, torch.cat([a, torch.stack([*pairs, torch.zeros(3)], 1)], 1))
    pooled = of("fused_dot_feature_interaction")([first, others], pooling="sum")
    close(pooled, sum(pairs)[:, None])
    with_self = of("fused_dot_feature_interaction")([first, others], self_interaction=True)
    close(with_self[:, [0, 2, 5]], torch.stack([(v * v).sum(1) for v in (a, b, c)], 1))
    with pytest.raises(NotPorted, match="pooling"):
        of("fused_dot_feature_interaction")([first], pooling="sum", self_interaction=True)


def test_cross_layers():
    x, x_0, bias = torch.randn(2, 3), torch.randn(2, 3), torch.randn(3)
    cross = of("fused_cross_feature_interaction")
    vector, matrix = torch.randn(1, 3), torch.randn(3, 3)
    close(cross(x, vector, x_0, bias, "vector"), x_0 * (x * vector).sum(1, True) + bias + x)
    close(cross(x, matrix, x_0, bias, "matrix"), x_0 * (x @ matrix.T + bias) + x)


@pytest.mark.parametrize("activation", ["none", "sigmoid", "relu", "gelu", "fast_gelu", "silu"])
def test_gated_linear_units(activation):
    x, w, v, b, c = (torch.randn(*s) for s in ((2, 3), (4, 3), (4, 3), (4,), (4,)))
    gates = {"none": lambda g: g, "fast_gelu": lambda g: functional.gelu(g, approximate="tanh")}
    gate = gates.get(activation) or getattr(functional, activation)
    expected = (x @ w.T + b) * gate(x @ v.T + c)
    close(of("fused_glu")(x, w, b, v, c, activation=activation), expected)
    close(of("fused_glu")(x, torch.cat([w, v]), torch.cat([b, c]), activation=activation), expected)


def test_small_ones():
    x, y = torch.randn(2, 3), torch.randn(2, 3)
    close(of("fused_fast_gelu_mul")(x, y), functional.gelu(x, approximate="tanh") * y)
    first, second = of("grouped_matmul_bias")([x, y], [x, y], [x[:, 0], y[:, 0]])
    close(first, x @ x.T + x[:, 0])
    close(second, y @ y.T + y[:, 0])
    close(of("sqrt_square_sum")(x), (x * x).sum().sqrt())


DROPPING = {
    "dropout": lambda one, g: of("dropout")(one, 0.25, generator=g),
    "fused_bias_add_dropout": lambda one, g: of("fused_bias_add_dropout")(
        one, torch.zeros(100), p=0.25, axis=1, generator=g
    ),
    "fused_matmul_bias_add_relu_dropout": lambda one, g: of("fused_matmul_bias_add_relu_dropout")(
        one, [torch.eye(100)], [torch.zeros(100)], True, [0.25], g
    ),
    "nn.Dropout": lambda one, g: table()["nn.Dropout"].value()(0.25, generator=g)(one),
}


@pytest.mark.parametrize("own", [False, True])
@pytest.mark.parametrize("name", DROPPING)
def test_dropout_drops_a_share_and_scales_the_rest(name, own):
    def drawn(seed):
        torch.manual_seed(0 if own else seed)
        generator = torch.Generator().manual_seed(seed) if own else None
        return DROPPING[name](torch.ones(200, 100), generator)

    found = drawn(7)
    assert (found == 0).float().mean().item() == pytest.approx(0.25, abs=0.01)
    close(found[found != 0], torch.full_like(found[found != 0], 1 / 0.75))
    assert torch.equal(found, drawn(7))
    assert not torch.equal(found, drawn(8))


def test_dropout_in_place_spares_what_a_gradient_needs():
    drop = table()["nn.Dropout"].value()(0.5, inplace=True)
    x = torch.randn(1000, requires_grad=True)
    result = drop(torch.relu(x))
    result.sum().backward()
    close(x.grad, (result.detach() != 0) * 2.0)
    with torch.no_grad():
        written = torch.ones(1000)
        assert drop(written) is written
        assert set(written.tolist()) == {0.0, 2.0}
    with pytest.raises(NotPorted, match="inplace"):
        of("dropout")(x, 0.5, inplace=True)


class Attention(torch.nn.Module):
    """A layer of several adapters, as a script for OneFlow has them."""

    def __init__(self) -> None:
        super().__init__()
        self.project = torch.nn.Linear(8, 24)
        self.bias = torch.nn.Parameter(torch.randn(8))
        self.drop = table()["nn.Dropout"].value()(0.5, inplace=True)
        self.loss = table()["nn.CrossEntropyLoss"].value()()

    def forward(self, x, mask, labels):
        products, values = of("fused_self_attention")(self.project(x), head_size=4, alpha=0.5)
        weights, _ = of("fused_scale_mask_softmax_dropout")(
            products, mask, fill_value=-1e4, scale=2.0, p=0.5
        )
        mixed = (weights @ values).permute(2, 0, 1, 3).flatten(2)
        mixed = self.drop(torch.relu(of("fused_bias_add_gelu")(mixed, self.bias, axis=2)))
        return self.loss(of("matmul")(mixed, mixed, transpose_b=True).flatten(0, 1), labels)


def test_a_graph_records_them():
    model = Attention()

    class Step(tg.Graph):
        def __init__(self):
            super().__init__()
            self.model = model
            self.add_optimizer(torch.optim.SGD(model.parameters(), lr=0.1))

        def build(self, x, mask, labels):
            loss = self.model(x, mask, labels)
            loss.backward()
            return loss

    x, mask = torch.randn(3, 2, 8), torch.rand(2, 2, 3, 3) > 0.3
    labels = torch.tensor([0, 1] * 3, dtype=torch.int32)
    step, before = Step(), model.bias.detach().clone()
    losses = [step(x, mask, labels).item() for _ in range(4)]
    assert all(map(math.isfinite, losses))
    assert len(set(losses)) == 4  # new masks each time
    assert not torch.equal(before, model.bias)
