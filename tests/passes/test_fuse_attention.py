from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import nn

import torchgraph as tg
from tests import support
from torchgraph.ir.program import Program, Refusal
from torchgraph.passes import Canonicalize, CommonSubexpressions, DeadCode, FuseAttention, run

aten = torch.ops.aten
FUSE = FuseAttention()
BATCH, HEADS, ROWS, KEYS, WIDTH = 2, 3, 5, 6, 4
Q = torch.randn(BATCH, HEADS, ROWS, WIDTH)
K = torch.randn(BATCH, HEADS, KEYS, WIDTH)
V = torch.randn(BATCH, HEADS, KEYS, WIDTH)
ADDED = torch.randn(BATCH, 1, ROWS, KEYS)
FILLED = torch.arange(KEYS) > torch.arange(ROWS)[:, None] + 1  # every row keeps two keys
TOLERANCE = 1e-6  # of float32 averages of numbers of order 1
FUSED = "scaled_dot_product_attention"


def product(left: Any, right: Any) -> Any:
    """What ``left @ right`` is captured as."""
    batch, heads, rows, inner = left.shape
    columns = right.shape[-1]
    flat = [
        aten.view.default(aten.clone.default(one, memory_format=torch.contiguous_format), shape)
        for one, shape in (
            (left, [batch * heads, rows, inner]),
            (right, [batch * heads, inner, columns]),
        )
    ]
    return aten.view.default(aten.bmm.default(*flat), [batch, heads, rows, columns])


def scores(q: Any, k: Any) -> Any:
    return aten.mul.Tensor(product(q, aten.transpose.int(k, -2, -1)), 0.5)


def softmax(values: Any, dim: int = -1) -> Any:
    return aten._softmax.default(values, dim, False)


def plain(q: Any, k: Any, v: Any) -> Sequence[Any]:
    return (product(softmax(scores(q, k)), v),)


def merged_heads(q: Any, k: Any, v: Any) -> Sequence[Any]:
    (result,) = plain(q, k, v)
    rows = aten.transpose.int(result, 1, 2)
    rows = aten.clone.default(rows, memory_format=torch.contiguous_format)
    return (aten._unsafe_view.default(rows, [BATCH, ROWS, HEADS * WIDTH]),)


def divided(q: Any, k: Any, v: Any) -> Sequence[Any]:
    weights = aten.div.Tensor(product(q, aten.transpose.int(k, -2, -1)), math.sqrt(WIDTH))
    return (product(softmax(weights, 3), v),)


def added_mask(q: Any, k: Any, v: Any, mask: Any) -> Sequence[Any]:
    return (product(softmax(aten.add.Tensor(mask, scores(q, k))), v),)


def filled_mask(q: Any, k: Any, v: Any, mask: Any) -> Sequence[Any]:
    filled = aten.masked_fill.Scalar(scores(q, k), mask, -math.inf)
    return (product(softmax(filled), v),)


def folded_heads(q: Any, k: Any, v: Any, mask: Any) -> Sequence[Any]:
    """As models write it that call ``bmm`` themselves, the mask one per batch and head."""
    q3, k3, v3 = (aten.view.default(each, [BATCH * HEADS, -1, WIDTH]) for each in (q, k, v))
    weights = aten.bmm.default(q3, aten.transpose.int(k3, 1, 2))
    mask3 = aten.view.default(
        aten.clone.default(
            aten.expand.default(mask, [BATCH, HEADS, ROWS, KEYS]),
            memory_format=torch.contiguous_format,
        ),
        [BATCH * HEADS, ROWS, KEYS],
    )
    return (aten.bmm.default(softmax(aten.add.Tensor(weights, mask3)), v3),)


def mask_before_folding(q: Any, k: Any, v: Any, mask: Any) -> Sequence[Any]:
    masked = aten.add.Tensor(scores(q, k), mask)
    weights = softmax(aten.view.default(masked, [BATCH * HEADS, ROWS, KEYS]))
    values = aten.view.default(v, [BATCH * HEADS, KEYS, WIDTH])
    return (aten.bmm.default(weights, values),)


def with_einsum(q: Any, k: Any, v: Any) -> Sequence[Any]:
    weights = torch.einsum("bhtd,bhsd->bhts", q, k)
    return (torch.einsum("bhts,bhsd->bhtd", softmax(weights), v),)


CASES: dict[Callable[..., Sequence[Any]], tuple[torch.Tensor, ...]] = {
    plain: (Q, K, V),
    merged_heads: (Q, K, V),
    divided: (Q, K, V),
    added_mask: (Q, K, V, ADDED),
    filled_mask: (Q, K, V, FILLED),
    folded_heads: (Q, K, V, ADDED),
    mask_before_folding: (Q, K, V, ADDED),
    with_einsum: (Q, K, V),
}


def test_match() -> None:
    program = support.build(merged_heads, Q, K, V)
    done, edits = support.apply(FUSE, program)
    support.assert_golden("fuse_attention", support.before_and_after(program, done))
    assert edits == 1


def test_no_match() -> None:
    def step(x: Any, y: Any) -> Sequence[Any]:
        logits = aten.bmm.default(x, y)
        over_rows = aten._softmax.default(aten.bmm.default(x, y), 1, False)
        return (
            aten._log_softmax.default(logits, -1, False),
            aten.bmm.default(over_rows, y),
            aten._softmax.default(aten.sin.default(x), -1, False),
        )

    program = support.build(step, torch.randn(2, 3, 3), torch.randn(2, 3, 3))
    support.assert_unchanged(FUSE, program)
    assert refusals(program) == []


def test_effects_kept() -> None:
    def step(q: Any, k: Any, v: Any) -> Sequence[Any]:
        noise = aten.rand_like.default(v)
        (result,) = plain(q, k, aten.add.Tensor(v, noise))
        return result, aten.rand_like.default(q)

    program = support.build(step, Q, K, V)
    done, edits = support.apply(FUSE, program)
    assert edits == 1
    assert_close(program, done, Q, K, V)


@pytest.mark.parametrize("step", CASES)
def test_idempotent(step: Callable[..., Sequence[Any]]) -> None:
    done, _ = support.apply(FUSE, support.build(step, *CASES[step]))
    support.assert_unchanged(FUSE, done)


@pytest.mark.parametrize("cleaned", [False, True])
@pytest.mark.parametrize("step", CASES)
def test_parity_within_rounding(step: Callable[..., Sequence[Any]], cleaned: bool) -> None:
    program = support.build(step, *CASES[step])
    if cleaned:
        program = run(program, (Canonicalize(), CommonSubexpressions(), DeadCode()), support.STRICT)
    done, edits = support.apply(FUSE, program)
    assert edits == 1
    names = support.targets(done)
    assert FUSED in names
    assert not {"bmm", "_softmax", "mul.Tensor", "div.Tensor", "masked_fill.Scalar"} & set(names)
    support.assert_unchanged(DeadCode(), done)
    assert_close(program, done, *CASES[step])


def test_nothing_is_copied_where_heads_are_split_and_merged() -> None:
    def step(q: Any, k: Any, v: Any) -> Sequence[Any]:
        return merged_heads(*(aten.transpose.int(each, 1, 2) for each in (q, k, v)))

    examples = [each.transpose(1, 2).contiguous() for each in (Q, K, V)]
    program = support.build(step, *examples)
    done = run(program, (FUSE, Canonicalize(), DeadCode()), support.STRICT)
    names = [name for name in support.targets(done) if name not in ("transpose.int", "permute")]
    assert names == [FUSED, "_unsafe_view"]
    assert_close(program, done, *examples)


def test_not_exact() -> None:
    assert not FUSE.exact(support.build(plain, Q, K, V))


def test_a_row_without_keys_gives_zero() -> None:
    """A known difference: eager averages over nothing, which is NaN."""
    mask = torch.ones(ROWS, KEYS, dtype=torch.bool)
    program = support.build(filled_mask, Q, K, V, mask)
    done, _ = support.apply(FUSE, program)
    assert program.gm(Q, K, V, mask)[0].isnan().all()
    assert not done.gm(Q, K, V, mask)[0].any()


# --- what it leaves alone ------------------------------------------------------------------------


def probabilities_returned(q: Any, k: Any, v: Any) -> Sequence[Any]:
    weights = softmax(scores(q, k))
    return product(weights, v), weights


def scores_returned(q: Any, k: Any, v: Any) -> Sequence[Any]:
    logits = scores(q, k)
    return product(softmax(logits), v), logits


def dropped_out(q: Any, k: Any, v: Any) -> Sequence[Any]:
    return (product(aten.native_dropout.default(softmax(scores(q, k)), 0.5, True)[0], v),)


def scaled_by_a_tensor(q: Any, k: Any, v: Any) -> Sequence[Any]:
    logits = product(q, aten.transpose.int(k, -2, -1))
    return (product(softmax(aten.div.Tensor(logits, aten.sum.default(q))), v),)


def finite_fill(q: Any, k: Any, v: Any) -> Sequence[Any]:
    mask = aten.gt.Scalar(aten.select.int(aten.select.int(scores(q, k), 0, 0), 0, 0), 9)
    return (product(softmax(aten.masked_fill.Scalar(scores(q, k), mask, -1e4)), v),)


def mask_scaled(q: Any, k: Any, v: Any) -> Sequence[Any]:
    mask = aten.select.int(aten.select.int(scores(q, k), 0, 0), 0, 0)
    return (product(softmax(aten.add.Tensor(scores(q, k), mask, alpha=2)), v),)


def mask_of_integers(q: Any, k: Any, v: Any) -> Sequence[Any]:
    mask = aten._to_copy.default(aten.select.int(scores(q, k), 1, 0), dtype=torch.int64)
    return (product(softmax(aten.add.Tensor(scores(q, k), aten.unsqueeze.default(mask, 1))), v),)


def mask_of_keys(q: Any, k: Any, v: Any) -> Sequence[Any]:
    keys = aten.select.int(aten.select.int(aten.select.int(k, 0, 0), 0, 0), 1, 0)
    return (product(softmax(aten.add.Tensor(scores(q, k), keys)), v),)


def narrow_values(q: Any, k: Any, v: Any) -> Sequence[Any]:
    return plain(q, k, aten.slice.Tensor(v, 3, 0, 2))


def in_half(q: Any, k: Any, v: Any) -> Sequence[Any]:
    return plain(*(aten._to_copy.default(each, dtype=torch.bfloat16) for each in (q, k, v)))


REFUSED = {
    probabilities_returned: "something else reads the probabilities: their gradient, when training",
    scores_returned: "something else reads the scores",
    dropped_out: "the values are not multiplied by the probabilities themselves",
    scaled_by_a_tensor: "the scale is no number of the program",
    finite_fill: "the mask fills with another number than -inf",
    mask_scaled: "the mask is scaled",
    mask_of_integers: "the mask is of another dtype than the scores",
    mask_of_keys: "the mask is of a rank that the fused op does not take",
    narrow_values: "queries and values differ in width",
    in_half: "on the CPU the fused op is slower in half precision",
}


@pytest.mark.parametrize("step", REFUSED)
def test_refused(step: Callable[..., Sequence[Any]]) -> None:
    program = support.build(step, Q, K, V)
    support.assert_unchanged(FUSE, program)
    assert [refusal.reason for refusal in refusals(program)] == [REFUSED[step]]


# --- in a Graph ----------------------------------------------------------------------------------


class Attention(nn.Module):
    """Self-attention as tutorials write it: a causal mask in a buffer, dropout on probabilities."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Linear(12, 36)
        self.out = nn.Linear(12, 12)
        self.drop = nn.Dropout(0.1)
        self.register_buffer("mask", torch.tril(torch.ones(8, 8)).view(1, 1, 8, 8))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, rows, width = x.shape
        q, k, v = (
            part.view(batch, rows, HEADS, WIDTH).transpose(1, 2)
            for part in self.qkv(x).split(width, 2)
        )
        weights = q @ k.transpose(-2, -1) * (1.0 / math.sqrt(WIDTH))
        weights = weights.masked_fill(self.mask[:, :, :rows, :rows] == 0, -math.inf)
        result = self.drop(torch.softmax(weights, -1)) @ v
        return self.out(result.transpose(1, 2).reshape(batch, rows, width))


class Infer(tg.Graph):
    def __init__(self, model: nn.Module, after: str) -> None:
        super().__init__()
        self.model = model
        self.config.passes.insert(FUSE, after=after)

    def build(self, x: torch.Tensor) -> torch.Tensor:
        return self.model(x)


@pytest.mark.parametrize("after", ["", "dce"])
def test_inference_within_rounding_of_eager(after: str) -> None:
    model, x = Attention().eval(), torch.randn(2, 8, 12)
    graph = Infer(model, after)
    with torch.no_grad():
        got, expected = support.settle(graph, x), model(x)

    torch.testing.assert_close(got, expected, rtol=TOLERANCE, atol=TOLERANCE)
    (record,) = [one for one in graph.report().passes if one.name == FUSE.name]
    assert (record.edits, record.exact, record.refusals) == (1, False, ())


def test_training_keeps_its_attention() -> None:
    class Train(Infer):
        def __init__(self) -> None:
            super().__init__(Attention(), "dce")
            self.add_optimizer(torch.optim.SGD(self.model.parameters(), lr=0.1))

        def build(self, x: torch.Tensor) -> torch.Tensor:
            loss = self.model(x).square().mean()
            loss.backward()
            return loss

    graph = Train()
    graph(torch.randn(2, 8, 12))
    (record,) = [one for one in graph.report().passes if one.name == FUSE.name]
    assert record.edits == 0
    assert [r.reason for r in record.refusals] == [REFUSED[probabilities_returned]]


def refusals(program: Program) -> list[Refusal]:
    done, _ = support.apply(FUSE, program)
    return list(done.history[-1].refusals)


def assert_close(program: Program, done: Program, *examples: torch.Tensor) -> None:
    torch.manual_seed(0)
    expected = program.gm(*examples)
    torch.manual_seed(0)
    for left, right in zip(expected, done.gm(*examples), strict=True):
        torch.testing.assert_close(right, left, rtol=TOLERANCE, atol=TOLERANCE)
        assert right.stride() == left.stride()
