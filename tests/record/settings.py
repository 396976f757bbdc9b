"""A module of settings, as a program has."""

from types import SimpleNamespace

import torch

BETA = 0.5
config = SimpleNamespace(gamma=2.0)
activation = torch.relu
