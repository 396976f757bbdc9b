"""torch.nn's names, and Graph: ``from torchgraph import nn; class G(nn.Graph)``.

Touches: names.
Never: a meaning of its own.
"""

from torch.nn import *  # noqa: F403  # all of torch.nn is the point; a list would go stale
from torch.nn import functional as functional, init as init, utils as utils

from . import graph as graph
from .graph import Graph as Graph
