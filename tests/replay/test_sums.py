"""Long sums in another order: explained by what is added up, without a run with noise."""

from __future__ import annotations

import copy
import operator
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import fx, nn, optim

import torchgraph as tg
from tests.lower.conftest import Interpretation
from torchgraph.errors import BackendWarning
from torchgraph.replay import switch
from torchgraph.verify import audit
from torchgraph.verify.compare import gap, tight
from torchgraph.verify.sums import Sums

aten = torch.ops.aten
ROWS, WIDTH = 2048, 8


def row_by_row(x: torch.Tensor, dims: list[int], keepdim: bool = False) -> torch.Tensor:
    """A sum that begins with the last row, and adds one after the other."""
    (dim,) = dims
    total = x.flip(dim).cumsum(dim).narrow(dim, -1, 1)
    return total if keepdim else total.squeeze(dim)


def without_a_row(x: torch.Tensor, dims: list[int], keepdim: bool = False) -> torch.Tensor:
    (dim,) = dims
    return x.narrow(dim, 1, x.shape[dim] - 1).sum(dim, keepdim)


@pytest.fixture
def shaken(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many values each run with noise had to explain."""
    found: list[int] = []

    def shake(*args: Any, shake: Callable[..., None] = audit._shake) -> None:
        found.append(len(args[-1]))
        shake(*args)

    monkeypatch.setattr(audit, "_shake", shake)
    return found


def train(monkeypatch: pytest.MonkeyPatch, form: Callable[..., torch.Tensor]) -> Any:
    """A layer whose bias has a gradient that all but cancels; its sums are of that form."""

    def finish(self: Any, limit: Any = None, goes_on: Any = None) -> None:
        for region in self.regions:
            gm = copy.deepcopy(region.gm)
            for node in gm.graph.nodes:
                if node.target is aten.sum.dim_IntList and len(node.args[1]) == 1:
                    node.target = form
            gm.recompile()
            region.compiled(gm)

    monkeypatch.setattr(switch, "Compilation", Interpretation)
    monkeypatch.setattr(Interpretation, "finish", finish)
    torch.manual_seed(0)
    model = nn.Linear(WIDTH, WIDTH)
    signs = torch.tensor([1.0, -1.0]).repeat(ROWS // 2)[:, None] * (1 + torch.rand(ROWS, WIDTH))
    signs -= signs.mean(0)
    graph = tg.train_step(model, lambda out, y: (out * y).sum(), optim.SGD(model.parameters(), 0.1))
    graph.config.set_backend("inductor")
    for _ in range(4):
        graph(torch.randn(ROWS, WIDTH), signs)
    return graph.report()


def test_another_order_needs_no_noise(monkeypatch: pytest.MonkeyPatch, shaken: list[int]) -> None:
    found = train(monkeypatch, row_by_row)
    assert found.programs.held[0].inductor_since is not None
    assert shaken == []
    assert found.confirmation.confirmed == 1


def test_without_the_terms_noise_explains_it(
    monkeypatch: pytest.MonkeyPatch, shaken: list[int]
) -> None:
    monkeypatch.setattr(Sums, "before", lambda self, node, values: None)
    train(monkeypatch, row_by_row)
    assert shaken


def test_a_row_that_is_left_out_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.warns(BackendWarning, match="goes on with the aten backend"):
        train(monkeypatch, without_a_row)


# --- each kind of sum -----------------------------------------------------------------------------


def allowed(target: Any, args: tuple[Any, ...], item: int | None = None) -> Callable[..., bool]:
    """Whether two results of a call are apart by no more than another order makes them."""
    graph = fx.Graph()
    inputs = [graph.placeholder(f"x{i}") for i in range(len(args))]
    node = called = graph.call_function(target, tuple(inputs))
    if item is not None:
        node = graph.call_function(
            aten.alias.default, (graph.call_function(operator.getitem, (node, item)),)
        )
    sums = Sums()
    sums.before(called, dict(zip(inputs, args, strict=True)))

    def within(expected: torch.Tensor, found: torch.Tensor) -> bool:
        return gap(expected, found).within(sums.gap(node, expected))

    return within


def reordered(call: Callable[..., Any], *values: torch.Tensor) -> tuple[Any, Any, Any]:
    """A call over rows, over the same rows in another order, and without one of them."""
    order = torch.arange(ROWS).flip(0)
    short = order[1:]
    return call(*values), call(*(v[order] for v in values)), call(*(v[short] for v in values))


def rows(dtype: torch.dtype = torch.float32) -> torch.Tensor:
    signs = torch.tensor([1.0, -1.0]).repeat(ROWS // 2)[:, None]
    return (signs * (1 + torch.rand(ROWS, WIDTH))).to(dtype)


def test_of_all_and_of_some_dims() -> None:
    x = rows()
    for target, args in ((aten.sum.dim_IntList, (x, [0])), (aten.sum.default, (x,))):
        within = allowed(target, args)
        same, other, less = reordered(lambda x, t=target, a=args: t(x, *a[1:]), x)
        assert within(same, other)
        assert not within(same, less)


def test_16_bits_are_summed_up_in_32() -> None:
    x = rows(torch.bfloat16)
    within = allowed(aten.sum.dim_IntList, (x, [0]))
    total = x.sum(0)
    assert within(total, total)
    assert not within(total, total + x[0])


@pytest.mark.parametrize("item", [1, 2])
def test_of_a_layer_norm(item: int) -> None:
    gradient, x = rows(), torch.randn(ROWS, WIDTH)
    mean, factor = x.mean(1, True), 1 / x.std(1, correction=0, keepdim=True)
    weight, bias = torch.ones(WIDTH), torch.zeros(WIDTH)

    def call(*values: torch.Tensor) -> torch.Tensor:
        given, x, mean, factor = values
        mask = [True, True, True]
        return aten.native_layer_norm_backward.default(
            given, x, [WIDTH], mean, factor, weight, bias, mask
        )[item]

    args = (gradient, x, [WIDTH], mean, factor, weight, bias, [True, True, True])
    within = allowed(aten.native_layer_norm_backward.default, args, item)
    same, other, less = reordered(call, gradient, x, mean, factor)
    assert within(same, other)
    assert not within(same, less)
    of_the_value = allowed(aten.native_layer_norm_backward.default, args, 0)
    assert not of_the_value(same, same + tight(same, flips=False).size)


def test_of_an_embedding_with_few_rows() -> None:
    gradient, indices = rows(), torch.arange(ROWS) // 2 % 2
    within = allowed(aten.embedding_dense_backward.default, (gradient, indices, 2, -1, False))
    same, other, less = reordered(
        lambda g, i: aten.embedding_dense_backward.default(g, i, 2, -1, False), gradient, indices
    )
    assert within(same, other)
    assert not within(same, less)


def test_what_is_no_sum_may_differ_no_more_than_before() -> None:
    x = rows()
    assert not allowed(aten.neg.default, (x,))(-x, -x * (1 + 1e-6))
