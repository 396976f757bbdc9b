"""A namespace with OneFlow's names, of which only the optimizers' part is OneFlow's."""

from types import SimpleNamespace
from typing import Any

import torch

import torchgraph
from torchgraph.porting.optim import adadelta, adagrad, adam, lamb, mixed_precision, rmsprop, sgd
from torchgraph.porting.optim.base import Optimizer
from torchgraph.porting.optim.schedules import base, compound, plain, plateau, warmup

_SCHEDULES = ("ConstantLR", "LinearLR", "StepLR", "MultiStepLR", "ExponentialLR", "PolynomialLR")
_COSINES = ("CosineDecayLR", "CosineAnnealingLR", "CosineAnnealingWarmRestarts")

lr_scheduler = SimpleNamespace(
    **{name: getattr(plain, name) for name in (*_SCHEDULES, *_COSINES)},
    LambdaLR=compound.LambdaLR,
    ChainedScheduler=compound.ChainedScheduler,
    SequentialLR=compound.SequentialLR,
    WarmupLR=warmup.WarmupLR,
    WarmUpLR=warmup.WarmupLR,
    ReduceLROnPlateau=plateau.ReduceLROnPlateau,
    _LRScheduler=base.LRScheduler,
)
optim = SimpleNamespace(
    SGD=sgd.SGD,
    Adam=adam.Adam,
    AdamW=adam.AdamW,
    Adagrad=adagrad.Adagrad,
    Adadelta=adadelta.Adadelta,
    RMSprop=rmsprop.RMSprop,
    LAMB=lamb.LAMB,
    Optimizer=Optimizer,
    lr_scheduler=lr_scheduler,
)
amp = SimpleNamespace(
    GradScaler=mixed_precision.GradScaler,
    StaticGradScaler=torchgraph.amp.StaticGradScaler,
    autocast=mixed_precision.autocast,
)
nn = SimpleNamespace(Module=torch.nn.Module, Parameter=torch.nn.Parameter, Graph=torchgraph.Graph)


def tensor(data: Any) -> torch.Tensor:
    """OneFlow's ``tensor`` of an array."""
    return torch.tensor(data)
