"""Idioms of losses: pytorch-metric-learning's index lists, penalties, deep supervision, masks."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from .idioms import Idiom, each, entropy, itself, labelled, normal


class Encoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.normalize(self.net(x), dim=-1)


def pairs(labels: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Anchors and positives, anchors and negatives: lists of indices."""
    matches = (labels.unsqueeze(1) == labels.unsqueeze(0)).byte()
    differs = matches ^ 1
    matches.fill_diagonal_(0)
    return (*torch.where(matches), *torch.where(differs))


def contrastive(model: nn.Module, x: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Without a pair of a kind, its loss is a zero that hangs on the embeddings."""
    out = model(x)
    anchors, positives, others, negatives = pairs(labels)
    distances = torch.cdist(out, out)
    total = out.sum() * 0
    if len(anchors) > 0:
        near = distances[anchors, positives]
        total = total + F.relu(near - 0.1).sum() / max(int((near > 0.1).sum()), 1)
    if len(others) == 0:
        return total
    return total + F.relu(1.2 - distances[others, negatives]).mean()


def triplet(model: nn.Module, x: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """All triplets, of them the ones that break the margin; none at all is asked for."""
    out = model(x)
    same = labels.unsqueeze(1) == labels.unsqueeze(0)
    same.fill_diagonal_(False)
    other = labels.unsqueeze(1) != labels.unsqueeze(0)
    anchor, positive, negative = torch.where(same.unsqueeze(2) & other.unsqueeze(1))
    if len(anchor) == 0:
        return out.sum() * 0
    distances = (out.unsqueeze(1) - out.unsqueeze(0)).pow(2).sum(-1)
    violation = distances[anchor, positive] - distances[anchor, negative] + 0.2
    losses = torch.relu(violation)
    return losses.masked_select(violation.detach() > -1.0).mean()


def nt_xent(model: nn.Module, x: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    """Two views, a diagonal that is cut out by a mask and a view."""
    out = torch.cat([model(x), model(other)])
    count = len(x)
    logits = out @ out.T / 0.2
    mask = ~torch.eye(2 * count, dtype=torch.bool)
    logits = logits[mask].view(2 * count, -1)
    rows = torch.arange(2 * count)
    target = (rows + count) % (2 * count)
    return F.cross_entropy(logits, target - (target > rows).long())


class Centers(nn.Module):
    """A memory bank written by index, thresholds by quantile, an outlier that is cut."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = Encoder()
        self.register_buffer("bank", torch.zeros(5, 4))
        self.register_buffer("count", torch.zeros(5, dtype=torch.long))

    def forward(self, x: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        out = self.encoder(x)
        distance = (out - self.bank[labels]).square().sum(1)
        limit = torch.quantile(distance.detach(), 0.8)
        loss = torch.where(distance < limit, distance, limit + 0.1 * distance).mean()
        with torch.no_grad():
            for label in labels.unique(sorted=True):
                chosen = labels == label
                self.bank[label].lerp_(out[chosen].mean(0), 0.5)
                self.count[label] += chosen.sum()
        return loss


class ReverseGradient(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, alpha: float) -> torch.Tensor:
        ctx.alpha = alpha
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:
        return gradient.neg() * ctx.alpha, None


class DomainAdversarial(nn.Module):
    """Gradient reversal before the second head."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = Encoder()
        self.classes, self.domains = nn.Linear(4, 3), nn.Linear(4, 2)

    def forward(self, x: torch.Tensor, y: torch.Tensor, domain: torch.Tensor) -> torch.Tensor:
        features = self.encoder(x)
        reversed_ = ReverseGradient.apply(features, 0.5)
        loss = F.cross_entropy(self.classes(features), y)
        return loss + F.binary_cross_entropy_with_logits(
            self.domains(reversed_), F.one_hot(domain, 2).float()
        )


class Signs(torch.autograd.Function):
    """Straight through where the input is small."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x)
        return torch.where(x >= 0, 1.0, -1.0)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        (x,) = ctx.saved_tensors
        return gradient * (x.abs() <= 1)


class Binary(nn.Module):
    """Signs of weights, rounded activations whose scale follows the largest value seen."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(6, 6) * 0.5)
        self.head = nn.Linear(6, 3)
        self.register_buffer("max_seen", torch.tensor(float("-inf")))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = torch.relu(x @ Signs.apply(self.weight))
        self.max_seen = torch.max(self.max_seen, hidden.detach().max())
        scale = self.max_seen.clamp(min=1e-3) / 15
        rounded = (hidden / scale).round().clamp(0, 15) * scale
        return self.head(hidden + (rounded - hidden).detach())


def focal(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """Ignored targets are selected away; the worst losses count, by topk; NaN is an error."""
    logits = model(x)
    valid = y != -100
    if not valid.any():
        return logits.sum() * 0.0
    logits, y = logits[valid], y[valid]
    log_p = F.log_softmax(logits, dim=-1).gather(1, y[:, None]).squeeze(1)
    losses = -((1 - log_p.exp()) ** 2) * log_p
    worst, _ = losses.topk(max(1, int(0.5 * losses.numel())))
    loss = worst.mean()
    if torch.isnan(loss).any():
        raise ValueError("the loss is NaN")
    return loss


def ranked(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """The area under a curve: a sort, sums over the order, and a hinge at a boolean index."""
    scores = model(x)[:, 0]
    order = torch.argsort(scores.detach(), descending=True, stable=True)
    truth = (y[order] > 1).float()
    union = truth.sum() + (1 - truth).cumsum(0)
    jaccard = 1 - (truth.sum() - truth.cumsum(0)) / union.clamp(min=1)
    jaccard[1:] = jaccard[1:] - jaccard[:-1].clone()
    errors = 1 - scores * (2 * (y > 1).float() - 1)
    return torch.dot(F.relu(errors[order]), jaccard)


def labels_of(step: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Labels with pairs, without any, without negatives, and with pairs again."""
    rows = ([0, 0, 1, 1, 2], [0, 1, 2, 3, 4], [0, 0, 1, 1, 2], [3, 3, 3, 3, 3], [0, 1, 2, 3, 4])
    return torch.randn(5, 6), torch.tensor(rows[step])


def ignored(step: int) -> tuple[torch.Tensor, torch.Tensor]:
    y = torch.randint(4, (6,))
    y[: (2, 6, 2, 0, 6)[step]] = -100
    return torch.randn(6, 6), y


def domains(step: int) -> tuple[torch.Tensor, ...]:
    return torch.randn(5, 6), torch.randint(3, (5,)), torch.randint(2, (5,))


def centered(step: int) -> tuple[torch.Tensor, torch.Tensor]:
    rows = ([0, 0, 1, 1, 2], [4, 1, 2, 3, 0], [0, 0, 1, 1, 2], [1, 0, 2, 2, 1], [4, 1, 2, 3, 0])
    return torch.randn(5, 6), torch.tensor(rows[step])


IDIOMS = [
    Idiom("contrastive_pairs", Encoder, each(labels_of, 5), contrastive),
    Idiom("triplets_by_where", Encoder, each(labels_of, 5), triplet),
    Idiom("nt_xent", Encoder, normal((4, 6), (4, 6)), nt_xent),
    Idiom("bank_of_centers", Centers, each(centered, 5), itself),
    Idiom("gradient_reversal", DomainAdversarial, each(domains), itself),
    Idiom("straight_through", Binary, labelled((5, 6), 3, 4), entropy),
    Idiom("ignored_targets", Encoder, each(ignored, 5), focal),
    Idiom("ranking_by_argsort", Encoder, labelled((6, 6), 4), ranked),
]
