"""Gradients averaged over a process group in buckets, and buffers broadcast from its first rank.

All by functional collectives, which name their group: what runs in eager is what is recorded.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch

from .._torch.distributed import collectives
from ..errors import NotSupported
from .parallel import DataParallel


@torch.no_grad()
def averaged(gradients: Sequence[torch.Tensor], parallel: DataParallel) -> list[torch.Tensor]:
    """The mean of each gradient over the ranks; means of one bucket share memory.

    Buckets are made here and not by a pass, as `torch._inductor.fx_passes.bucketing` would: so the
    calls in eager, which no pass sees, send and add up the same, to the last bit.

    Args:
        gradients: in the order in which they become ready; the same shapes on all ranks.

    Raises:
        NotSupported: one is sparse.
    """
    for gradient in gradients:
        if gradient.layout is not torch.strided:
            raise NotSupported(
                "Data parallel: a gradient is sparse, and buckets hold dense ones.",
                fix="make the embedding with sparse=False.",
            )
    members = collectives.buckets(gradients, parallel.bucket_bytes) if gradients else []
    begun = [_begin_mean([gradients[i] for i in bucket], parallel) for bucket in members]
    found = list(gradients)
    for bucket, flat in zip(members, begun, strict=True):
        whole = collectives.wait(flat)
        for i, part in zip(bucket, _parts(whole, [gradients[i] for i in bucket]), strict=True):
            found[i] = part
    return found


def _begin_mean(gradients: Sequence[torch.Tensor], parallel: DataParallel) -> torch.Tensor:
    """Start an all-reduce of gradients divided by the number of ranks beforehand, as DDP does."""
    flat = [gradient.reshape(-1) for gradient in gradients]
    scale = 1.0 / parallel.ranks
    mine = flat[0].mul(scale) if len(flat) == 1 else torch.cat(flat).mul_(scale)
    return collectives.begin_sum(mine, parallel.group)


def _parts(flat: torch.Tensor, like: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    if len(like) == 1:
        return [flat.view(like[0].shape)]
    pieces = flat.split([tensor.numel() for tensor in like])
    return [piece.view(tensor.shape) for piece, tensor in zip(pieces, like, strict=True)]


@torch.no_grad()
def spread(buffers: Iterable[torch.Tensor], group: str) -> None:
    """Broadcast buffers from the first rank, those of one dtype and device together."""
    kinds: dict[tuple[torch.dtype, torch.device], list[torch.Tensor]] = {}
    for buffer in buffers:
        kinds.setdefault((buffer.dtype, buffer.device), []).append(buffer)
    begun = []
    for held in kinds.values():
        flat = [buffer.reshape(-1) for buffer in held]
        mine = flat[0] if len(flat) == 1 else torch.cat(flat)
        begun.append(collectives.begin_broadcast(mine, 0, group))
    for held, mine in zip(kinds.values(), begun, strict=True):
        whole = collectives.wait(mine)
        for buffer, part in zip(held, _parts(whole, held), strict=True):
            buffer.copy_(part)
