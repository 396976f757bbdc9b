"""Idioms of graph and point networks: PyTorch Geometric's, e3nn's, and mixtures of experts."""

from __future__ import annotations

import math
from functools import cache, lru_cache, partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from .idioms import Idiom, each, entropy, error, itself


def count_of(index: torch.Tensor, count: int | None = None) -> int:
    if count is not None:
        return count
    return int(index.max()) + 1 if index.numel() > 0 else 0


def scatter(src: torch.Tensor, index: torch.Tensor, count: int, reduce: str) -> torch.Tensor:
    size = (count, *src.shape[1:])
    index = index.view(-1, *(1,) * (src.dim() - 1)).expand_as(src)
    if reduce == "mean":
        total = src.new_zeros(size).scatter_add_(0, index, src)
        return total / src.new_zeros(size).scatter_add_(0, index, torch.ones_like(src)).clamp(min=1)
    if reduce == "max":
        return src.new_zeros(size).scatter_reduce_(0, index, src, "amax", include_self=False)
    return src.new_zeros(size).scatter_add_(0, index, src)


def sparse_softmax(src: torch.Tensor, index: torch.Tensor, count: int) -> torch.Tensor:
    top = scatter(src.detach(), index, count, "max").index_select(0, index)
    out = (src - top).exp()
    return out / (scatter(out, index, count, "sum") + 1e-16).index_select(0, index)


class MeanConv(nn.Module):
    """Messages gathered and scattered; the number of graphs comes from the data."""

    def __init__(self) -> None:
        super().__init__()
        self.near, self.self_ = nn.Linear(4, 6), nn.Linear(4, 6)
        self.head = nn.Linear(6, 3)

    def forward(self, x: torch.Tensor, edges: torch.Tensor, batch: torch.Tensor) -> torch.Tensor:
        source, target = edges
        near = scatter(self.near(x)[source], target, x.size(0), "mean")
        x = F.relu(near + self.self_(x))
        graphs = count_of(batch)
        pooled = scatter(x, batch, graphs, "max")
        return self.head(pooled)


class GraphAttention(nn.Module):
    """Softmax over the edges of a node, self-loops removed by a mask and added again."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 6, bias=False)
        self.att_src = nn.Parameter(torch.randn(1, 2, 3) * 0.3)
        self.att_dst = nn.Parameter(torch.randn(1, 2, 3) * 0.3)

    def forward(self, x: torch.Tensor, edges: torch.Tensor, _: torch.Tensor) -> torch.Tensor:
        nodes = x.size(0)
        edges = edges[:, edges[0] != edges[1]]
        loops = torch.arange(nodes).unsqueeze(0).repeat(2, 1)
        edges = torch.cat([edges, loops], dim=1)
        h = self.linear(x).view(-1, 2, 3)
        scores = (h * self.att_src).sum(-1)[edges[0]] + (h * self.att_dst).sum(-1)[edges[1]]
        alpha = sparse_softmax(F.leaky_relu(scores, 0.2), edges[1], count_of(edges, nodes))
        alpha = F.dropout(alpha, p=0.2, training=self.training)
        return scatter(h[edges[0]] * alpha.unsqueeze(-1), edges[1], nodes, "sum").flatten(1)


class TopKPooling(nn.Module):
    """The best half of the nodes by a learned score, edges filtered and numbered again."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(1, 4))
        self.linear = nn.Linear(4, 3)

    def forward(self, x: torch.Tensor, edges: torch.Tensor, _: torch.Tensor) -> torch.Tensor:
        score = torch.tanh((x * self.weight).sum(-1) / self.weight.norm(p=2, dim=-1))
        keep = math.ceil(0.5 * x.size(0))
        chosen = torch.sort(score, descending=True, stable=True)[1][:keep]
        x = x[chosen] * score[chosen].view(-1, 1)
        places = torch.full((score.size(0),), -1, dtype=torch.long)
        places[chosen] = torch.arange(keep)
        row, column = places[edges[0]], places[edges[1]]
        mask = (row >= 0) & (column >= 0)
        row, column = row[mask], column[mask]
        if row.numel() == 0:
            return self.linear(x).sum(0, keepdim=True)
        return self.linear(x + scatter(x[row], column, keep, "sum")).sum(0, keepdim=True)


class Voxels(nn.Module):
    """Points pooled into the cells that they lie in: unique with inverse and counts."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 4)

    def forward(self, points: torch.Tensor) -> torch.Tensor:
        cells = torch.div(points.detach(), 1.5, rounding_mode="floor").long() + 4
        keys = cells @ torch.tensor([100, 10, 1])
        _, inverse, counts = torch.unique(keys, return_inverse=True, return_counts=True)
        total = scatter(self.linear(points), inverse, count_of(inverse), "sum")
        return (total / counts[:, None]).square().mean()


class NearestNeighbours(nn.Module):
    """EdgeConv on the nearest points, which cdist and topk find anew."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 4))

    def forward(self, points: torch.Tensor) -> torch.Tensor:
        near = torch.cdist(points, points).topk(3, dim=-1, largest=False, sorted=True).indices
        flat = near.flatten(1).unsqueeze(-1).expand(-1, -1, 3)
        gathered = points.gather(1, flat).view(*near.shape, 3)
        center = points.unsqueeze(2).expand_as(gathered)
        return self.net(torch.cat([center, gathered - center], -1)).max(dim=2)[0].amax(1)


@cache
def generators(order: int) -> tuple[tuple[float, ...], ...]:
    """Numbers alone are shared between the models; tensors each one makes for itself."""
    size = 2 * order + 1
    return tuple(tuple(math.cos(i * j + order) for j in range(size)) for i in range(size))


class TensorProduct(nn.Module):
    """Paths between orders, each with a constant made in forward and kept by an lru_cache."""

    def __init__(self) -> None:
        super().__init__()
        self.orders = (0, 1)
        self.weights = nn.ParameterList(nn.Parameter(torch.randn(2, 2)) for _ in range(4))
        self._w3j = lru_cache(maxsize=None)(partial(self._coupling, torch.float32))

    @staticmethod
    def _coupling(dtype: torch.dtype, first: int, second: int) -> torch.Tensor:
        left = torch.tensor(generators(first), dtype=dtype)
        right = torch.tensor(generators(second), dtype=dtype)
        coupling = torch.einsum("ij,kl->ikl", left, right)
        return coupling / coupling.norm()

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        norm = torch.tensor([math.sqrt(2 * order + 1) for order in self.orders], dtype=x.dtype)
        slices = {0: slice(0, 2), 1: slice(2, 8)}
        parts = []
        for number, (first, second) in enumerate((a, b) for a in (0, 1) for b in (0, 1)):
            left = x[:, slices[first]].reshape(-1, 2, 2 * first + 1)
            right = y[:, slices[second]].reshape(-1, 2, 2 * second + 1)
            mixed = torch.einsum("uv,zui,zvj->zvij", self.weights[number], left, right)
            out = torch.einsum("zvij,ijl->zvl", mixed, self._w3j(first, second))
            parts.append(norm[second] * out.flatten(1))
        return torch.cat(parts, dim=1)


class SphericalHarmonics(nn.Module):
    """Constants by the device and dtype of the input, kept in a dict that forward fills."""

    def __init__(self) -> None:
        super().__init__()
        self.constants: dict[Any, torch.Tensor] = {}
        self.linear = nn.Linear(9, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        key = (x.dtype, x.device)
        if key not in self.constants:
            self.constants[key] = torch.tensor([1.0, 3.0, 3.0, 3.0, 15, 15, 5, 15, 15]).sqrt().to(x)
        a, b, c = F.normalize(x, dim=-1).unbind(-1)
        second = [a * c, a * b, b.pow(2) - 0.5 * (a.pow(2) + c.pow(2)), b * c, (c * c - a * a) / 2]
        sh = torch.stack([torch.ones_like(a), a, b, c, *second], dim=-1)
        return self.linear(sh * self.constants[key])


class Expert(nn.Sequential):
    def __init__(self) -> None:
        super().__init__(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 4))


class AskingExperts(nn.Module):
    """Each expert is asked whether it has tokens; results are added back by index."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = nn.Linear(4, 3, bias=False)
        self.experts = nn.ModuleList(Expert() for _ in range(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        weights, chosen = self.gate(x).softmax(-1).topk(2, dim=-1)
        weights = weights / weights.sum(-1, keepdim=True)
        out = torch.zeros_like(x)
        for number, expert in enumerate(self.experts):
            token, place = torch.where(chosen == number)
            if token.numel() == 0:
                continue
            out.index_add_(0, token, expert(x[token]) * weights[token, place, None])
        return out


class SplittingExperts(nn.Module):
    """Tokens sorted by expert and split by their counts; a loss for balance; noise for the gate."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = nn.Parameter(torch.randn(4, 3) * 0.1)
        self.noise = nn.Parameter(torch.zeros(4, 3))
        self.experts = nn.ModuleList(Expert() for _ in range(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        logits = x @ self.gate
        if self.training:
            logits = logits + torch.randn_like(logits) * F.softplus(x @ self.noise)
        gates = torch.zeros_like(logits)
        top, chosen = logits.topk(1, dim=1)
        gates = gates.scatter(1, chosen, top.sigmoid())
        nonzero = torch.nonzero(gates)
        order = nonzero[:, 1].argsort(stable=True)
        experts, tokens = nonzero[order].split(1, dim=1)
        sizes = (gates > 0).sum(0).tolist()
        parts = x[tokens.squeeze(1)].split(sizes, dim=0)
        outs = [e(part) for e, part in zip(self.experts, parts, strict=True) if part.shape[0]]
        stitched = torch.cat(outs) * gates[tokens.squeeze(1), experts.squeeze(1)].unsqueeze(1)
        out = torch.zeros_like(x).index_add(0, tokens.squeeze(1), stitched)
        importance = gates.sum(0)
        balance = importance.var() / (importance.mean() ** 2 + 1e-10)
        return out.square().mean() + 0.1 * balance


class DeepSet(nn.Module):
    """Sets of several sizes in one list, each through phi, sums through rho."""

    def __init__(self) -> None:
        super().__init__()
        self.phi, self.rho = nn.Linear(3, 5), nn.Linear(5, 2)

    def forward(self, sets: list[torch.Tensor]) -> torch.Tensor:
        sums = [torch.relu(self.phi(one)).sum(0) for one in sets]
        return self.rho(torch.stack(sums))


def edges(nodes: int, count: int) -> torch.Tensor:
    return torch.randint(nodes, (2, count))


def graphs(step: int) -> tuple[torch.Tensor, ...]:
    batch = torch.tensor([[0, 0, 0, 1, 1, 2, 2, 2], [0, 0, 0, 0, 1, 1, 1, 1]][step % 2])
    return torch.randn(8, 4), edges(8, 14), batch, torch.randint(3, (3 - step % 2,))


def one_graph(step: int) -> tuple[torch.Tensor, ...]:
    """Edges with another number of self-loops in some steps, none lost to a draw."""
    source = torch.arange(12) % 8
    target = (source + torch.randint(1, 8, (12,))) % 8
    target[: (2, 2, 3, 2, 3)[step]] = source[: (2, 2, 3, 2, 3)[step]]
    return torch.randn(8, 4), torch.stack([source, target]), torch.zeros(8, dtype=torch.long)


def sparse(step: int) -> tuple[torch.Tensor, ...]:
    """Edges among kept nodes in some steps; in the others only one node, which leads nowhere."""
    return torch.randn(4, 4), edges(4, (3, 0, 3, 0, 3)[step]), torch.zeros(4, dtype=torch.long)


def clouds(step: int) -> tuple[torch.Tensor]:
    """The same two clouds of cells in turn, with a little noise inside of the cells."""
    source = torch.Generator().manual_seed(step % 2)
    corners = torch.randint(-2, 2, (10, 3), generator=source) * 1.5
    return (corners + 0.2 + torch.rand(10, 3),)


def routed(step: int) -> tuple[torch.Tensor]:
    """Tokens on one side of the gate or on both, in turn."""
    x = torch.randn(6, 4)
    return (x if step % 2 else x.abs(),)


def sets(step: int) -> tuple[list[torch.Tensor], torch.Tensor]:
    sizes = ((2, 4, 3), (2, 4, 3), (1, 5, 3), (2, 4, 3), (1, 5, 3))[step]
    return [torch.randn(size, 3) for size in sizes], torch.randn(3, 2)


def products(step: int) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randn(3, 8), torch.randn(3, 8)


def classed(step: int) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randn(2, 6, 3), torch.randint(4, (2,))


def directions(step: int) -> tuple[torch.Tensor]:
    return (torch.randn(5, 3),)


def couplings(model: nn.Module) -> list[torch.Tensor]:
    """What the cache answers now."""
    return [model._w3j(first, second) for first in (0, 1) for second in (0, 1)]


def constants(model: nn.Module) -> list[torch.Tensor]:
    return list(model.constants.values())


IDIOMS = [
    Idiom("graphs_counted_by_max", MeanConv, each(graphs, 5), entropy),
    Idiom("sparse_softmax_by_scatter", GraphAttention, each(one_graph, 5)),
    Idiom("top_k_pooling", TopKPooling, each(sparse, 5)),
    Idiom("unique_with_inverse", Voxels, each(clouds, 6), itself),
    Idiom("nearest_neighbours", NearestNeighbours, each(classed, 3), entropy),
    Idiom("constants_in_an_lru_cache", TensorProduct, each(products, 4), outside=couplings),
    Idiom("constants_in_a_dict", SphericalHarmonics, each(directions), outside=constants),
    Idiom("experts_that_are_asked", AskingExperts, each(routed, 6)),
    Idiom("experts_by_split", SplittingExperts, each(lambda _: (torch.randn(3, 4),), 6), itself),
    Idiom("deep_sets", DeepSet, each(sets, 5), error),
]
