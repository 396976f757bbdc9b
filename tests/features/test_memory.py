"""Orders and planned memory: the numbers are eager's, the peaks are as planned."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn, optim

import torchgraph as tg
from examples.models import GPT
from tests.support import settle, thinned_rows
from torchgraph.config import GraphConfig
from torchgraph.errors import InvalidOption
from torchgraph.lower.memory.block import Block
from torchgraph.options.memory import STRAIGHTEN_MODES
from torchgraph.testing import Setup, assert_parity

from .scaling import scaler

Configure = Callable[[GraphConfig], object]


def everything(config: GraphConfig) -> None:
    config.enable_straighten_algorithm("MemoryFirst")
    config.enable_compress_memory()
    config.enable_choose_best_memory_allocation()


OPTIONS: dict[str, Configure] = {
    **{mode: lambda c, mode=mode: c.enable_straighten_algorithm(mode) for mode in STRAIGHTEN_MODES},
    "compress": lambda c: c.enable_compress_memory(),
    "best": lambda c: c.enable_choose_best_memory_allocation(),
    "everything": everything,
}


class Mlp(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        sizes = (32, 96, 96, 10)
        self.layers = nn.ModuleList(map(nn.Linear, sizes, sizes[1:]))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers[:-1]:
            x = nn.functional.dropout(nn.functional.gelu(layer(x)), 0.2, self.training)
        return self.layers[-1](x)


class Convs(nn.Module):
    """Batch norms, a clamp, a residual, an op with several results and views of one tensor."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, 16, 3, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(16)
        self.second = nn.Conv2d(16, 16, 3, padding=1)
        self.head = nn.Linear(8, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = nn.functional.relu6(self.norm(self.first(x)))
        x = nn.functional.relu(self.second(x) + x)
        left, right = x.chunk(2, dim=1)
        largest, _ = (left * right.sigmoid()).flatten(2).max(dim=-1)
        return self.head(largest)


def cross_entropy(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return nn.functional.cross_entropy(model(x).flatten(0, -2), y.flatten())


def mlp() -> Setup:
    model = Mlp()
    return Setup(model, optim.AdamW(model.parameters(), lr=0.01), cross_entropy)


def convs() -> Setup:
    model = Convs()
    return Setup(model, optim.SGD(model.parameters(), lr=0.1, momentum=0.9), cross_entropy)


def gpt() -> Setup:
    model = GPT(32, block_size=16, layers=2, width=32, dropout=0.1)
    return Setup(model, optim.AdamW(model.parameters(), lr=0.01), cross_entropy)


def batches(name: str, count: int = 5) -> list[tuple[torch.Tensor, torch.Tensor]]:
    if name == "gpt":
        pairs = [torch.randint(32, (4, 17)) for _ in range(count)]
        return [(tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()) for tokens in pairs]
    shape = (16, 32) if name == "mlp" else (4, 3, 12, 12)
    return [(torch.randn(shape), torch.randint(10, shape[:1])) for _ in range(count)]


MODELS = {"mlp": mlp, "convs": convs, "gpt": gpt}


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("options", OPTIONS)
def test_five_steps_are_those_of_eager(model: str, options: str) -> None:
    assert_parity(MODELS[model], batches(model), configure=OPTIONS[options])


class Train(tg.Graph):
    def __init__(self, setup: Setup, configure: Configure) -> None:
        super().__init__()
        self.model = setup.model
        self.add_optimizer(setup.optimizer)
        configure(self.config)

    def build(self, x: torch.Tensor, y: torch.Tensor) -> Any:
        logits = self.model(x)
        loss = nn.functional.cross_entropy(logits.flatten(0, -2), y.flatten())
        loss.backward()
        # A view, what it is a view of, and something that a planned value might be given.
        return loss, logits[:, :2], logits, logits.exp() * 2


def trained(
    model: str, configure: Configure, data: list[Any], prepare: Callable[[tg.Graph], object]
) -> tuple[list[Any], Train]:
    """What each step returned, and all states after the last."""
    torch.manual_seed(5)
    graph = Train(MODELS[model](), configure)
    prepare(graph)
    torch.manual_seed(6)
    found: list[Any] = [tensor for batch in data for tensor in graph(*batch)]
    found += graph.model.state_dict().values()
    state = graph._runner.live.optimizers[0].state_dict()["state"]
    found += [value for slots in state.values() for value in slots.values()]
    return found, graph


def accumulating(graph: tg.Graph) -> None:
    graph.config.set_gradient_accumulation_steps(2)


def in_half(graph: tg.Graph) -> None:
    graph.config.enable_amp(dtype=torch.bfloat16)


def scaled(graph: tg.Graph) -> None:
    graph.set_grad_scaler(scaler(init_scale=1e38))  # the first steps overflow and are skipped


def clipped(graph: tg.Graph) -> None:
    graph.config.set_clip_grad_norm(0.1)


@pytest.mark.parametrize(
    ("model", "prepare"),
    thinned_rows(
        itertools.product(MODELS, [accumulating, in_half, scaled, clipped]),
        lambda model, prepare: model == "mlp" or (model, prepare) == ("gpt", accumulating),
    ),
)
def test_together_with_other_options(model: str, prepare: Callable[[tg.Graph], object]) -> None:
    data = batches(model, 8)
    expected, _ = trained(model, lambda config: None, data, prepare)
    got, graph = trained(model, everything, data, prepare)
    for index, (one, other) in enumerate(zip(expected, got, strict=True)):
        same = torch.equal(one, other) if isinstance(one, torch.Tensor) else one == other
        assert same or (one.isnan() & other.isnan()).any(), index
    plans = graph.report().peaks.plans
    assert len(plans) == (3 if prepare is accumulating else 1)
    assert all(plan.tried for plan in plans)


def test_what_is_returned_is_not_overwritten() -> None:
    graph = Train(mlp(), everything)
    settle(graph, *batches("mlp", 1)[0])
    returned = [graph(*batch) for batch in batches("mlp", 3)]
    copies = [[tensor.clone() for tensor in found] for found in returned]
    graph(*batches("mlp", 1)[0])
    for found, copy in zip(returned, copies, strict=True):
        assert all(map(torch.equal, found, copy))
        # None is a view into a block: nothing is larger than the logits.
        assert all(tensor.untyped_storage().nbytes() <= 4 * 16 * 10 for tensor in found)


def wide() -> Setup:
    sizes = (64, 256, 256, 256, 10)
    layers = [part for a, b in itertools.pairwise(sizes) for part in _layer(a, b)]
    model = nn.Sequential(*layers)
    return Setup(model, optim.AdamW(model.parameters(), lr=0.01), cross_entropy)


def _layer(inputs: int, outputs: int) -> list[nn.Module]:
    return [nn.Linear(inputs, outputs), nn.GELU()]


def data_for(make: Callable[[], Setup]) -> tuple[torch.Tensor, torch.Tensor]:
    shape = {wide: (32, 64), convs: (8, 3, 24, 24)}[make]
    return torch.randn(shape), torch.randint(10, shape[:1])


@pytest.mark.parametrize("make", [wide, convs])
@pytest.mark.parametrize("options", ["Disable", "MemoryFirst", "everything"])
def test_measured_is_within_five_percent_of_planned(
    make: Callable[[], Setup], options: str
) -> None:
    graph = Train(make(), OPTIONS[options])
    batch = data_for(make)
    settle(graph, *batch)
    before = [value.clone() for value in graph.model.state_dict().values()]
    generator = torch.get_rng_state()
    peaks = graph.report(memory=batch).peaks
    assert all(map(torch.equal, before, graph.model.state_dict().values()))
    assert torch.equal(generator, torch.get_rng_state())
    assert peaks.planned is not None
    assert peaks.measured == pytest.approx(peaks.planned, rel=0.05)
    assert peaks.eager is not None
    assert "torch.profiler" in peaks.method
    assert "eager, measured" in str(graph.report(memory=batch))


def test_planned_memory_is_less() -> None:
    batch = data_for(wide)
    measured = {}
    for options in ("Disable", "MemoryFirst", "everything"):
        graph = Train(wide(), OPTIONS[options])
        settle(graph, *batch)
        measured[options] = graph.report(memory=batch).peaks.measured
    assert measured["everything"] <= 0.9 * measured["Disable"]
    assert measured["MemoryFirst"] <= 0.9 * measured["Disable"]


def test_the_arena_is_given_back_between_calls() -> None:
    batch = data_for(wide)
    graph = Train(wide(), everything)
    settle(graph, *batch)
    executable = graph._runner.programs.last()[0].executable
    assert executable.memory.arena.nbytes > 0
    space = executable.function.__globals__
    (block,) = [value for value in space.values() if isinstance(value, Block)]
    arguments = [v for told in block.calls.values() for v in (*told.args, *told.kwargs.values())]
    slot = next(value for value in arguments if isinstance(value, torch.Tensor))
    memory = slot.untyped_storage()
    assert memory.nbytes() == 0
    with block:
        assert memory.nbytes() == executable.memory.arena.nbytes
    with pytest.raises((AttributeError, TypeError)):
        executable.function([None] * len(executable.signature.inputs))
    assert memory.nbytes() == 0


def test_check_and_other_backends_go_on() -> None:
    batch = data_for(wide)
    graph = Train(wide(), everything)
    settle(graph, *batch)
    assert graph.check(*batch) is None
    graph.config.set_backend("auto")
    settle(graph, *batch)
    assert any("Inductor plans its own" in note for note in graph.report().peaks.notes)


def test_a_mode_that_cannot_matter_says_so() -> None:
    batch = data_for(wide)
    graph = Train(wide(), OPTIONS["SpeedFirst"])
    settle(graph, *batch)
    assert any("nothing to overlap" in note for note in graph.report().peaks.notes)


def test_an_unknown_mode() -> None:
    with pytest.raises(InvalidOption, match="'MemoryFirst'"):
        GraphConfig().enable_straighten_algorithm("memory_first")
