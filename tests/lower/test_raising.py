"""Ops that may raise by value: which those are, and where they stand beside compiled code."""

from functools import partial

import pytest
import torch
from torch.nn import functional

import torchgraph as tg
from tests import support
from tests.cases.table import Case
from tests.contract.exceptions import LOOPS
from torchgraph.lower import raising as lowering
from torchgraph.lower.raising import may_raise
from torchgraph.lower.regions.checked import check_index

X, INDEX = torch.randn(4, 3), torch.tensor([1, 2])


def program_of(function):
    """The program of a step, and what runs it."""
    graph = tg.step(function)
    for _ in range(3):
        graph(X, INDEX)
    return support.replay_of(graph)


def raising(function):
    """The names of the ops of a step that may raise."""
    nodes = program_of(function).program.nodes
    return [str(node.target).split(".")[1] for node in nodes if may_raise(node)]


@pytest.mark.parametrize(
    ("function", "names"),
    [
        (lambda x, i: x[i], ["index"]),
        (lambda x, i: x[i] + x[i.clone()] + x.index_select(0, i), ["index", "index_select"]),
        (lambda x, i: x[torch.tensor([1, 0])] + x[:2][i > 1].sum(), []),
        (lambda x, i: x[x.argmax(0)] + x.gather(0, x.topk(2, 0).indices).sum(), []),
        (lambda x, i: x.gather(1, (x * 0).argmax(0)[None]), ["gather"]),
        (lambda x, i: (i // i[0]).sum() + i / i[0] + i // 2, ["floor_divide"]),
        (lambda x, i: functional.dropout(x) + torch.bernoulli(x.sigmoid()), ["bernoulli"]),
        (lambda x, i: functional.nll_loss(x[:2], i), ["nll_loss_forward"]),
        (lambda x, i: x[1:] * x.sum() + torch.embedding(x, i).sum(), ["embedding"]),
        (lambda x, i: x.index_fill(0, i, 1.0).scatter(1, i[None], 2.0), ["index_fill", "scatter"]),
    ],
)
def test_which_ops_may_raise(function, names):
    assert raising(function) == names


def test_a_result_of_an_update_is_not_asked_for_all_that_is_updated(monkeypatch):
    weights = [torch.nn.Parameter(torch.randn(3)) for _ in range(20)]
    optimizer = torch.optim.AdamW(weights)

    def step(x, index):
        optimizer.zero_grad()
        loss = sum((x * weight).sum() for weight in weights)
        loss.backward()
        optimizer.step()
        return loss

    program, asked = program_of(step).program, []
    tensors_of = lowering.tensors_of
    monkeypatch.setattr(lowering, "tensors_of", lambda of: asked.append(of) or tensors_of(of))
    lowering.mark(program)
    assert asked == []


def test_what_a_backward_looks_up_again_was_checked_before():
    weight = torch.nn.Parameter(torch.randn(4, 3))
    optimizer = torch.optim.SGD([weight], 0.1)

    def step(x, index):
        optimizer.zero_grad()
        picked = weight[index].sum() + weight.gather(0, index[:, None].expand(2, 3)).sum()
        picked.backward()
        optimizer.step()
        return picked

    assert raising(step) == ["index", "gather"]


@pytest.mark.parametrize("name", LOOPS)
def test_a_loop_in_which_ops_raise_is_as_in_eager(interpreted, name):
    make = partial(LOOPS[name], 0)
    Case(make, says=None, form="compiled", tolerance=1e-4).check()
    inside = [node for made in interpreted for region in made.regions for node in region.origins()]
    assert inside
    assert not any(map(may_raise, inside))


def test_an_index_is_checked_before_the_region_that_looks_it_up(interpreted):
    weight = torch.nn.Parameter(torch.randn(4, 3))
    optimizer = torch.optim.SGD([weight], 0.1)

    @tg.step
    def step(index, y):
        optimizer.zero_grad()
        loss = functional.nll_loss(torch.embedding(weight, index[:, 1:]).sum(1), y.flatten())
        loss.backward()
        optimizer.step()
        return loss

    step.config.set_backend("inductor")
    y = torch.tensor([[0, -100]])
    for _ in range(4):
        step(torch.tensor([[9, 1], [9, 2]]), y)  # what is not looked up is not checked
    source = support.replay_of(step).executable.source
    assert source.count(" = _check_index") == 2
    assert len(interpreted[-1].regions) == 1
    assert source.index("check_index") < source.index("_region_0")
    with pytest.raises(IndexError):
        step(torch.tensor([[0, 1], [0, 9]]), y)


@pytest.mark.parametrize(
    ("index", "bounds", "raises"),
    [
        ([0, 3], (0, 4, None), False),
        ([0, 4], (0, 4, None), True),
        ([-1], (0, 4, None), True),
        ([-4, 3], (-4, 4, None), False),
        ([-5], (-4, 4, None), True),
        ([-100, 1], (0, 4, -100), False),
        ([-100, 4], (0, 4, -100), True),
        ([], (0, 4, None), False),
    ],
)
def test_bounds(index, bounds, raises):
    found = torch.tensor(index, dtype=torch.long)
    if raises:
        with pytest.raises(IndexError, match="is not in"):
            check_index(found, *bounds)
    else:
        check_index(found, *bounds)
