"""What tensors, their memory and generators tell about themselves."""

from __future__ import annotations

import operator
from collections.abc import Callable

import torch

version_of: Callable[[torch.Tensor], int] = operator.attrgetter("_version")
"""Counts the writes. Inference tensors have none."""

address_of: Callable[[torch.UntypedStorage | torch.Generator], int] = operator.attrgetter("_cdata")
"""Where the C++ part lies: equal for two Python objects exactly when they are of one."""

indices_of: Callable[[torch.Tensor], torch.Tensor] = operator.methodcaller("_indices")
values_of: Callable[[torch.Tensor], torch.Tensor] = operator.methodcaller("_values")
"""The indices and values of a sparse tensor, coalesced or not."""

MAKE_SUBCLASS = "_make_subclass"
"""The static method of Tensor that makes a Parameter, say."""

COMPILER_MARK = "_dynamo_"
"""What the names of attributes begin with that torch.compile marks a tensor with."""
