"""Steps of `nn.Graph` that run under OneFlow 0.9 and here, with the numbers that OneFlow gave."""

from . import gradients, inputs, modules, optimizers, schedulers, training, using
from .made import CASES as CASES, Case as Case

__all__ = [
    "CASES",
    "Case",
    "gradients",
    "inputs",
    "modules",
    "optimizers",
    "schedulers",
    "training",
    "using",
]
