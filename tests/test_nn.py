import torch

import torchgraph as tg
from torchgraph.blocks import block as blocks, proxy
from torchgraph.graph import Graph


def test_it_has_every_public_name_of_torch_nn():
    names = {name for name in dir(torch.nn) if not name.startswith("_")}
    assert [name for name in sorted(names) if not hasattr(tg.nn, name)] == []
    assert tg.nn.Linear is torch.nn.Linear
    assert tg.nn.functional is torch.nn.functional


def test_graph_is_one_class():
    assert tg.nn.Graph is Graph
    assert tg.nn.graph.Graph is Graph


def test_oneflows_names_of_blocks_and_proxies():
    assert tg.nn.graph.GraphModule is blocks.GraphModule
    assert tg.nn.graph.GraphTensor is blocks.GraphTensor
    assert tg.nn.graph.Proxy is proxy.Proxy
