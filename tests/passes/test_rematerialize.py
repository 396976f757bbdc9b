"""What the backward keeps and what it computes again: the cut, the copies, the numbers."""

from __future__ import annotations

import itertools
import random
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn, optim

import torchgraph as tg
from tests import support
from tests.features.test_activation_checkpointing import GPT, VOCABULARY
from tests.parity.huggingface_models import ARCHITECTURES
from tests.parity.models import ConvNet
from torchgraph.costs.activations import kept_by_node
from torchgraph.ir.program import RECOMPUTED, REMATERIALIZED, Phase, Program, provenance
from torchgraph.passes import Rematerialize
from torchgraph.passes.rematerialization.min_cut import sink_side
from torchgraph.testing import Setup, assert_parity

aten = torch.ops.aten
X, W = torch.randn(32, 64), torch.randn(64, 64)
ALWAYS = Rematerialize(least=0)
DEAR = ("mm", "bmm", "convolution", "attention", "embedding", "batch_norm", "bernoulli", "rand")
"""In the names of ops that no backward may repeat."""


def in_phases(program: Program) -> Program:
    """Ops from the first gradient on are of the backward."""
    phase = Phase.FORWARD
    for node in program.nodes:
        if node.op == "call_function":
            phase = Phase.BACKWARD if "backward" in str(node.target) else phase
            node.meta["provenance"] = replace(provenance(node), phase=phase)
    return program


def two_layers(x: Any, w: Any) -> Sequence[Any]:
    product = aten.mm.default(x, w)
    hidden = aten.gelu.default(product)
    y = aten.mm.default(hidden, w)
    gradient = aten.threshold_backward.default(y, y, 0)
    weight = aten.mm.default(aten.t.default(hidden), gradient)
    below = aten.gelu_backward.default(aten.mm.default(gradient, aten.t.default(w)), product)
    return y, aten.add.Tensor(weight, aten.mm.default(aten.t.default(x), below))


def draws(x: Any, w: Any) -> Sequence[Any]:
    """A product of dropout is read by the backward, the draw is what it depends on."""
    product = aten.mm.default(x, w)
    dropped = aten.mul.Tensor(product, aten.bernoulli.p(product, 0.5))
    y = aten.mm.default(aten.relu.default(dropped), w)
    gradient = aten.threshold_backward.default(y, dropped, 0)
    return y, gradient, aten.gelu_backward.default(gradient, product)


def test_match() -> None:
    before = in_phases(support.build(two_layers, X, W))
    done, edits = support.apply(ALWAYS, before)
    support.assert_golden("rematerialize", support.before_and_after(before, done))
    support.assert_parity(before, done, X, W)
    assert edits == 2  # gelu, and its reader
    # The argument of gelu, y, and no longer what gelu gives.
    assert sum(kept_by_node(before).values()) == 3 * X.nbytes
    assert sum(kept_by_node(done).values()) == 2 * X.nbytes
    (saving,) = done.history[-1].savings
    assert (saving.kept_before, saving.kept_after) == (3 * X.nbytes, 2 * X.nbytes)


@pytest.mark.parametrize("one", [Rematerialize(), Rematerialize(X.nbytes + 1)])
def test_a_small_saving_is_left(one: Rematerialize) -> None:
    support.assert_unchanged(one, in_phases(support.build(two_layers, X, W)))


def test_no_match() -> None:
    support.assert_unchanged(ALWAYS, support.build(two_layers, X, W))  # all of it is forward


def test_effects_kept() -> None:
    before = in_phases(support.build(draws, X, W))
    done, _ = support.apply(ALWAYS, before)
    support.assert_parity(before, done, X, W)
    assert support.targets(done).count("bernoulli.p") == 1
    kept = {node.meta["val"].dtype for node in kept_by_node(done)}
    assert torch.bool in kept  # the coins


def test_idempotent() -> None:
    for step in (two_layers, draws):
        done, _ = support.apply(ALWAYS, in_phases(support.build(step, X, W)))
        support.assert_unchanged(ALWAYS, done)


# --- the cut --------------------------------------------------------------------------------------


def sink_sides(edges: dict[tuple[int, int], int], count: int) -> list[set[int]]:
    """Of all cuts between 0 and 1 the least, by trying each."""
    sides = [
        {1, *some}
        for size in range(count - 1)
        for some in itertools.combinations(range(2, count), size)
    ]
    cost = [
        sum(room for (tail, head), room in edges.items() if tail not in side and head in side)
        for side in sides
    ]
    return [side for side, found in zip(sides, cost, strict=True) if found == min(cost)]


@pytest.mark.parametrize("seed", range(5))
def test_the_cut_is_the_least_and_the_closest_to_the_sink(seed: int) -> None:
    chance = random.Random(seed)
    count = 7
    pairs = [pair for pair in itertools.permutations(range(count), 2) if pair[1] != 0]
    edges = {pair: chance.randrange(6) for pair in pairs if chance.random() < 0.4}
    found = sink_side([(*pair, room) for pair, room in edges.items()], 0, 1)
    reached = {vertex for pair in edges for vertex in pair} | {0, 1}
    best = [side & reached for side in sink_sides(edges, count)]
    assert found in best
    assert all(found <= side for side in best)


def test_a_cut_crosses_no_edge_without_capacity() -> None:
    edges = [("source", "a", None), ("a", "b", 3), ("b", "sink", None)]
    assert sink_side(edges, "source", "sink") == {"b", "sink"}


# --- whole steps ----------------------------------------------------------------------------------


def gpt() -> tuple[nn.Module, Any]:
    ids = torch.randint(VOCABULARY, (2, 16))
    return GPT(layers=4), (ids, torch.roll(ids, 1, 1))


def images() -> tuple[nn.Module, Any]:
    return ConvNet(), (torch.randn(4, 2, 8, 8), torch.randint(3, (4,)))


def hugging_face(name: str) -> tuple[nn.Module, Any]:
    transformers = pytest.importorskip("transformers", reason="transformers is not installed")
    one = next(a for a in ARCHITECTURES if a.name == name)
    kind = getattr(transformers, one.model)
    config = kind.config_class(**one.settings)
    return kind(config).train(), (one.feed(config),)


def loss(model: nn.Module, *batch: Any) -> torch.Tensor:
    if isinstance(batch[0], dict):
        found: torch.Tensor = model(**batch[0]).loss
        return found
    x, y = batch
    return nn.functional.cross_entropy(model(x).flatten(0, -2), y.flatten())


MODELS = {
    "gpt": gpt,
    "images": images,
    "bert": lambda: hugging_face("bert"),
    "llama": lambda: hugging_face("llama"),
    "resnet": lambda: hugging_face("resnet"),
}


NORMED = ("images", "resnet")
"""All that their backward reads is of convolutions and batch norms, or directly behind one."""


@pytest.mark.parametrize("name", MODELS)
def test_a_step_gives_eagers_bits_and_keeps_less(name: str) -> None:
    def make() -> Setup:
        model, _ = MODELS[name]()
        return Setup(model, optim.AdamW(model.parameters(), lr=1e-3), loss)

    _, batch = MODELS[name]()
    plain = assert_parity(make, [batch] * 2)
    graph = assert_parity(
        make, [batch] * 2, configure=lambda config: config.passes.insert(ALWAYS, after="dce")
    )
    kept = sum(kept_by_node(plain.program).values())
    again = [n for n in graph.program.nodes if n.meta.get(RECOMPUTED) == REMATERIALIZED]
    assert not any(dear in support.by_name(n.target) for n in again for dear in DEAR)
    savings = [saving for record in graph.program.history for saving in record.savings]
    assert len(savings) == (name not in NORMED)
    for saving in savings:
        assert saving.kept_before == kept
        assert saving.kept_after == sum(kept_by_node(graph.program).values()) < kept
        assert saving.recomputed == len(again)


def test_equal_layers_stay_equal() -> None:
    model, batch = gpt()
    graph = tg_step(model)
    graph.config.passes.insert(ALWAYS, after="dce")
    support.settle(graph, *batch)
    of_blocks = [
        [
            str(node.target)
            for node in graph.program.nodes
            if f"{provenance(node).module}.".startswith(f"model.blocks.{number}.")
            and RECOMPUTED in node.meta
        ]
        for number in range(4)
    ]
    assert "aten.gelu.default" in of_blocks[0]
    assert of_blocks[0] == of_blocks[1] == of_blocks[2] == of_blocks[3]


def tg_step(model: nn.Module) -> tg.Graph:
    class Train(tg.Graph):
        def __init__(self) -> None:
            super().__init__()
            self.model = model
            self.add_optimizer(optim.AdamW(model.parameters(), lr=1e-3))

        def build(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            found = loss(self.model, x, y)
            found.backward()
            return found

    return Train()
