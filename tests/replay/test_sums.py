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


def bound(target: Any, args: tuple[Any, ...], item: int | None = None) -> float:
    """How far apart two orders of a call's terms may be, beside the rounding of its result."""
    graph = fx.Graph()
    inputs = [graph.placeholder(f"x{i}") for i in range(len(args))]
    node = called = graph.call_function(target, tuple(inputs))
    if item is not None:
        node = graph.call_function(operator.getitem, (node, item))
        node = graph.call_function(aten.alias.default, (node,))
    sums = Sums()
    sums.before(called, dict(zip(inputs, args, strict=True)))
    return sums.gap(node, torch.zeros(1)).size


def reordered(call: Callable[..., Any], *values: torch.Tensor) -> tuple[float, float]:
    """How far a call over rows moves in another order, and at least without one row."""
    order = torch.arange(ROWS).flip(0)
    whole = call(*values)
    other, less = (call(*(v[rows] for v in values)) for rows in (order, order[1:]))
    return float((whole - other).abs().max()), float((whole - less).abs().min())


def rows(count: int = ROWS, width: int = WIDTH) -> torch.Tensor:
    """Numbers from 1 to 2 in size, of which each cancels with the next."""
    signs = torch.tensor([1.0, -1.0]).repeat(count // 2)[:, None]
    return signs * (1 + torch.rand(count, width))


def test_of_all_and_of_some_dims() -> None:
    x = rows()
    for target, more in ((aten.sum.dim_IntList, ([0],)), (aten.sum.default, ())):
        same, less = reordered(lambda x, t=target, a=more: t(x, *a), x)
        assert same <= bound(target, (x, *more)) < less
    assert bound(aten.sum.dim_IntList, (x, [0])) < bound(aten.sum.default, (x,))
    assert bound(aten.sum.dim_IntList, (x, [1])) < bound(aten.sum.dim_IntList, (x, [0]))


def test_of_very_many_rows_one_is_not_lost() -> None:
    """The magnitudes of four million terms, times a few epsilons, are more than one of them."""
    x = rows(1 << 22, 1)
    assert 0 < bound(aten.sum.dim_IntList, (x, [0])) < 0.1


def test_16_bits_are_summed_up_in_32() -> None:
    x = rows()
    assert bound(aten.sum.dim_IntList, (x.bfloat16(), [0])) == pytest.approx(
        bound(aten.sum.dim_IntList, (x, [0])), rel=0.01
    )


def test_of_a_layer_norm() -> None:
    gradient, x = rows(), torch.randn(ROWS, WIDTH)
    x[:, 0] *= 100  # far from the others: the weight's terms are larger than the bias's
    mean, factor = x.mean(1, True), 1 / x.std(1, correction=0, keepdim=True)
    weight, bias = torch.ones(WIDTH), torch.zeros(WIDTH)
    target, mask = aten.native_layer_norm_backward.default, [True, True, True]

    def call(given: Any, x: Any, mean: Any, factor: Any, item: int) -> torch.Tensor:
        return target(given, x, [WIDTH], mean, factor, weight, bias, mask)[item]

    args = (gradient, x, [WIDTH], mean, factor, weight, bias, mask)
    values, found = (gradient, x, mean, factor), {}
    for item in (1, 2):
        same, less = reordered(lambda *v, i=item: call(*v, i), *values)
        found[item] = bound(target, args, item)
        assert same <= found[item] < less
    terms = {1: (x - mean) * factor * gradient, 2: gradient}
    for item, of_terms in terms.items():
        assert found[item] == pytest.approx(bound(aten.sum.dim_IntList, (of_terms, [0])))
    assert found[1] != pytest.approx(found[2])
    assert bound(target, args, 0) == 0.0  # of the value: no sum over rows


def test_of_an_embedding_with_few_rows() -> None:
    gradient, indices = rows(), torch.arange(ROWS) // 2 % 2
    target = aten.embedding_dense_backward.default
    same, _ = reordered(lambda g, i: target(g, i, 2, -1, False), gradient, indices)
    assert same <= bound(target, (gradient, indices, 2, -1, False)) < 1
    assert bound(target, (gradient, indices, ROWS + 1, -1, False)) == 0.0


def test_what_is_no_sum_has_no_bound() -> None:
    assert bound(aten.neg.default, (rows(),)) == 0.0


def test_a_part_of_a_sum_is_one_and_its_bits_are_not() -> None:
    graph, x = fx.Graph(), rows()
    node = graph.placeholder("x")
    total = graph.call_function(aten.sum.dim_IntList, (node, [0]))
    parts = graph.call_function(aten.split.Tensor, (total, 4))
    second = graph.call_function(operator.getitem, (parts, 1))
    bits = graph.call_function(aten.view.dtype, (total, torch.float16))
    sums = Sums()
    sums.before(total, {node: x})
    assert sums.gap(second, x[0, 4:]).size == sums.gap(total, x[0, 4:]).size > 0
    assert sums.gap(bits, x[0].view(torch.float16)).size == 0.0
