"""Comparison of parameters over the ranks of a pipeline, which each train some of its stages."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from .._torch.distributed.held import local
from ..distributed.errors import RanksDiffer, StageNotPlaced
from ..distributed.peers import Peers, here
from ..options.options import Options
from .layout import Layout

_WORD = 8
"""Bytes that are added up as one number."""
_AT_ONCE = 1 << 20
"""Numbers that are added up at a time."""


def check_alike(options: Options, tensors: Mapping[str, torch.Tensor]) -> None:
    """Compare tensors over the ranks of a pipeline. Every rank has to call.

    Raises:
        RanksDiffer: on every rank, with the first name; where the stages have places.
    """
    try:
        layout = Layout.of(options.stages, merge=False)
        copy = layout.copy_of(here())
    except StageNotPlaced:  # the compile says so
        return
    if layout.is_spread:
        pipelines = [layout.ranks_of(number) for number in range(layout.copies)]
        compare(Peers(pipelines, copy), tensors)


def compare(peers: Peers, tensors: Mapping[str, torch.Tensor]) -> None:
    """Raise RanksDiffer on every rank unless all of them have the same tensors."""
    device = next((one.device for one in tensors.values() if one.is_cuda), torch.device("cpu"))
    sums = [_checksum(tensor) for tensor in tensors.values()]
    counts = peers.gathered(torch.tensor([len(sums)], device=device))
    if len({int(count) for count in counts}) > 1:
        raise RanksDiffer("The ranks of a pipeline have different numbers of tensors.")
    found = peers.gathered(torch.tensor(sums, dtype=torch.int64, device=device))
    for position, name in enumerate(tensors):
        if len({int(rank[position]) for rank in found}) > 1:
            raise RanksDiffer(
                f"The ranks of a pipeline have different values in {name}.",
                fix="seed all ranks alike before the model is made, and give all the same batch.",
            )


def _checksum(tensor: torch.Tensor) -> int:
    """A checksum of the bytes of a tensor."""
    with torch.no_grad():
        held = local(tensor).detach().resolve_conj().resolve_neg()
        raw = held.contiguous().view(-1).view(torch.uint8)
        whole = raw.numel() - raw.numel() % _WORD
        words = raw[:whole].clone() if raw.storage_offset() % _WORD else raw[:whole]
        total = _weighed(raw[whole:].to(torch.int64))
        for part in words.view(torch.int64).split(_AT_ONCE):
            total = 31 * total + _weighed(part)
    return total % 2**62


def _weighed(numbers: torch.Tensor) -> int:
    """The sum of numbers weighed by their position; independent of where a list is split."""
    places = torch.arange(1, numbers.numel() + 1, device=numbers.device)
    return int((numbers * places).sum())
