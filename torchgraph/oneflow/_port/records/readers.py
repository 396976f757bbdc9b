"""``oneflow.nn``'s modules that read OFRecord files, and decode numbers and bytes of them."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from ....distributed.words.process import get_rank, get_world_size
from ....errors import InvalidOption
from ..errors import NotPorted
from .pipeline import performed
from .reading import RAW, DecodesBytes, DecodesRaw, FlipsCoins, Reads


def check_place(name: str, device: Any, placement: Any, sbp: Any) -> None:
    """Refuse what is not read on the CPU of one rank.

    Raises:
        NotPorted, InvalidOption.
    """
    if placement is None:
        if sbp is not None:
            raise InvalidOption(f"{name}(sbp=...) needs a placement.")
        if device is not None and torch.device(device).type != "cpu":
            raise NotPorted(f"{name} reads on the CPU, not on {device}.", fix="leave device out.")
        return
    if device is not None or sbp is None:
        raise InvalidOption(f"{name} takes a device, or placement and sbp.")
    if placement.type != "cpu":
        raise NotPorted(
            f"{name} reads on the CPU, not on {placement.type}.", fix="placement('cpu')"
        )
    if get_world_size() > 1:
        raise NotPorted(
            f"{name}(placement=...) makes one tensor of all ranks, which is here for one rank.",
            fix="leave placement and sbp out, with the batch size of one rank: each rank reads "
            "its own parts. tensor.to_global(...) makes one tensor of theirs.",
        )


class OFRecordReader(nn.Module):
    """Batches of records of OFRecord files, round and round. OneFlow: ``nn.OFRecordReader``.

    The order is OneFlow's: parts one after the other, a batch that ends with the first records
    again, the same orders of files with ``shuffle_after_epoch``, the same records with
    ``random_shuffle`` and a seed. Of several ranks each reads its own parts.

    Args:
        ofrecord_dir: the folder.
        batch_size: records in a batch.
        data_part_num: how many files there are: ``<prefix>0``, ``<prefix>1`` and so on.
        part_name_suffix_length: the numbers have zeros before them up to this length; -1: none.
        random_shuffle: each record changes places with one of ``shuffle_buffer_size`` others.
        shuffle_after_epoch: the files are read in another order in each epoch after the first.
        random_seed: -1 or None: another one each time.
        name: without effect, as in OneFlow.

    Returns, when called: the records, for decoders.

    Raises:
        BadRecord: when called: a file that is missing, cut off or none of OFRecords.
        NotPorted, InvalidOption.
    """

    def __init__(
        self,
        ofrecord_dir: str,
        batch_size: int = 1,
        data_part_num: int = 1,
        part_name_prefix: str = "part-",
        part_name_suffix_length: int = -1,
        random_shuffle: bool = False,
        shuffle_buffer_size: int = 1024,
        shuffle_after_epoch: bool = False,
        random_seed: int | None = -1,
        device: Any = None,
        placement: Any = None,
        sbp: Any = None,
        name: str | None = None,
    ) -> None:
        super().__init__()
        check_place("OFRecordReader", device, placement, sbp)
        counts = {"batch_size": batch_size, "data_part_num": data_part_num}
        if random_shuffle:
            counts["shuffle_buffer_size"] = shuffle_buffer_size
        for called, count in counts.items():
            if type(count) is not int or count < 1:
                raise InvalidOption(f"OFRecordReader({called}={count!r}) is no number from 1 on.")
        world, rank = get_world_size(), get_rank()
        if world > data_part_num:
            raise InvalidOption(
                f"OFRecordReader shares {data_part_num} parts among {world} ranks: some have none."
            )
        each, more = divmod(data_part_num, world)
        first = rank * each + min(rank, more)
        numbers = (str(n).zfill(max(0, part_name_suffix_length)) for n in range(data_part_num))
        self.ofrecord_dir, self.batch_size = ofrecord_dir, batch_size
        self._operation = Reads(
            tuple(os.path.join(ofrecord_dir, part_name_prefix + number) for number in numbers),
            (first, first + each + (rank < more)),
            batch_size,
            shuffle_buffer_size if random_shuffle else 0,
            bool(shuffle_after_epoch),
            -1 if random_seed is None else random_seed,
        )

    def forward(self) -> Any:
        """The next records."""
        return performed(self, self._operation, ())


class OFRecordRawDecoder(nn.Module):
    """A feature of numbers as a tensor (batch, *shape). OneFlow: ``nn.OFRecordRawDecoder``.

    Numbers of another kind are cast as C++ casts them; bytes are numbers of one byte.

    Args:
        blob_name: the name of the feature.
        shape: of one record; all records have that many values.
        dtype: int8, uint8, int32, int64, float32 or float64.
        truncate: too many values are cut off, zeros stand for those that lack. So it is with
            ``dim1_varying_length``, and with ``auto_zero_padding``, the older name.
        name: without effect, as in OneFlow.

    Raises:
        NotPorted: another dtype. When called, BadRecord: another number of values.
    """

    def __init__(
        self,
        blob_name: str,
        shape: Sequence[int],
        dtype: torch.dtype,
        dim1_varying_length: bool = False,
        truncate: bool = False,
        auto_zero_padding: bool = False,
        name: str | None = None,
    ) -> None:
        super().__init__()
        if dtype not in RAW:
            known = ", ".join(str(one).removeprefix("torch.") for one in RAW)
            raise NotPorted(
                f"OFRecordRawDecoder gives {known}, not {dtype}.", fix="convert what it gives."
            )
        fills = bool(truncate or auto_zero_padding or dim1_varying_length)
        self._operation = DecodesRaw(blob_name, tuple(map(int, shape)), dtype, fills)

    def forward(self, input: Any) -> Any:
        """The feature of each record."""
        return performed(self, self._operation, (input,))


class OFRecordBytesDecoder(nn.Module):
    """A feature of bytes as it is, for image decoders. OneFlow: ``nn.OFRecordBytesDecoder``.

    Args:
        blob_name: the name of the feature.
        name: without effect, as in OneFlow.

    Returns, when called: a `TensorBuffer`, whose ``numpy()`` is a list of arrays of uint8.
    """

    def __init__(self, blob_name: str, name: str | None = None) -> None:
        super().__init__()
        self._operation = DecodesBytes(blob_name)

    def forward(self, input: Any) -> Any:
        """The bytes of each record."""
        return performed(self, self._operation, (input,))


class CoinFlip(nn.Module):
    """Ones with a probability, else zeros: int8 (batch_size,). OneFlow: ``nn.CoinFlip``.

    The distribution is OneFlow's, the stream is not: a seed gives other ones than there.

    Args:
        random_seed: None: another one each time.
        probability: of a one.
    """

    def __init__(
        self,
        batch_size: int = 1,
        random_seed: int | None = None,
        probability: float = 0.5,
        device: Any = None,
        placement: Any = None,
        sbp: Any = None,
    ) -> None:
        super().__init__()
        check_place("CoinFlip", device, placement, sbp)
        seed = None if random_seed is None else random_seed & (2**64 - 1)
        self._operation = FlipsCoins(batch_size, probability, seed)

    def forward(self) -> Any:
        """The next ones."""
        return performed(self, self._operation, ())
