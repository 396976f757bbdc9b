"""Third-party libraries as data: a small model of each, and what to feed it.

A library is imported by the test that needs it, which is skipped where it is not installed.
"""

from __future__ import annotations

import importlib
import warnings
from typing import Any

import pytest
import torch
from torch import nn

from torchgraph.errors import AttributeReadAndWritten, EagerWarning

from .idioms import Batch, Idiom, each, entropy, error, itself, normal


def library(name: str) -> Any:
    """The module of that name; what its import warns of is not the matter here."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        pytest.importorskip(name.split(".")[0])
        return importlib.import_module(name)


class Loss(nn.Module):
    """A model and a loss that may have weights of its own."""

    def __init__(self, model: nn.Module, loss: nn.Module) -> None:
        super().__init__()
        self.model, self.loss = model, loss

    def forward(self, x: torch.Tensor, *targets: torch.Tensor) -> torch.Tensor:
        return self.loss(self.model(x), *targets)


# --- x-transformers ---


def decoder(layers: str = "Decoder", wrapped: bool = True, **settings: Any) -> Any:
    own = {key: settings.pop(key) for key in ("num_memory_tokens",) if key in settings}

    def make() -> nn.Module:
        x = library("x_transformers")
        kind = getattr(x, layers)
        inner = kind(dim=16, depth=1, heads=2, attn_dim_head=8, **settings)
        net = x.TransformerWrapper(num_tokens=20, max_seq_len=16, attn_layers=inner, **own)
        return x.AutoregressiveWrapper(net) if wrapped else net

    return make


def continuous() -> nn.Module:
    x = library("x_transformers")
    layers = x.Encoder(dim=16, depth=1, heads=2, attn_dim_head=8, rel_pos_bias=True)
    return x.ContinuousTransformerWrapper(dim_in=4, dim_out=3, max_seq_len=8, attn_layers=layers)


def ids(step: int) -> Batch:
    return (torch.randint(20, (2, 9)),)


def padded_ids(model: nn.Module, tokens: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    return nn.functional.cross_entropy(model(tokens, mask=mask).transpose(1, 2), tokens)


def masked_ids(step: int) -> Batch:
    mask = torch.ones(2, 8, dtype=torch.bool)
    mask[1, 5 + step % 2 :] = False
    return torch.randint(20, (2, 8)), mask


X_TRANSFORMERS = [
    Idiom("x_rotary", decoder(rotary_pos_emb=True), each(ids), itself),
    Idiom("x_alibi", decoder(alibi_pos_bias=True), each(ids), itself),
    Idiom("x_memory_and_shift", decoder(num_memory_tokens=2, shift_tokens=1), each(ids), itself),
    Idiom("x_glu_rmsnorm", decoder(ff_glu=True, use_rmsnorm=True), each(ids), itself),
    Idiom("x_dropout", decoder(attn_dropout=0.1, ff_dropout=0.1), each(ids), itself),
    Idiom("x_grouped_heads", decoder(attn_kv_heads=1, attn_qk_norm=True), each(ids), itself),
    # These use einx, which puts a new object into its registry at each call, and goes by it.
    Idiom(
        "x_encoder_mask",
        decoder("Encoder", False),
        each(masked_ids, 5),
        padded_ids,
        stays_eager=AttributeReadAndWritten,
    ),
    Idiom(
        "x_continuous",
        continuous,
        normal((2, 6, 4), (2, 6, 3)),
        error,
        stays_eager=AttributeReadAndWritten,
    ),
]

# --- torchdiffeq ---


class Field(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(2, 8), nn.Tanh(), nn.Linear(8, 2))

    def forward(self, t: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return self.net(y) * (1 + 0.1 * t)


class Ode(nn.Module):
    def __init__(self, method: str, solver: str = "odeint") -> None:
        super().__init__()
        self.field = Field()
        self.method, self.solve = method, getattr(library("torchdiffeq"), solver)

    def forward(self, y: torch.Tensor) -> torch.Tensor:
        times = torch.linspace(0.0, 1.0, 4)
        return self.solve(self.field, y, times, method=self.method, rtol=1e-2, atol=1e-2)


def ode(name: str, method: str, solver: str = "odeint") -> Idiom:
    batches = normal((3, 2), (4, 3, 2))
    return Idiom(f"ode_{name}", lambda: Ode(method, solver), batches, error)


ODES = [
    ode("rk4", "rk4"),
    ode("midpoint", "midpoint"),
    ode("dopri5", "dopri5"),
    ode("adams", "implicit_adams"),
    ode("adjoint", "rk4", "odeint_adjoint"),
]

# --- pytorch-metric-learning ---


def embedder() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 4))


class Mined(nn.Module):
    """A loss over the tuples of a miner."""

    def __init__(self, loss: nn.Module, miner: nn.Module) -> None:
        super().__init__()
        self.loss, self.miner = loss, miner

    def forward(self, x: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        return self.loss(x, labels, self.miner(x, labels))


def metric(
    name: str,
    kind: str,
    miner: str = "",
    stays_eager: type[Warning] | None = None,
    ends_eager: type[Warning] | None = None,
    **settings: Any,
) -> Idiom:
    """The library counts on attributes how many pairs it took: they say so, and warn."""

    def make() -> nn.Module:
        loss = getattr(library("pytorch_metric_learning.losses"), kind)(**settings)
        if miner:
            loss = Mined(loss, getattr(library("pytorch_metric_learning.miners"), miner)())
        return Loss(embedder(), loss)

    return Idiom(
        f"metric_{name}",
        make,
        each(labels),
        itself,
        writes=True,
        stays_eager=stays_eager,
        ends_eager=ends_eager,
    )


def with_memory() -> nn.Module:
    """Its queue has a pointer that is a Python number."""
    losses = library("pytorch_metric_learning.losses")
    memory = losses.CrossBatchMemory(losses.ContrastiveLoss(), embedding_size=4, memory_size=12)
    return Loss(embedder(), memory)


def labels(step: int) -> Batch:
    rows = ([0, 0, 1, 1, 2, 2], [0, 1, 1, 2, 3, 4], [0, 0, 1, 1, 2, 2])
    return torch.randn(6, 6), torch.tensor(rows[step % 3])


CLASSES = {"num_classes": 5, "embedding_size": 4}
METRICS = [
    metric("contrastive", "ContrastiveLoss"),
    # How many triplets have a loss above zero, or are mined, is another number in each step.
    metric("triplet", "TripletMarginLoss", stays_eager=EagerWarning),
    metric("mined_triplet", "TripletMarginLoss", "TripletMarginMiner", ends_eager=EagerWarning),
    metric(
        "multi_similarity", "MultiSimilarityLoss", "MultiSimilarityMiner", ends_eager=EagerWarning
    ),
    metric("nt_xent", "NTXentLoss"),
    metric("circle", "CircleLoss"),
    metric("arc_face", "ArcFaceLoss", **CLASSES),
    metric("proxy_anchor", "ProxyAnchorLoss", **CLASSES),
    metric("soft_triple", "SoftTripleLoss", **CLASSES),
    metric("sup_con", "SupConLoss"),
]

# --- pytorch-crf ---


class Tagger(nn.Module):
    def __init__(self, reduction: str) -> None:
        super().__init__()
        self.emit = nn.Linear(4, 3)
        self.crf = library("torchcrf").CRF(3, batch_first=True)
        self.reduction = reduction

    def forward(self, x: torch.Tensor, tags: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        return -self.crf(self.emit(x), tags, mask=mask, reduction=self.reduction)


def tagged(step: int) -> Batch:
    mask = torch.ones(2, 5, dtype=torch.bool)
    mask[1, 3 + step % 2 :] = False
    return torch.randn(2, 5, 4), torch.randint(3, (2, 5)), mask


CRFS = [
    Idiom("crf_mean", lambda: Tagger("mean"), each(tagged), itself),
    Idiom("crf_token_mean", lambda: Tagger("token_mean"), each(tagged), itself),
]

# --- nflows ---


def negative_log_likelihood(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
    return -model.log_prob(inputs=x).mean()


def flow(name: str, *steps: str) -> Idiom:
    def transform(kind: str) -> nn.Module:
        t = library("nflows.transforms")
        if kind in ("ActNorm", "BatchNorm", "LULinear", "SVDLinear", "RandomPermutation"):
            return getattr(t, kind)(*((4, 2) if kind == "SVDLinear" else (4,)))
        if kind == "MaskedAffineAutoregressiveTransform":
            return getattr(t, kind)(features=4, hidden_features=8)
        resnet = library("nflows.nn.nets").ResidualNet

        def net(features: int, out: int) -> nn.Module:
            return resnet(features, out, hidden_features=8, num_blocks=1)

        settings = {"tails": "linear", "num_bins": 4} if "Quadratic" in kind else {}
        return getattr(t, kind)(torch.tensor([1, -1, 1, -1]), net, **settings)

    def make() -> nn.Module:
        flows, base = library("nflows.flows"), library("nflows.distributions.normal")
        composite = library("nflows.transforms").CompositeTransform
        return flows.Flow(composite([transform(s) for s in steps]), base.StandardNormal([4]))

    return Idiom(f"flow_{name}", make, normal((6, 4)), negative_log_likelihood)


FLOWS = [
    flow("act_norm", "ActNorm", "LULinear"),
    flow("batch_norm", "BatchNorm", "RandomPermutation", "SVDLinear"),
    flow("coupling", "AffineCouplingTransform", "ActNorm"),
    flow("autoregressive", "MaskedAffineAutoregressiveTransform"),
    flow("spline", "PiecewiseRationalQuadraticCouplingTransform"),
]

# --- PyTorch Geometric, without its compiled packages ---


class Classifier(nn.Module):
    """A convolution over a graph, perhaps a pooling, the mean over each graph, a head."""

    def __init__(self, conv: str, width: int, pool: str = "", **settings: Any) -> None:
        super().__init__()
        self.geometric = library("torch_geometric.nn")
        inner = nn.Linear(8, 8) if conv == "EdgeConv" else nn.Linear(4, 8)
        arguments = (inner,) if conv in ("EdgeConv", "GINConv") else (4, 8)
        self.conv = getattr(self.geometric, conv)(*arguments, **settings)
        self.pool = getattr(self.geometric, pool)(width) if pool else None
        self.head = nn.Linear(width, 3)

    def forward(self, x: torch.Tensor, edges: torch.Tensor, batch: torch.Tensor) -> torch.Tensor:
        x = torch.relu(self.conv(x, edges))
        if self.pool is not None:
            x, edges, _, batch, *_ = self.pool(x, edges, None, batch)
        return self.head(self.geometric.global_mean_pool(x, batch))


def graphs(step: int) -> Batch:
    batch = torch.tensor([0, 0, 0, 0, 1, 1, 1, 1])
    edges = torch.stack([torch.arange(8), torch.arange(8).view(2, 4).roll(1, 1).flatten()])
    more = torch.randint(4, (2, 3))
    return torch.randn(8, 4), torch.cat([edges, more], 1), batch, torch.randint(3, (2,))


def graph(name: str, conv: str, width: int = 8, pool: str = "", **settings: Any) -> Idiom:
    return Idiom(
        f"graph_{name}", lambda: Classifier(conv, width, pool, **settings), each(graphs), entropy
    )


GRAPHS = [
    graph("gcn", "GCNConv"),
    graph("gat", "GATConv", 16, heads=2, dropout=0.2),
    graph("gat_v2", "GATv2Conv", 16, heads=2),
    graph("sage", "SAGEConv"),
    graph("gin", "GINConv"),
    graph("edge", "EdgeConv"),
    graph("transformer", "TransformerConv"),
    graph("top_k", "GraphConv", pool="TopKPooling"),
    graph("sag", "GCNConv", pool="SAGPooling"),
]

# --- e3nn, whose generated code is scripted unless it is told otherwise ---


class Equivariant(nn.Module):
    def __init__(self, jit_mode: str) -> None:
        super().__init__()
        e3nn, o3, layers = library("e3nn"), library("e3nn.o3"), library("e3nn.nn")
        before = e3nn.get_optimization_defaults()["jit_mode"]
        e3nn.set_optimization_defaults(jit_mode=jit_mode)
        product = ("2x0e + 1x1o", "1x0e + 1x1o", "4x0e + 2x1o")
        try:
            self.product = o3.FullyConnectedTensorProduct(*product)
            self.norm = layers.BatchNorm("4x0e + 2x1o")
            self.linear = o3.Linear("4x0e + 2x1o", "3x0e")
            self.sh = o3.SphericalHarmonics("1x0e + 1x1o", normalize=True)
        finally:
            e3nn.set_optimization_defaults(jit_mode=before)

    def forward(self, x: torch.Tensor, points: torch.Tensor) -> torch.Tensor:
        return self.linear(self.norm(self.product(x, self.sh(points))))


POINTS = normal((4, 5), (4, 3), (4, 3))
E3NN = [
    Idiom("e3nn_as_python", lambda: Equivariant("eager"), POINTS, error),
    Idiom("e3nn_scripted", lambda: Equivariant("script"), POINTS, error),
]

# --- neuraloperator ---


def operator(kind: str, **settings: Any) -> Any:
    def make() -> nn.Module:
        models = library("neuralop.models")
        shared = {"in_channels": 1, "out_channels": 1, "hidden_channels": 8, "n_layers": 2}
        return getattr(models, kind)(**shared, **settings)

    return make


FIELDS = normal((2, 1, 8, 8), (2, 1, 8, 8))
LINES = normal((2, 1, 16), (2, 1, 16))
OPERATORS = [
    Idiom("operator_fno_1d", operator("FNO", n_modes=(4,)), LINES, error),
    Idiom("operator_fno", operator("FNO", n_modes=(4, 4)), FIELDS, error),
    Idiom("operator_tfno", operator("TFNO", n_modes=(4, 4), norm="group_norm"), FIELDS, error),
]

LIBRARIES = [*X_TRANSFORMERS, *ODES, *METRICS, *CRFS, *FLOWS, *GRAPHS, *E3NN, *OPERATORS]
