"""``oneflow.nn.GPTIndexedBinDataReader``: batches of tokens for a language model."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from .....distributed.words.process import get_world_size
from .....errors import InvalidOption
from ...errors import NotPorted
from ..pipeline import performed
from ..readers import check_place
from ..reading import ENTROPY
from .samples import ReadsTokens

_DTYPES = (torch.int32, torch.int64)


class GPTIndexedBinDataReader(nn.Module):
    """Tokens (batch_size, seq_length + 1) of a pair of files. OneFlow: the same.

    Documents and samples come in OneFlow's order: equal seeds give equal batches.

    Args:
        data_file_prefix: ``<prefix>.bin`` and ``<prefix>.idx``, as Megatron-LM writes them.
        num_samples: how many samples all steps take together. More of them are prepared, up to the
            end of an epoch; OneFlow aborts after those, here they are an error.
        dtype: int32 or int64.
        shuffle: documents of each epoch and then samples are in a random order.
        random_seed: None: another one each time.
        split_sizes: shares of the documents, such as (949, 50, 1).
        split_index: which of the shares.

    Raises:
        InvalidOption, NotPorted. When called: BadRecord, for a file that is cut off or no such one.
    """

    def __init__(
        self,
        data_file_prefix: str,
        seq_length: int,
        num_samples: int,
        batch_size: int,
        dtype: torch.dtype = torch.int64,
        shuffle: bool = True,
        random_seed: int | None = None,
        split_sizes: Sequence[int] | None = None,
        split_index: int | None = None,
        device: Any = None,
        placement: Any = None,
        sbp: Any = None,
    ) -> None:
        super().__init__()
        check_place("GPTIndexedBinDataReader", device, placement, sbp)
        if get_world_size() > 1:
            raise NotPorted(
                "GPTIndexedBinDataReader is here for one rank.",
                fix="read with a DataLoader and a DistributedSampler.",
            )
        counts = {"seq_length": seq_length, "num_samples": num_samples, "batch_size": batch_size}
        for name, count in counts.items():
            if type(count) is not int or count < 1:
                raise InvalidOption(f"GPTIndexedBinDataReader({name}={count!r}) is no such number.")
        split, part = tuple(split_sizes or (1,)), split_index or 0
        if not all(type(one) is int and one >= 0 for one in split) or not any(split):
            raise InvalidOption(f"GPTIndexedBinDataReader(split_sizes={split!r}) are no shares.")
        if not 0 <= part < len(split):
            raise InvalidOption(
                f"split index {part} is out of range, split_sizes {split} has {len(split)}."
            )
        if dtype not in _DTYPES:
            raise NotPorted(f"GPTIndexedBinDataReader gives int32 and int64, not {dtype}.")
        seed = ENTROPY.getrandbits(31) if shuffle and random_seed is None else random_seed or 0
        self._operation = ReadsTokens(
            str(data_file_prefix),
            seq_length,
            num_samples,
            batch_size,
            dtype,
            bool(shuffle),
            seed,
            split,
            part,
        )

    def forward(self) -> Any:
        """The next samples."""
        return performed(self, self._operation, ())
