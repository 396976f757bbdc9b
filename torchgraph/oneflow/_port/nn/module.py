"""Members of modules that differ in OneFlow."""

from __future__ import annotations

import warnings

from torch import Tensor, nn
from torch.nn.utils import rnn, weight_norm as torch_weight_norm

from ....distributed.words import env
from ..errors import NotPorted


def zero_grad(self: nn.Module, set_to_none: bool = False) -> None:
    """OneFlow: ``nn.Module.zero_grad``, which leaves zeros."""
    nn.Module.zero_grad(self, set_to_none=set_to_none)


def data_parallel(
    module: nn.Module,
    *,
    broadcast_buffers: bool = True,
    broadcast_parameters: bool = True,
    bucket_size: int = 10,
) -> nn.Module:
    """The module itself, in one process. OneFlow: ``nn.parallel.DistributedDataParallel``.

    Raises:
        NotPorted: there are several processes.
    """
    if env.get_world_size() > 1:
        raise NotPorted(
            "DistributedDataParallel of several processes is not here.",
            fix="use torch.nn.parallel.DistributedDataParallel, or train in a Graph, which "
            "averages gradients by itself.",
        )
    return module


def weight_norm(module: nn.Module, name: str = "weight", dim: int | None = 0) -> nn.Module:
    """A weight as a length and a direction. OneFlow: ``nn.utils.weight_norm``.

    The parameters are ``weight_g`` and ``weight_v``, which torch's newer norm calls otherwise; of
    that torch warns, and this does not.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        return torch_weight_norm(module, name, dim)  # type: ignore[arg-type]


def pad_packed_sequence(
    sequence: rnn.PackedSequence,
    batch_first: bool = False,
    padding_value: float = 0.0,
    total_length: int | None = None,
) -> tuple[Tensor, Tensor]:
    """OneFlow: ``nn.utils.rnn.pad_packed_sequence``, whose lengths are float32."""
    padded, lengths = rnn.pad_packed_sequence(sequence, batch_first, padding_value, total_length)
    return padded, lengths.float()
