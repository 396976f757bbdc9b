"""Idioms of state: queues with pointers, buffers that move or appear, data-dependent starts."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

from torchgraph.errors import EagerWarning

from .idioms import Idiom, each, error, itself, normal


class MomentumContrast(nn.Module):
    """A queue of keys with a pointer of one element, and an encoder that follows another."""

    def __init__(self) -> None:
        super().__init__()
        self.queries, self.keys = nn.Linear(6, 4), nn.Linear(6, 4)
        for query, key in zip(self.queries.parameters(), self.keys.parameters(), strict=True):
            key.data.copy_(query.data)
            key.requires_grad = False
        self.register_buffer("queue", F.normalize(torch.randn(4, 8), dim=0))
        self.register_buffer("queue_ptr", torch.zeros(1, dtype=torch.long))

    @torch.no_grad()
    def _follow(self) -> None:
        for query, key in zip(self.queries.parameters(), self.keys.parameters(), strict=True):
            key.data = key.data * 0.9 + query.data * 0.1

    @torch.no_grad()
    def _enqueue(self, keys: torch.Tensor) -> None:
        count = keys.shape[0]
        ptr = int(self.queue_ptr)
        assert self.queue.shape[1] % count == 0
        self.queue[:, ptr : ptr + count] = keys.T
        self.queue_ptr[0] = (ptr + count) % self.queue.shape[1]

    def forward(self, x: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
        query = F.normalize(self.queries(x), dim=1)
        with torch.no_grad():
            self._follow()
            key = F.normalize(self.keys(other), dim=1)
        positive = torch.einsum("nc,nc->n", [query, key]).unsqueeze(-1)
        negative = torch.einsum("nc,ck->nk", [query, self.queue.clone().detach()])
        logits = torch.cat([positive, negative], dim=1) / 0.2
        self._enqueue(key)
        return F.cross_entropy(logits, torch.zeros(logits.shape[0], dtype=torch.long))


class Rotated(nn.Module):
    """The last three means, the oldest one replaced by a new tensor."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)
        for name in "abc":
            self.register_buffer(name, torch.zeros(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.linear(x)
        out = x + self.a + 2 * self.b + 3 * self.c
        self.a, self.b, self.c = self.b, self.c, x.detach().mean(0)
        return out


class NoneFirst(nn.Module):
    """A buffer that is None until the first batch has been seen."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.register_buffer("mean", None)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.mean is None:
            self.mean = x.detach().mean(0)
        else:
            self.mean = 0.9 * self.mean + 0.1 * x.detach().mean(0)
        return self.linear(x - self.mean)


class RegisteredInForward(nn.Module):
    """A mask that grows when a longer sequence comes, and a count, both registered in forward."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        length = x.shape[1]
        if not hasattr(self, "mask") or self.mask.shape[-1] < length:
            mask = torch.ones(length, length).triu(1).bool()
            self.register_buffer("mask", mask, persistent=False)
        if "seen" not in self._buffers:
            self.register_buffer("seen", torch.zeros((), dtype=torch.long))
        self.seen += x.shape[0]
        scores = x @ self.linear(x).transpose(1, 2)
        scores = scores.masked_fill(self.mask[:length, :length], float("-inf"))
        return scores.softmax(-1) @ x


class CarriedHidden(nn.Module):
    """Truncated backpropagation: the hidden state stays in an attribute between the steps."""

    def __init__(self) -> None:
        super().__init__()
        self.cell = nn.GRUCell(3, 5)
        self.head = nn.Linear(5, 2)
        self.h: torch.Tensor | None = None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = self.h if self.h is not None else x.new_zeros(x.shape[0], 5)
        for frame in x.unbind(1):
            hidden = self.cell(frame, hidden)
        self.h = hidden.detach()
        return self.head(hidden)


class ActNorm(nn.Module):
    """Initialized by the data of the first step."""

    def __init__(self, features: int) -> None:
        super().__init__()
        self.register_buffer("initialized", torch.tensor(False, dtype=torch.bool))
        self.log_scale = nn.Parameter(torch.zeros(features))
        self.shift = nn.Parameter(torch.zeros(features))

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        if x.dim() not in {2, 4}:
            raise ValueError("Expecting inputs to be a 2D or a 4D tensor.")
        if self.training and not self.initialized:
            with torch.no_grad():
                std = x.std(dim=0)
                self.log_scale.data = -torch.log(std)
                self.shift.data = -(x / std).mean(dim=0)
                self.initialized.data = torch.tensor(True, dtype=torch.bool)
        scale = torch.exp(self.log_scale).view(1, -1)
        return scale * x + self.shift.view(1, -1), self.log_scale.sum() * x.new_ones(x.shape[0])


class ActNormFlow(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.norm = ActNorm(4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        z, log_det = self.norm(self.linear(x))
        return (0.5 * z.square().sum(1) - log_det).mean()


class BatchRenorm(nn.Module):
    """Limits that grow with a counter that lies in a buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.register_buffer("mean", torch.zeros(4))
        self.register_buffer("std", torch.ones(4))
        self.register_buffer("num_batches_tracked", torch.tensor(0, dtype=torch.long))

    @property
    def rmax(self) -> torch.Tensor:
        return (2 / 4 * self.num_batches_tracked + 0.5).clamp_(1.0, 3.0)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.linear(x)
        mean, std = x.mean(0), x.std(0, unbiased=False) + 1e-3
        r = (std.detach() / self.std).clamp_(1 / self.rmax, self.rmax)
        d = ((mean.detach() - self.mean) / self.std).clamp_(-self.rmax, self.rmax)
        self.mean += 0.1 * (mean.detach() - self.mean)
        self.std += 0.1 * (std.detach() - self.std)
        self.num_batches_tracked += 1
        return (x - mean) / std * r + d


class Codebook(nn.Module):
    """Vector quantization whose codes follow averages; straight through; dead codes come back."""

    def __init__(self) -> None:
        super().__init__()
        self.encode, self.decode = nn.Linear(6, 3), nn.Linear(3, 6)
        self.register_buffer("embed", torch.randn(5, 3))
        self.register_buffer("cluster_size", torch.ones(5))
        self.register_buffer("embed_avg", self.embed.clone())

    @torch.no_grad()
    def _update(self, flat: torch.Tensor, onehot: torch.Tensor) -> None:
        self.cluster_size.data.mul_(0.8).add_(onehot.sum(0), alpha=0.2)
        self.embed_avg.data.mul_(0.8).add_(onehot.t() @ flat, alpha=0.2)
        total = self.cluster_size.sum()
        smoothed = (self.cluster_size + 1e-5) / (total + 5e-5) * total
        self.embed.data.copy_(self.embed_avg / smoothed.unsqueeze(1))
        expired = self.cluster_size < 0.7
        if not torch.any(expired):
            return
        drawn = flat[torch.randint(0, flat.shape[0], (5,))]
        self.embed.data.copy_(torch.where(expired[:, None], drawn, self.embed))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        z = self.encode(x)
        codes = (-torch.cdist(z, self.embed)).argmax(-1)
        quantized = F.embedding(codes, self.embed)
        if self.training:
            self._update(z.detach(), F.one_hot(codes, 5).to(z.dtype))
        commitment = F.mse_loss(quantized.detach(), z)
        quantized = z + (quantized - z).detach()
        return F.mse_loss(self.decode(quantized), x) + 0.25 * commitment


def frames(step: int) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randn(2, 4, 3), torch.randn(2, 2)


def longer(step: int) -> tuple[torch.Tensor]:
    return (torch.randn(2, (3, 3, 5, 3, 5)[step], 4),)


IDIOMS = [
    Idiom("queue_with_a_pointer", MomentumContrast, normal((4, 6), (4, 6), steps=6), itself),
    Idiom("buffers_that_rotate", Rotated, normal((5, 4), steps=5)),
    Idiom("buffer_that_is_none_first", NoneFirst, normal((5, 4), steps=4)),
    Idiom("buffers_registered_in_forward", RegisteredInForward, each(longer, 5)),
    Idiom(
        "hidden_state_in_an_attribute",
        CarriedHidden,
        each(frames, 5),
        error,
        outside=lambda model: (model.h,),
        stays_eager=EagerWarning,
    ),
    Idiom("act_norm", ActNormFlow, normal((6, 4), steps=5), itself),
    Idiom("batch_renorm", BatchRenorm, normal((6, 4), (6, 4), steps=5), error),
    Idiom("codebook_with_averages", Codebook, normal((7, 6), steps=6), itself),
]
