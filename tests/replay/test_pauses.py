"""Predicates in CUDA Graphs: the host looks between two of them, before anything is written."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import pytest
import torch
from torch import nn, optim

import torchgraph as tg
from tests import support
from tests.lower.conftest import interpreted
from tests.replay.recording import Recording
from torchgraph.library import ValueMoved
from torchgraph.testing import counters

pytestmark = pytest.mark.usefixtures("without_looks")

__all__ = ["interpreted"]

SETTLED = 4
"""Calls of AdamW until a variant's program has warmed up; the next one captures."""


@pytest.fixture(autouse=True)
def doubles() -> Iterator[None]:
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


class Branches(tg.Graph):
    """Python goes another way by a value of the batch, behind draws and a batch norm."""

    def __init__(self, model: nn.Module, optimizer: optim.Optimizer, **options: Any) -> None:
        super().__init__()
        self.model = model
        self.add_optimizer(optimizer)
        self.config.set_backend("aten")
        self.config.set_cuda_graph("require")
        for name, value in options.items():
            getattr(self.config, name)(value)

    def build(self, x: torch.Tensor) -> torch.Tensor:
        loss = branching(self.model, x)
        loss.backward()
        return loss


def branching(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
    hidden = model(x)
    if (x > 0).any():
        return hidden.square().mean()
    if int((x < -1).sum()) == 3:
        return hidden.mean()
    return hidden.abs().mean()


def made() -> tuple[nn.Module, optim.Optimizer]:
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Linear(4, 8, bias=False), nn.BatchNorm1d(8), nn.Dropout(0.5), nn.ReLU(), nn.Linear(8, 2)
    )
    return model, optim.AdamW(model.parameters(), lr=0.1)


POSITIVE = torch.linspace(0.1, 1, 32, dtype=torch.float64).reshape(8, 4)
SMALL = -POSITIVE
THREE = SMALL.clone()
THREE[0, :3] = -2


def states(model: nn.Module, optimizer: optim.Optimizer) -> dict[str, torch.Tensor]:
    found = {name: value.clone() for name, value in model.state_dict().items()}
    for number, slots in optimizer.state_dict()["state"].items():
        found.update((f"{number}.{name}", value.clone()) for name, value in slots.items())
    found["generator"] = torch.get_rng_state()
    return found


def assert_close(left: Any, right: Any) -> None:
    """To rounding: here the CPU takes the update's numbers in a GPU's form."""
    torch.testing.assert_close(left, right, rtol=1e-9, atol=1e-12)


def eager(data: Iterable[torch.Tensor]) -> tuple[list[torch.Tensor], dict[str, torch.Tensor]]:
    model, optimizer = made()
    losses = []
    for x in data:
        optimizer.zero_grad()
        loss = branching(model, x)
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    return losses, states(model, optimizer)


def trained(
    data: Sequence[torch.Tensor], **options: Any
) -> tuple[list[torch.Tensor], dict[str, torch.Tensor], Branches]:
    model, optimizer = made()
    graph = Branches(model, optimizer, **options)
    return [graph(x) for x in data], states(model, optimizer), graph


def replayed(graph: Branches, *args: Any) -> Any:
    """A step of the program that serves calls: a Graph would go on in eager where it raises."""
    call = graph._runner.live.inputs.bind(args, {})
    return graph._runner._replayed(graph._runner.programs.find(call), call)


def test_each_variant_is_captured_and_all_is_as_in_eager(recording: list[Recording]) -> None:
    data = [POSITIVE, SMALL, THREE] * SETTLED + [SMALL, POSITIVE, POSITIVE, THREE, SMALL] * 2
    expected, end = eager(data)
    before = counters.graph_captures, counters.graph_replays
    losses, got, graph = trained(data)
    assert_close(losses, expected)
    assert_close(got, end)
    assert counters.graph_captures - before[0] == 3
    assert counters.graph_replays - before[1] >= 10
    assert graph.report().cuda_graph == "captured, 2 for a step"


def test_one_wait_for_all_values(recording: list[Recording]) -> None:
    _, _, graph = trained([THREE] * (SETTLED + 3))
    (device,) = recording
    assert device.events[-3:] == ["numbers", "replay", "replay"]
    assert [one.expected for one in graph.report().predicates] == ["False", "3"]
    source = support.replay_of(graph).executable.source
    assert source.count("yield") == 1


def test_a_moved_value_leaves_no_trace(recording: list[Recording]) -> None:
    model, optimizer = made()
    graph = Branches(model, optimizer)
    for _ in range(SETTLED + 2):
        graph(POSITIVE.clone())
    (device,) = recording
    before = states(model, optimizer)
    device.events.clear()
    with pytest.raises(ValueMoved, match="expected True, found another value") as caught:
        replayed(graph, SMALL)
    assert device.events == ["numbers", "replay"], "the part that writes did not run"
    assert caught.value.line is not None
    assert "(x > 0).any()" in caught.value.line.text
    after = states(model, optimizer)
    assert all(torch.equal(value, after[name]) for name, value in before.items())
    with counters.expect(graph_replays=1, graph_captures=0):
        graph(POSITIVE)


def test_the_variant_that_served_last_is_tried_first(recording: list[Recording]) -> None:
    _, _, graph = trained([x.clone() for x in [POSITIVE, SMALL] * (SETTLED + 3)])
    (device,) = recording
    device.events.clear()
    for x in (POSITIVE, POSITIVE, SMALL, SMALL, SMALL):
        graph(x.clone())
    step = ["numbers", "replay", "replay"]
    moved = ["numbers", "replay"]
    assert device.events == [*moved, *step, *step, *moved, *step, *step, *step]


def test_a_value_that_moves_while_it_warms_up(recording: list[Recording]) -> None:
    data = [POSITIVE] * 3 + [SMALL] * 3 + [POSITIVE] * 3 + [SMALL] * 3
    expected, end = eager(data)
    losses, got, _ = trained(data)
    assert_close(losses, expected)
    assert_close(got, end)


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_accumulation(recording: list[Recording], order: tuple[int, int]) -> None:
    """A micro-batch has written its statistics when the next finds that a value moved."""
    halves = [POSITIVE[:4], SMALL[4:]]
    mixed = torch.cat([halves[i] for i in order])
    data = [POSITIVE] * (SETTLED + 3) + [mixed, POSITIVE] * 3
    results = []
    for mode in ("require", "off"):
        model, optimizer = made()
        graph = Branches(model, optimizer, set_gradient_accumulation_steps=2)
        graph.config.set_cuda_graph(mode)
        before = counters.graph_replays
        losses = [graph(x) for x in data]
        assert (counters.graph_replays > before) is (mode == "require")
        results.append((losses, states(model, optimizer)))
    (left, end), (right, other) = results
    assert_close(left, right)
    assert_close(end, other)


def test_regions(recording: list[Recording], interpreted: Any) -> None:
    data = [POSITIVE, SMALL] * (SETTLED + 3)
    expected, end = eager(data)
    losses, got, graph = trained(data, set_backend="inductor")
    assert_close(losses, expected)
    assert_close(got, end)
    assert graph.report().cuda_graph == "captured, 2 for a step"
    assert interpreted[-1].regions


class Reads(tg.Graph):
    """In eval, with nothing to write: the host looks at the end."""

    def __init__(self, read: Callable[[torch.Tensor], Any]) -> None:
        super().__init__()
        self.read = read
        self.config.set_cuda_graph("require")
        self.config.set_backend("aten")

    def build(self, x: torch.Tensor) -> torch.Tensor:
        return x * 2 if self.read(x) else x * 3


READS: dict[str, Callable[[torch.Tensor], Any]] = {
    "bool": lambda x: bool((x > 0).all()),
    "int": lambda x: int(x.sum()) > 0,
    "float": lambda x: float(x[0, 0]) > 0,
    "tolist": lambda x: x[0].tolist()[0] > 0,
    "equal": lambda x: torch.equal(x, x.abs()),
    "complex": lambda x: x[0, 0].to(torch.complex64).item().real > 0,
    "nan": lambda x: float((x[0, 0] - torch.inf) + torch.inf) != 0 and bool(x[0, 0] > 0),
    "bfloat16": lambda x: x[0, 0].bfloat16().item() > 0,
}


@pytest.mark.usefixtures("without_looks")
@pytest.mark.parametrize("name", READS)
def test_what_is_read(recording: list[Recording], name: str) -> None:
    graph = Reads(READS[name])
    with torch.no_grad():
        for x in [POSITIVE, SMALL] * (SETTLED + 2):
            assert torch.equal(graph(x), x * 2 if READS[name](x) else x * 3)
    assert graph.report().cuda_graph == "captured, 2 for a step"


def test_a_size_that_depends_on_data_stays_outside(recording: list[Recording]) -> None:
    graph = Reads(lambda x: x[x > 0].numel() > 0)
    graph.config.set_cuda_graph("auto")
    with torch.no_grad():
        for x in [POSITIVE, SMALL] * SETTLED:
            assert torch.equal(graph(x), x * 2 if (x > 0).any() else x * 3)
    assert graph.report().cuda_graph == "refused"


def test_a_value_that_a_hook_reads_of_the_update(
    recording: list[Recording], interpreted: Any
) -> None:
    """Compiled code is compared by the names of nodes, which the device's half must keep."""
    torch.manual_seed(0)
    model = nn.Linear(3, 2)
    model.register_buffer("average", torch.zeros(2))
    optimizer = optim.AdamW(model.parameters(), lr=0.02, fused=True)

    def average(*_: Any) -> None:
        with torch.no_grad():
            model.average.add_(model.bias if model.bias[0] > -9 else 0)

    optimizer.register_step_post_hook(average)
    graph = Branches(model, optimizer, set_cuda_graph="auto")
    graph.config.set_backend("auto", switch_at=4)
    for x in torch.randn(9, 4, 3):
        graph(x)
    assert support.replay_of(graph).inductor_since is not None
    assert graph.report().cuda_graph == "captured, 3 for a step"
