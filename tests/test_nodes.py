"""What reads the arguments of a node says so when they are of another kind."""

import operator

import pytest
import torch
from torch import fx

from torchgraph.ir import nodes

GRAPH = fx.Graph()
X, Y = GRAPH.placeholder("x"), GRAPH.placeholder("y")
SUM = GRAPH.call_function(torch.ops.aten.add.Tensor, (X, 1))
BOTH = GRAPH.call_function(torch.ops.aten.cat.default, ([X, Y],))
PART = GRAPH.call_function(operator.getitem, (BOTH, 1))
SLICE = GRAPH.call_function(operator.getitem, (BOTH, slice(1)))


def test_what_there_is():
    assert nodes.operand(SUM) is X
    assert nodes.operands(BOTH) == [X, Y]
    assert nodes.sequence(BOTH.args[0]) == [X, Y]
    assert nodes.item(PART) == 1


def test_a_constant_is_no_node():
    with pytest.raises(TypeError, match="1 is no node"):
        nodes.operand(SUM, 1)
    with pytest.raises(TypeError, match="1 is no node"):
        nodes.all_nodes([X, 1])


def test_a_node_is_no_list():
    with pytest.raises(TypeError, match="x is no list"):
        nodes.operands(SUM)


def test_a_slice_is_no_position():
    with pytest.raises(TypeError, match="which is no position"):
        nodes.item(SLICE)


def test_a_function_is_no_op():
    assert nodes.op_of(SUM) is torch.ops.aten.add.Tensor
    with pytest.raises(TypeError, match="which is no op"):
        nodes.op_of(SLICE)
