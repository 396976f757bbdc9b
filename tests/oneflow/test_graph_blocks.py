"""Blocks and calls of OneFlow's Graph: tensors through blocks, stages, arguments, names."""

import re

import pytest
import torch
from torch import nn

from torchgraph.blocks.proxy import Proxy
from torchgraph.errors import (
    BuildNotOverridden,
    GraphError,
    GraphNotInitialized,
    GraphWarning,
    InvalidOption,
    UnsupportedInput,
)
from torchgraph.oneflow._port.errors import NotPorted
from torchgraph.oneflow._port.graph.functions import Function, inference_mode
from torchgraph.oneflow._port.graph.graph import Graph
from torchgraph.oneflow._port.names import table

from .graphs import Evaluates, Trains, batch, made

# --- what is wrong -------------------------------------------------------------------------------


class Takes(Graph):
    """Takes a tensor, and an option by its name."""

    def build(self, x, *, k=1):
        return x * k


@pytest.mark.parametrize(
    ("arguments", "options", "said"),
    [
        ((), {}, "missing a required argument: 'x'"),
        ((1, 2), {}, "too many positional arguments"),
        ((1,), {"z": 3}, "unexpected keyword argument 'z'"),
    ],
)
@pytest.mark.parametrize("calls", [0, 3])
def test_errors_show_the_arguments_of_build_alone(arguments, options, said, calls):
    graph = Takes()
    for _ in range(calls):
        graph(batch())
    with pytest.raises(UnsupportedInput, match=said) as error:
        graph(*arguments, **options)
    assert error.value.way_out == "build(x, *, k=1)"


def test_a_graph_that_was_not_begun_or_takes_no_self():
    class NotBegun(Graph):
        def __init__(self):
            pass

        def build(self, x):
            return x

    class Selfless(Graph):
        def build():
            return None

    with pytest.raises(GraphNotInitialized, match="NotBegun is used before"):
        NotBegun()(batch())
    with pytest.raises(BuildNotOverridden, match="not even the Graph itself"):
        Selfless()


# --- blocks ---------------------------------------------------------------------------------------


def test_blocks_of_older_releases():
    graph = Trains()

    for block in graph.model.modules():
        if isinstance(block.origin, nn.Linear):
            block.config.activation_checkpointing = True
            block.config.set_stage(0)
            block.config.stage_id = 1

    assert graph.model[0].config.activation_checkpointing
    assert graph.model[0].config.stage_id == 1
    assert graph.model.origin is graph.model.to(nn.Module)
    graph(batch())


def test_a_parameter_of_a_graph_is_a_proxy_and_no_tensor():
    weight = Trains().model[0].weight

    assert isinstance(weight, Proxy)
    assert not isinstance(weight, torch.Tensor)
    assert torch.equal(weight, weight.to(torch.Tensor))
    assert weight in {weight}


def test_a_modules_own_config_is_its_own():
    model = made()
    model.config = {"width": 4}

    assert Trains(model).model.config == {"width": 4}


def test_tensors_of_blocks():
    graph = Trains()
    weight = graph.model[0].weight

    assert weight.to(torch.Tensor) is weight.origin is graph.model.to(nn.Module)[0].weight
    block = weight.to(table()["nn.graph.GraphTensor"].value())
    assert (block.name, block.name_prefix, block.type) == ("weight", "model.0.", "PARAMETER")
    assert graph.model[1].running_mean.to(table()["nn.graph.GraphTensor"].value()).type == "BUFFER"
    weight.config.set_stage(2, "here")
    assert (graph.model[0].weight.config.stage_id, block.stage_placement) == (2, "here")
    assert repr(weight).startswith("(PARAMETER:model.0.weight:tensor(..., size=(4, 3)")
    assert torch.equal(torch.relu(weight), torch.relu(weight.origin))
    assert weight.shape == (4, 3)
    with pytest.raises(NotPorted, match="lazy"):
        _ = weight.lazy_origin


def test_stages_with_a_placement_in_one_process():
    graph, other = Trains(), Trains()
    graph.model[0].config.set_stage(0, [0])
    graph.model[3].config.set_stage(1, [1])

    torch.manual_seed(1)
    losses = [graph(batch()).item() for _ in range(3)]
    torch.manual_seed(1)

    assert losses == [other(batch()).item() for _ in range(3)]
    assert "stage_id=1, " in repr(graph)


# --- calls ----------------------------------------------------------------------------------------


def test_a_trace_is_of_the_same_class():
    @Graph.trace
    def double(x):
        return x * 2

    assert isinstance(double, Graph)
    assert torch.equal(double(torch.ones(2)), torch.full((2,), 2.0))
    with pytest.raises(InvalidOption):
        Graph.trace(made())


def test_arguments_that_are_written_later_are_refused():
    class Writes(Graph):
        def build(self, x, later):
            return x.add_(1) if later else x + 1

    graph, x = Writes(), torch.zeros(2)
    graph(x, False)

    with pytest.raises(NotPorted, match="written into an argument"):
        graph(x, True)


def test_a_mode_that_changes_is_told_once():
    graph = Evaluates(made())
    graph(batch())
    graph.model.eval()

    with pytest.warns(GraphWarning, match=re.escape("train() or eval()")):
        graph(batch())
    graph(batch())


def test_plain_arguments_arrive():
    class Scales(Graph):
        def build(self, x, by):
            return x * by

    assert Scales()(torch.ones(1), 3).item() == 3  # OneFlow 0.9 raises


# --- autograd, names ------------------------------------------------------------------------------


def test_a_function_is_called_as_an_object():
    class Cube(Function):
        @staticmethod
        def forward(ctx, x) -> torch.Tensor:
            ctx.save_for_backward(x)
            return x**3

        @staticmethod
        def backward(ctx, grad) -> torch.Tensor:
            (x,) = ctx.saved_tensors
            return grad * 3 * x**2

    x = torch.tensor([2.0], requires_grad=True)
    Cube()(x).backward()

    assert x.grad.item() == 12.0


def test_inference_mode_is_no_grad():
    x = torch.ones(1, requires_grad=True)

    with inference_mode():
        y = x * 2
    with inference_mode(False):
        z = x * y  # a tensor of torch.inference_mode() could not be saved for this

    assert (y.requires_grad, z.requires_grad) == (False, True)


def names() -> list[str]:
    return [one for one in table() if one.startswith(("nn.graph.", "nn.Graph", "autograd."))]


@pytest.mark.parametrize("name", names())
def test_names(name):
    row = table()[name]

    if row.is_refused:
        with pytest.raises(GraphError, match=r"\."):
            row.value()
    else:
        assert row.value() is not None


def test_there_are_names():
    assert len(names()) >= 50
