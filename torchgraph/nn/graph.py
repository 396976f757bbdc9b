"""OneFlow's ``nn.graph``: the Graph, and what its attributes are and turn into."""

from ..blocks.block import GraphModule, GraphTensor
from ..blocks.proxy import Proxy, ProxyModule
from ..graph import Graph

__all__ = ["Graph", "GraphModule", "GraphTensor", "Proxy", "ProxyModule"]
