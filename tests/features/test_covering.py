"""The training features together, row by row of a covering array: the bits of the eager loop."""

import itertools
from contextlib import nullcontext
from typing import Any

import pytest
import torch
from torch import nn, optim
from torch.nn import functional as F

import torchgraph as tg
from tests.features.covering import ARRAY, GRID, covering_array, interactions
from tests.parity.models import ConvNet, Mlp

STEPS = 10
MAX_NORM = 0.1
PRECISIONS = {"float32": None, "bfloat16": torch.bfloat16, "float16 + scaler": torch.float16}
OPTIMIZERS: dict[str, Any] = {
    "SGD, momentum": lambda groups: optim.SGD(groups, lr=0.1, momentum=0.9, weight_decay=0.01),
    "AdamW": lambda groups: optim.AdamW(groups, lr=0.01),
}
VOCABULARY, LENGTH, WIDTH = 13, 6, 16


class Block(nn.Module):
    """Causal attention and an MLP, each behind a norm."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)
        self.drop = nn.Dropout(0.1)

    def forward(self, x):
        q, k, v = (
            part.unflatten(-1, (2, -1)).transpose(1, 2)
            for part in self.qkv(self.first(x)).chunk(3, dim=-1)
        )
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2)
        x = x + self.drop(self.out(mixed))
        return x + self.drop(self.down(F.gelu(self.up(self.second(x)))))


class Gpt(nn.Module):
    """Two blocks, the head's weight tied to the table."""

    def __init__(self):
        super().__init__()
        self.tokens, self.places = nn.Embedding(VOCABULARY, WIDTH), nn.Embedding(LENGTH, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(2))
        self.norm = nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, VOCABULARY, bias=False)
        self.head.weight = self.tokens.weight

    def forward(self, x):
        hidden = self.tokens(x) + self.places.weight
        for block in self.blocks:
            hidden = block(hidden)
        return self.head(self.norm(hidden)).flatten(0, 1)


MODELS = {"MLP": Mlp, "ConvNet": ConvNet, "GPT": Gpt}


def data(name: str) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """The batches of all steps."""
    source = torch.Generator().manual_seed(2)

    def batch() -> tuple[torch.Tensor, torch.Tensor]:
        if name == "GPT":
            tokens = torch.randint(VOCABULARY, (8, LENGTH + 1), generator=source)
            return tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()
        shape = {"MLP": (8, 6), "ConvNet": (8, 2, 6, 6)}[name]
        return torch.randn(shape, generator=source), torch.randint(3, (8,), generator=source)

    return [batch() for _ in range(STEPS)]


def loss_of(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(model(x), y.flatten())


class Side:
    """A model with its optimizer and scaler, as a row of the array asks."""

    def __init__(self, precision, k, checkpointing, clipping, optimizer, model):
        torch.manual_seed(0)
        self.k, self.clipping, self.checkpointing = int(k), clipping, checkpointing
        self.model = MODELS[model]()
        self.dtype = PRECISIONS[precision]
        parameters = list(self.model.parameters())
        groups = [{"params": parameters[:2]}, {"params": parameters[2:]}]
        if clipping == "group":
            for group in groups:
                group["clip_grad_max_norm"] = MAX_NORM
        self.optimizer = OPTIMIZERS[optimizer](groups)
        # It overflows at first, and again when it has grown.
        self.scaler = torch.amp.GradScaler(
            "cpu", init_scale=2.0**18, growth_interval=2, enabled="scaler" in precision
        )


class Train(tg.Graph):
    def __init__(self, side: Side) -> None:
        super().__init__()
        self.model = side.model
        self.add_optimizer(side.optimizer)
        self.set_grad_scaler(side.scaler)
        self.config.set_gradient_accumulation_steps(side.k)
        if side.dtype is not None:
            self.config.enable_amp(dtype=side.dtype)
        if side.clipping == "whole":
            self.config.set_clip_grad_norm(MAX_NORM)
        set_checkpointing(self, side.checkpointing)

    def build(self, x, y):
        loss = loss_of(self.model, x, y)
        loss.backward()
        return loss


def set_checkpointing(graph: tg.Graph, kind: str) -> None:
    """Eager's numbers are the same without it: it is the Graph's alone."""
    if kind == "module":
        blocks = getattr(graph.model, "blocks", graph.model)
        blocks.to(tg.nn.graph.GraphModule).activation_checkpointing = True
    elif kind == "budget":
        graph.config.set_activation_checkpointing(0.98)  # small models have little to give


def eager(side: Side, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    losses = []
    for part, target in zip(x.chunk(side.k), y.chunk(side.k), strict=True):
        with torch.autocast("cpu", side.dtype) if side.dtype is not None else nullcontext():
            loss = loss_of(side.model, part, target)
        side.scaler.scale(loss if side.k == 1 else loss / side.k).backward()
        losses.append(loss.detach())
    if side.clipping != "no":
        side.scaler.unscale_(side.optimizer)
    if side.clipping == "group":
        for group in side.optimizer.param_groups:
            nn.utils.clip_grad_norm_(group["params"], MAX_NORM)
    elif side.clipping == "whole":
        nn.utils.clip_grad_norm_(side.model.parameters(), MAX_NORM)
    side.scaler.step(side.optimizer)
    side.scaler.update()
    side.optimizer.zero_grad()
    return losses[0] if side.k == 1 else torch.stack(losses)


@pytest.mark.parametrize("row", ARRAY, ids=" ".join)
def test_ten_steps_are_bitwise_eagers(row):
    mine, other = Side(*row), Side(*row)
    graph = Train(mine)
    start = [parameter.detach().clone() for parameter in mine.model.parameters()]
    for number, (x, y) in enumerate(data(row[-1])):
        torch.manual_seed(number)
        got = graph(x, y)
        torch.manual_seed(number)
        expected = eager(other, x, y)

        same(got, expected)
        same(mine.model.state_dict(), other.model.state_dict())
        same(mine.optimizer.state_dict()["state"], other.optimizer.state_dict()["state"])
        assert mine.scaler.state_dict() == other.scaler.state_dict()
    assert not any(map(torch.equal, start, mine.model.parameters())), "nothing was trained"
    assert recomputes(graph) == (row[2] != "no")


def recomputes(graph: tg.Graph) -> bool:
    """True when the backward computes activations again."""
    history = graph.program.history
    return any(saving.recomputed for record in history for saving in record.savings)


def same(got: Any, expected: Any) -> None:
    torch.testing.assert_close(got, expected, rtol=0, atol=0)


def test_the_array_covers_every_three_settings():
    covered = {found for row in ARRAY for found in interactions(row, 3)}
    for factors in itertools.combinations(range(len(GRID)), 3):
        choices = [[(i, setting) for setting in list(GRID.values())[i]] for i in factors]
        for wanted in itertools.product(*choices):
            assert tuple(wanted) in covered
    assert len(set(ARRAY)) == len(ARRAY) < len(list(itertools.product(*GRID.values())))


def test_the_generator_covers_what_it_says_and_is_small():
    grid = {str(i): ("a", "b", "c") for i in range(4)}
    pairs = covering_array(grid, 2)
    assert {i for row in pairs for i in interactions(row, 2)} == {
        i for row in itertools.product("abc", repeat=4) for i in interactions(row, 2)
    }
    assert 9 <= len(pairs) <= 14
