"""`torchgraph.oneflow`'s optimizers and scalers, beside torch's tensors and modules."""

from types import SimpleNamespace
from typing import Any

import torch

import torchgraph
from torchgraph import oneflow

optim: Any = oneflow.optim
amp: Any = oneflow.amp
nn = SimpleNamespace(Module=torch.nn.Module, Parameter=torch.nn.Parameter, Graph=torchgraph.Graph)


def tensor(data: Any) -> torch.Tensor:
    """OneFlow's ``tensor`` of an array."""
    return torch.tensor(data)
