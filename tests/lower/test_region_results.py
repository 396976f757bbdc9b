"""What regions return and take: expanded tensors, half precision, results of another dtype."""

import operator

import pytest
import torch
from torch import nn, optim

import torchgraph as tg
from tests.support import build
from torchgraph.ir.program import TensorMeta
from torchgraph.lower.inductor import job
from torchgraph.lower.inductor.job import Job
from torchgraph.lower.regions.cut import cut
from torchgraph.lower.regions.region import Region, is_given_another_dtype

aten = torch.ops.aten
row, matrix = torch.arange(3.0), torch.arange(6.0).view(2, 3)
EXPANDED = {
    "rows": row.expand(4, 3),
    "columns": row[:, None].expand(3, 4),
    "one number": torch.tensor(2.0).expand(2, 3),
    "between": matrix[:, None].expand(2, 5, 3),
    "a transposed matrix": matrix.t().expand(4, 3, 2),
    "windows": row.unfold(0, 2, 1),
    "once": row.expand(1, 3),
    "of nothing": torch.empty(0, 3)[:, :1].expand(0, 3),
    "no times": row.expand(0, 3),
}


@pytest.mark.parametrize("value", EXPANDED.values(), ids=EXPANDED)
def test_expanded_results_have_the_strides_of_the_program(value):
    gm = torch.fx.symbolic_trace(nn.Identity())
    region = Region(0, gm, (), (TensorMeta.of(value),), written=(), random=False)
    region.compiled(lambda: (value.clone(memory_format=torch.contiguous_format),))
    for _ in range(2):
        (found,) = region()
        assert torch.equal(found, value)
        assert found.stride() == value.stride()


def region_of(step, inputs):
    (region,) = cut(build(step, *inputs), eager_draws=True)[1]
    return region


def test_what_a_scatter_writes_into_is_not_expanded():
    region = region_of(
        lambda x, y: (
            torch.slice_scatter((x + 1).expand(3, 3), y, 0, 1, 2),
            torch.slice_scatter(y + torch.zeros(3, 3), y, 0, 1, 2),
        ),
        (torch.ones(()), row[None]),
    )
    written = [n.args[0] for n in region.gm.graph.nodes if n.target is aten.slice_scatter.default]
    assert [n.target for n in written] == [aten.contiguous.default, aten.add.Tensor]


def norm_backward(gradient, x, weight):
    mean, rstd = torch.zeros(2, 2), torch.ones(2, 2)
    args = (gradient, x, mean.to(x.dtype), rstd.to(x.dtype), weight, 2, 4, 9, 2, [True] * 3)
    return aten.native_group_norm_backward(*args)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_a_result_that_fakes_give_another_dtype_is_known(dtype):
    x = torch.randn(2, 4, 3, 3, dtype=dtype)
    program = build(norm_backward, x, x, torch.ones(4))
    found = [node for node in program.nodes if node.target is operator.getitem]
    for node in found:
        node.meta["val"] = node.meta["val"].to(dtype)  # as the kernel gives it
    assert found
    assert all(is_given_another_dtype(node) is (dtype != torch.float32) for node in found)


def test_half_precision_is_rounded_as_in_eager():
    options = [
        Job.of(region_of(lambda x: (x * x + 1,), (value,)), eager_draws=True).options
        for value in (row, row.half(), row.bfloat16())
    ]
    assert [one.get("emulate_precision_casts") for one in options] == [None, True, True]


def step_of(model, optimizer, loss_of):
    @tg.step
    def step(*args: torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad()
        loss = loss_of(*args)
        loss.backward()
        optimizer.step()
        return loss

    step.config.set_backend("inductor")
    return step


def normed():
    """A residual block of a UNet: a norm of float32 weights over what autocast has rounded."""
    conv, linear, norm = nn.Conv2d(3, 8, 3, padding=1), nn.Linear(6, 8), nn.GroupNorm(2, 8)
    model = nn.ModuleList([conv, linear, norm])

    def loss(x, t):
        with torch.autocast("cpu", torch.bfloat16):
            hidden = norm(conv(x) + linear(nn.functional.silu(t))[:, :, None, None])
        return hidden.float().square().mean()

    return model, loss, lambda: (torch.randn(4, 3, 8, 8), torch.randn(4, 6))


def scattered():
    """Its gradients are ones that were expanded, and zeros written into such."""
    model = nn.ParameterList([torch.randn(8, 8), torch.randn(8)])

    def loss(x):
        return torch.diagonal_scatter(model[0] * x, model[1]).sum()

    return model, loss, lambda: (torch.rand(8, 8),)


@pytest.mark.slow
@pytest.mark.skipif(job.cpp_compiler() is None, reason="Inductor needs a C++ compiler")
@pytest.mark.parametrize("make", [normed, scattered])
def test_steps_are_compiled(make, monkeypatch):
    # torch's fake kernel of a norm's backward has the dtype of the weights.
    monkeypatch.setenv("TORCHGRAPH_VERIFY", "fast")
    model, loss, draw = make()
    step = step_of(model, optim.SGD(model.parameters(), lr=0.1), loss)
    for _ in range(4):
        step(*draw())
    assert step.report().backend == "inductor"
    assert step.report().confirmation.confirmed
