"""OneFlow's ``nn.graph``: the Graph, and what its attributes are and turn into."""

from ..blocks import GraphModule, GraphTensor
from ..graph import Graph
from ..proxy import Proxy, ProxyModule

__all__ = ["Graph", "GraphModule", "GraphTensor", "Proxy", "ProxyModule"]
