"""Blocks that repeat: a region for each, compiled once, and parameters that are updated early."""

import functools

import pytest
import torch
from torch import nn, optim
from torch.nn import functional as F

import torchgraph as tg
from tests import support
from torchgraph import passes
from torchgraph.lower import blocks
from torchgraph.lower.inductor.job import Job
from torchgraph.passes import FuseLinearCrossEntropy, Rematerialize
from torchgraph.passes.rematerialization import prices

pytestmark = pytest.mark.usefixtures("interpreted")

LAYERS = 5


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(6), nn.Linear(6, 12), nn.Linear(12, 6)
        self.drop = nn.Dropout(0.2)

    def forward(self, x):
        return x + self.drop(self.down(F.gelu(self.up(self.norm(x)))))


class Stack(nn.Module):
    """Embedding, equal layers, and a head that is the embedding."""

    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(9, 6)
        self.layers = nn.Sequential(*(Block() for _ in range(LAYERS)))

    def forward(self, ids):
        return F.linear(self.layers(self.embed(ids)), self.embed.weight).flatten(0, 1)


@pytest.fixture
def always(monkeypatch):
    """As if each block were worth a region."""
    monkeypatch.setattr(blocks, "_LEAST_SECONDS", 1e-9)
    monkeypatch.setattr(blocks, "PER_REGION", 0.0)


def trained(optimizer, configure=lambda config: None):
    """The same steps on `aten` and in regions; the Graph of the latter."""
    data = [(torch.randint(9, (2, 4)), torch.randint(9, (8,))) for _ in range(6)]

    def train(backend):
        torch.manual_seed(0)
        model = Stack()
        graph = tg.train_step(model, F.cross_entropy, optimizer(model.parameters()))
        graph.config.set_backend(backend)
        configure(graph.config)
        torch.manual_seed(1)
        return [graph(*batch).mean().item() for batch in data], list(model.parameters()), graph

    (losses, parameters, _), (others, compiled, graph) = map(train, ("aten", "inductor"))
    assert others == pytest.approx(losses, rel=1e-5)
    torch.testing.assert_close(compiled, parameters, rtol=1e-4, atol=1e-5)
    return graph


OPTIMIZERS = {
    "adamw": lambda p: optim.AdamW(p, lr=0.01),
    "momentum": lambda p: optim.SGD(p, lr=0.1, momentum=0.9),
    "adadelta": optim.Adadelta,
    "adamax": optim.Adamax,  # no op of ours knows it
}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_equal_layers_share_code(name, always, interpreted):
    trained(OPTIMIZERS[name])
    regions = interpreted[-1].regions
    keys = [Job.of(region, eager_draws=True).key() for region in regions]
    assert len(keys) > 2 * LAYERS - 2
    assert sum(keys.count(key) for key in set(keys) if keys.count(key) > 1) >= 2 * LAYERS - 3


def test_what_the_backward_computes_again_is_equal_in_equal_layers(
    always, interpreted, monkeypatch
):
    monkeypatch.setattr(prices, "_SMALL", 0)
    trained(
        OPTIMIZERS["adamw"],
        lambda config: config.passes.insert(Rematerialize(least=0), after="dce"),
    )
    regions = interpreted[-1].regions
    again = [region for region in regions if "aten.gelu_backward" in str(region.gm.graph)]
    assert len(again) >= LAYERS - 1
    assert all("aten.gelu.default" in str(region.gm.graph) for region in again[1:-1])
    assert len({Job.of(region, eager_draws=True).key() for region in again[1:-1]}) == 1


def test_parameters_are_updated_between_regions(always):
    graph = trained(OPTIMIZERS["adamw"])
    source = support.replay_of(graph).executable.source
    calls = [line for line in source.splitlines() if "region_" in line or "adam_update" in line]
    updates = [i for i, line in enumerate(calls) if "adam_update" in line]
    assert len(updates) >= LAYERS - 1
    assert len([i for i in updates if i < len(calls) - 1]) >= LAYERS - 2
    assert "clone" not in source, "parameters are written in place"
    assert "copy_" not in source


def test_rows_of_a_tied_table_are_added_to_the_gradient_of_the_head(monkeypatch):
    small = functools.partial(FuseLinearCrossEntropy, least_size=0)
    monkeypatch.setattr(passes, "FuseLinearCrossEntropy", small)
    graph = trained(OPTIMIZERS["adamw"])
    source = support.replay_of(graph).executable.source
    assert "= _linear_cross_entropy_" in source
    assert "= _index_add__" in source, "in place, outside of compiled code"
    assert "clone" not in source


def test_a_norm_of_all_gradients_comes_first(always):
    graph = trained(OPTIMIZERS["adamw"], lambda config: config.set_clip_grad_norm(0.01))
    source = support.replay_of(graph).executable.source
    last = max(source.find(f"region_{i}") for i in range(4 * LAYERS))
    assert source.index("adam_update") > last


def test_micro_batches(always):
    trained(OPTIMIZERS["momentum"], lambda config: config.set_gradient_accumulation_steps(2))


def test_a_small_program_is_one_region(interpreted):
    trained(OPTIMIZERS["adamw"])
    assert len(interpreted[-1].regions) == 1


def test_runs_are_found_in_the_order_of_ops():
    def step(x):
        y = torch.sin(x)
        for _ in range(6):
            y = torch.tanh(y * 2 + x)
        return (y.sum(),)

    program = support.build(step, torch.randn(3))
    ops = [node for node in program.nodes if node.op == "call_function"]
    kinds = torch.tensor([[str(op.target) for op in ops].index(str(op.target)) for op in ops])
    assert blocks._longest(kinds) == blocks.Run(1, 3, 6)
    assert blocks._longest(torch.arange(7)) is None
