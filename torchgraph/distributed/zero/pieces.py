"""One tensor in equal shards, padded for collectives."""

from __future__ import annotations

from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class Pieces:
    """Sharding of a tensor of ``shape`` along ``dim`` over ``ranks``, as DTensor's `Shard` does.

    The last ranks may have less than ``size`` rows, or none; on the wire all have as many.
    """

    shape: torch.Size
    dim: int
    ranks: int

    @property
    def size(self) -> int:
        """Rows of a shard; the last shards may have fewer."""
        return -(-self.shape[self.dim] // self.ranks)

    @property
    def sent(self) -> torch.Size:
        """The shape of each shard in a collective, with padding."""
        return torch.Size([*self.shape[: self.dim], self.size, *self.shape[self.dim + 1 :]])

    def padded(self, piece: torch.Tensor) -> torch.Tensor:
        """The shard of one rank, flat, padded with zeros."""
        if piece.shape != self.sent:
            whole = piece.new_zeros(self.sent)
            whole.narrow(self.dim, 0, piece.shape[self.dim]).copy_(piece)
            piece = whole
        return piece.reshape(-1)

    def cut(self, whole: torch.Tensor) -> torch.Tensor:
        """``(ranks, n)``: the shards of all ranks, flat, padded with zeros.

        A view where the memory allows it.
        """
        rows = self.size * self.ranks
        if self.shape[self.dim] != rows:
            padded = whole.new_zeros([*self.shape[: self.dim], rows, *self.shape[self.dim + 1 :]])
            padded.narrow(self.dim, 0, self.shape[self.dim]).copy_(whole)
            whole = padded
        sizes = (self.ranks, self.size)
        apart: torch.Tensor = whole.unflatten(self.dim, sizes).movedim(self.dim, 0)
        return apart.reshape(self.ranks, -1)

    def joined(self, pieces: torch.Tensor) -> torch.Tensor:
        """The whole tensor of ``(ranks, n)``, made by `padded` on each rank; a view if possible."""
        apart = pieces.view(self.ranks, *self.sent).movedim(0, self.dim)
        whole = apart.flatten(self.dim, self.dim + 1)
        return whole.narrow(self.dim, 0, self.shape[self.dim])

    def own(self, piece: torch.Tensor, rank: int) -> torch.Tensor:
        """A flat shard of ``rank`` without its padding, as a view."""
        rows = min(self.size, max(0, self.shape[self.dim] - rank * self.size))
        return piece.view(self.sent).narrow(self.dim, 0, rows)
