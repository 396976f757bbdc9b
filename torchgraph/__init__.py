"""OneFlow's nn.Graph for PyTorch: one whole training step as one torch.fx program."""

from . import (
    amp as amp,
    config as config,
    errors as errors,
    integrations as integrations,
    nn as nn,
    optim as optim,
    passes as passes,
    testing as testing,
)
from .config import GraphConfig
from .deploy import export
from .distributed.replicas import no_sync
from .distributed.words import env, placement, sbp, to_global, to_local
from .graph import Graph
from .inspect.bisecting.bisect import bisect
from .library import depend
from .record.ambient.functions import pure
from .saved import LoadedGraph, load, save
from .step_function import step, train_step

__all__ = [
    "Graph",
    "GraphConfig",
    "LoadedGraph",
    "__version__",
    "amp",
    "bisect",
    "depend",
    "env",
    "errors",
    "export",
    "integrations",
    "load",
    "nn",
    "no_sync",
    "optim",
    "passes",
    "placement",
    "pure",
    "save",
    "sbp",
    "step",
    "testing",
    "to_global",
    "to_local",
    "train_step",
]

__version__ = "0.1.0"
