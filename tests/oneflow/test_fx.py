"""`oneflow.fx`: what is traced gives what it gave."""

import pytest
import torch

import torchgraph.oneflow as flow
from torchgraph.oneflow import nn
from torchgraph.oneflow._port.errors import NotPorted
from torchgraph.oneflow._port.tensors.reductions import max as bound_before


class Differs(nn.Module):
    """Of each kind one that has another meaning in torch."""

    def __init__(self):
        super().__init__()
        self.inner = nn.Sequential(nn.Softmax(), nn.Conv2d(1, 1, 2, padding="same"))

    def forward(self, x):
        whole = x.to(flow.int64)
        floors = whole // 2 + whole % 3 - 7 // whole
        powers = whole**2 + flow.neg(whole) + (1 & whole)
        return self.inner(x.softmax()) + flow.max(x) + floors + powers + flow.flatten(x.sum())


X = torch.tensor([-3.0, -5.0, 7.0, 2.0]).reshape(1, 1, 2, 2)


def test_a_traced_module_has_oneflows_meaning():
    model = Differs()
    traced = flow.fx.symbolic_trace(model)
    right = model(X)
    assert isinstance(traced, flow.fx.GraphModule)
    assert traced(X).dtype == right.dtype
    assert torch.equal(traced(X), right)
    methods = [node for node in traced.graph.nodes if node.op == "call_method"]
    assert not methods
    assert {node.target for node in traced.graph.nodes if node.op == "call_module"} == {
        "inner.0",
        "inner.1",
    }


def test_outside_of_a_trace_functions_are_themselves():
    flow.fx.symbolic_trace(Differs())
    assert flow.max is bound_before


def test_a_pattern_is_replaced():
    def steps(x, w):
        return flow.max(x) + flow.cat([flow.neg(w), x]).sum()

    traced = flow.fx.symbolic_trace(steps)
    found = flow.fx.replace_pattern(
        traced, lambda a, b: flow.cat([flow.neg(a), b]).sum(), lambda a, b: flow.stack([a, b]).sum()
    )
    x, w = torch.ones(2), torch.full((2,), 3.0)
    assert len(found) == 1
    assert "neg" not in traced.code
    assert traced(x, w).item() == 9.0


def test_a_function_that_was_bound_before_is_refused():
    with pytest.raises(NotPorted, match=r"flow\.max"):
        flow.fx.symbolic_trace(lambda x: bound_before(x))


def adds(x):
    y = x.clone()
    y += 1
    return y, x


def multiplies(x):
    y = x.clone()
    y *= 2
    return y, x


def divides(x):
    y = x
    y //= 2
    return y, x


@pytest.mark.parametrize("steps", [adds, multiplies, divides])
def test_what_is_in_place_stays_so(steps):
    traced = flow.fx.symbolic_trace(steps)
    for found, right in zip(
        traced(torch.tensor([-3, 4])), steps(torch.tensor([-3, 4])), strict=True
    ):
        assert found.dtype == right.dtype
        assert torch.equal(found, right)


def test_a_tensor_beside_what_is_traced_comes_second():
    beside, x = torch.full((2,), 3), torch.tensor(1.5)
    with pytest.raises(NotPorted, match="begin with what is traced"):
        flow.fx.symbolic_trace(lambda x: beside + x)
    traced = flow.fx.symbolic_trace(lambda x: x + beside)
    assert torch.equal(traced(x), x + beside)
    assert traced(x).dtype == (x + beside).dtype
