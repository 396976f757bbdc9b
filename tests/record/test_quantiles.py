"""Quantiles in steps. From torch 2.15 on a kernel that no op shows finds their elements."""

from __future__ import annotations

import pytest
import torch
from torch.utils.checkpoint import checkpoint

import torchgraph as tg
from tests.support import same_bits
from torchgraph import library
from torchgraph._torch.quantiles import sorted_places

Q = torch.tensor([0.1, 0.5])


def _by_out(x, a):
    out = torch.empty(4)
    torch.quantile(a, 0.3, 1, out=out)
    return x.sum(1) * out


def _of_inference(x, a):
    with torch.inference_mode():
        limit = torch.quantile(x, 0.3, 1)
    return x.sum(1) * limit.clone()


CASES = {
    "threshold": lambda x, a: torch.where(x < torch.quantile(x.detach(), 0.8), x, 0.1 * x),
    "without a gradient": lambda x, a: x.sum(1) * a.quantile(Q, -1, interpolation="higher"),
    "a row at a time": lambda x, a: torch.quantile(x, 0.8, 1),
    "some at once": lambda x, a: torch.quantile(x, Q, dim=1),
    "kept dimensions": lambda x, a: torch.quantile(x.view(2, 2, 50), 0.5, 2, keepdim=True),
    "columns, sorted": lambda x, a: torch.quantile(x, 0.5, 0),
    "without NaN": lambda x, a: torch.nanquantile(x.where(a < 3.5, torch.nan), Q, 1),
    "NaN": lambda x, a: torch.quantile(x.where(a < 3.5, torch.nan), 0.5, 0).nan_to_num(2.0),
    "lower": lambda x, a: torch.quantile(x, Q, -1, interpolation="lower"),
    "nearest": lambda x, a: torch.quantile(x, Q, -1, interpolation="nearest"),
    "midpoint": lambda x, a: torch.quantile(x, 0.5, -1, interpolation="midpoint"),
    "a rank that moves": lambda x, a: torch.quantile(x, a[0, 0] / 4, 1),
    "a rank with a gradient": lambda x, a: torch.quantile(a, x[0, 0].clamp(0, 1), 1),
    "out": _by_out,
    "in inference mode": _of_inference,
    "computed again": lambda x, a: checkpoint(
        lambda x: torch.quantile(x, 0.3, 1), x, use_reentrant=False
    ),
}


def _trained(function, wrap):
    """The losses and the weight of ten steps, with many equal elements."""
    torch.manual_seed(0)
    weight = torch.nn.Parameter(torch.rand(4, 50).mul(5).round() / 5)

    @wrap
    def step(a):
        weight.grad = None
        loss = (function(weight * a, a) * 1.7).square().sum()
        loss.backward()
        with torch.no_grad():
            weight.sub_(weight.grad, alpha=1e-3)
        return loss

    losses = [step((torch.rand(4, 50) * 4).round()) for _ in range(8)]
    return losses, weight.detach(), step


@pytest.mark.parametrize("name", CASES)
def test_a_step_with_a_quantile_is_served_with_the_bits_of_eager(name):
    losses, weight, _ = _trained(CASES[name], lambda step: step)
    found, ours, step = _trained(CASES[name], tg.step)
    assert same_bits(found, losses)
    assert same_bits(ours, weight)
    assert step.report().calls.programs == 6


@pytest.mark.parametrize("name", ["threshold", "some at once"])
def test_a_program_holds_no_place_of_an_element(name):
    """The kernel writes what an op calls uninitialized: its first contents are no constant."""
    *_, step = _trained(CASES[name], tg.step)
    assert "i64[" not in str(step.report()).partition("Baked in")[2]


def test_a_rank_outside_raises_as_in_eager():
    for q in (1.5, torch.tensor(1.5)):
        with pytest.raises(RuntimeError, match="range") as expected:
            torch.quantile(torch.rand(9), q)
        with pytest.raises(RuntimeError, match="range") as found:
            tg.step(lambda x, q=q: torch.quantile(x, q))(torch.rand(9))
        assert str(found.value).splitlines()[0] == str(expected.value).splitlines()[0]


@pytest.mark.parametrize("shape", [(9,), (3, 40), (2, 3, 40)])
def test_ops_of_quantiles(shape):
    x = torch.rand(shape)
    ranks = torch.tensor([[1, 2]]).repeat(x[..., 0].numel(), 1)
    q = torch.tensor(1.5 / (shape[-1] - 1))
    library_ops = torch.ops.torchgraph
    places = library_ops.quantile_places(x, ranks, q, "linear", False)
    assert torch.equal(places, sorted_places(x.sort().indices, ranks))
    torch.library.opcheck(library.quantile_places, (x, ranks, q, "linear", False))
    for dim, keepdim, qs in ((None, False, q), (-1, True, Q), (0, False, Q)):
        given = (x, qs, dim, keepdim, "linear", False)
        found, expected = library.quantile(*given), torch.quantile(x, qs, dim, keepdim)
        assert same_bits(found, expected)
        assert found.stride() == expected.stride()
        torch.library.opcheck(
            library.quantile, given, test_utils=("test_schema", "test_faketensor")
        )
