"""graph.profile(): what it measures, the floor, and that nothing of the user's changes."""

from __future__ import annotations

import copy
import re
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn

import torchgraph as tg
from tests.replay.conftest import recording as recording
from tests.support import replay_of, settle
from torchgraph.errors import NoProgram, UnsupportedInput
from torchgraph.inspect.profile.least import least_bytes, least_flops
from torchgraph.inspect.profile.limits import bandwidth, product_rate
from torchgraph.inspect.profile.profile import Profile
from torchgraph.ir.each import is_item
from torchgraph.ir.program import Phase
from torchgraph.replay.cuda.cuda_graph import CudaGraph
from torchgraph.testing import counters

from .models import Evaluate, Net, Train, batch, trainer

NOISE = 1.1
"""A step may seem faster than its floor by this much: both are measured, on a machine that others
use, and the rates are the best of several runs."""


class Wide(nn.Module):
    """Products that take most of the time."""

    def __init__(self, width: int = 512) -> None:
        super().__init__()
        self.first = nn.Linear(width, 2 * width)
        self.second = nn.Linear(2 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(torch.relu(self.first(x)))


def wide(rows: int = 512, width: int = 512) -> tuple[Train, tuple[torch.Tensor, torch.Tensor]]:
    model = Wide(width)
    graph = Train(model, torch.optim.SGD(model.parameters(), lr=0.01))
    return graph, (torch.randn(rows, width), torch.randn(rows, width))


@pytest.fixture(scope="module")
def profile() -> Profile:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        graph = trainer()
        for _ in range(4):
            graph(*batch())
        return graph.profile(*batch())


def test_phases_and_modules(profile):
    assert list(profile.seconds_by_phase) == list(Phase)
    assert all(seconds > 0 for seconds in profile.seconds_by_phase.values())
    modules = {one.module: one for one in profile.modules}
    assert {"model.fc", "model.norm", "model.drop", "model.head"} <= set(modules)
    assert modules["model.fc"].forward > 0
    assert modules["model.fc"].backward > 0
    assert modules["model.fc"].update > 0  # its share of the node that updates all
    assert modules["model.drop"].update == 0
    seconds = [one.seconds for one in profile.modules]
    assert seconds == sorted(seconds, reverse=True)
    assert sum(seconds) == pytest.approx(sum(profile.seconds_by_node.values()))
    assert sum(seconds) == pytest.approx(sum(profile.seconds_by_phase.values()))


def test_nodes_are_those_of_the_program(profile):
    graph = trainer()
    settle(graph, *batch())
    found = graph.profile(*batch())
    calls = [node for node in graph.program.nodes if node.op == "call_function"]
    # Lowered, a node that updates all parameters writes them: its results are no nodes any more.
    names = {node.name for node in calls if not is_item(node)}
    assert len(names & set(found.seconds_by_node)) > 0.9 * len(names)
    (addmm, *_) = [one for one in found.nodes if one.op == "addmm"]
    assert addmm.module == "model.fc"
    assert addmm.phase is Phase.FORWARD
    assert addmm.line is not None
    assert "self.fc(x)" in addmm.line.text
    assert not addmm.estimated
    assert addmm.flops == 2 * 3 * 4 * 8
    assert addmm.bytes == 4 * (3 * 4 + 4 * 8 + 8 + 3 * 8)


def test_what_takes_longer_is_found():
    graph, arguments = wide()
    settle(graph, *arguments)
    found = graph.profile(*arguments)
    longest = sorted(found.nodes, key=lambda one: -one.seconds)[:5]
    assert all(one.op in ("addmm", "mm") for one in longest)
    # One clock for each call and one for all of them tell the same time, give or take the machine.
    assert sum(found.seconds_by_node.values()) == pytest.approx(found.step.fastest, rel=1.0)


def test_the_floor_is_one():
    """Products large enough that Python does not count: the step is near its floor, not below."""
    graph, arguments = wide()
    settle(graph, *arguments)
    found = graph.profile(*arguments)
    assert found.floor.seconds == max(found.floor.bytes_seconds, found.floor.flops_seconds)
    assert found.floor.seconds <= NOISE * found.step.fastest
    assert 0.01 < found.share <= NOISE


def test_the_floor_of_bytes_is_one():
    """Elementwise over more than any cache holds, read once and written once."""

    class Double(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x * 2

    graph, x = Evaluate(Double()), torch.randn(2**24)
    settle(graph, x)
    found = graph.profile(x)
    assert found.floor.least_bytes == 2 * x.nbytes == found.floor.traffic
    assert found.floor.flops == 0
    assert found.floor.seconds <= NOISE * found.step.fastest
    assert found.share > 0.05


def test_floors_of_a_training_step():
    graph = trainer(torch.optim.SGD, lr=0.1)
    settle(graph, *batch())
    program = graph.program
    parameters = 4 * (4 * 8 + 8 + 8 + 8 + 8 * 2 + 2)
    statistics = 4 * (8 + 8) + 8
    # All of it is read and written; the arguments are read, the loss is returned.
    assert least_bytes(program) == 2 * (parameters + statistics) + 4 * 3 * (4 + 2) + 4
    forward = 2 * 3 * (4 * 8 + 8 * 2)
    backward = 2 * 3 * (4 * 8) + 2 * (2 * 3 * (8 * 2))  # nobody wants the gradient of x
    assert least_flops(program) == {torch.float32: forward + backward}


def test_rows_that_are_looked_up_count_alone():
    class Lookup(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table = nn.Embedding(1000, 8)
            self.places = nn.Parameter(torch.zeros(100, 8))

        def forward(self, ids: torch.Tensor) -> torch.Tensor:
            return self.table(ids) + self.places[:5]

    graph, ids = Evaluate(Lookup()), torch.randint(1000, (5,))
    settle(graph, ids)
    assert least_bytes(graph.program) == 5 * 8 + 3 * (4 * 5 * 8)


def test_causal_attention_is_half():
    class Attend(nn.Module):
        def __init__(self, *, causal: bool) -> None:
            super().__init__()
            self.causal = causal

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return nn.functional.scaled_dot_product_attention(x, x, x, is_causal=self.causal)

    x, flops = torch.randn(1, 2, 16, 8), {}
    for causal in (False, True):
        graph = Evaluate(Attend(causal=causal))
        settle(graph, x)
        flops[causal] = least_flops(graph.program)[torch.float32]
    assert flops[False] == 2 * 2 * (2 * 16 * 16 * 8)
    assert flops[True] == flops[False] // 2


def test_limits_are_measured_once():
    cpu = torch.device("cpu")
    assert bandwidth(cpu, 3 * 2**20) is bandwidth(cpu, 2 * 2**20)
    assert product_rate(cpu, torch.float32) == product_rate(cpu, torch.float32)
    found = bandwidth(cpu, 10)
    assert found.block == 2**20
    assert 1e8 < found.copy <= found.fastest < 1e13
    assert 1e8 < product_rate(cpu, torch.float32) < 1e15


@pytest.mark.parametrize("kind", [torch.optim.AdamW, torch.optim.SGD])
def test_nothing_of_the_users_changes(kind):
    graph = trainer(kind)
    arguments = batch()
    settle(graph, *arguments)
    before = copy.deepcopy(graph.state_dict())
    given, generator = copy.deepcopy(arguments), torch.get_rng_state()
    replays = counters.replays
    graph.profile(*arguments)
    assert counters.replays == replays
    assert torch.equal(torch.get_rng_state(), generator)
    assert all(map(torch.equal, arguments, given))
    flat = [torch.utils.data.default_convert(one) for one in (before, graph.state_dict())]
    assert str(flat[0]) == str(flat[1])
    other = copy.deepcopy(graph.model)
    assert all(map(torch.equal, graph.model.parameters(), other.parameters()))


def test_training_goes_on_as_without():
    losses: list[list[float]] = []
    for profiled in (False, True):
        torch.manual_seed(3)
        graph = trainer()
        found = []
        for number in range(6):
            x, y = batch()
            found.append(graph(x, y).item())
            if profiled and number in (0, 3):
                graph.profile(x, y)
        losses.append(found)
    assert losses[0] == losses[1]


def test_before_the_first_call():
    graph = trainer()
    found = graph.profile(*batch())
    assert found.backend == "aten"
    assert Phase.UPDATE in found.seconds_by_phase
    assert not graph.model.fc.weight.grad


def test_the_tree_shows_the_time_after_it():
    graph = trainer()
    settle(graph, *batch())
    assert "ms measured" not in str(graph.tree())
    found = graph.profile(*batch())
    assert f"{1e3 * sum(found.seconds_by_node.values()):.3g} ms measured" in str(graph.tree())


def test_evaluation():
    graph = Evaluate(Net().eval())
    x = batch()[0]
    settle(graph, x)
    found = graph.profile(x)
    assert list(found.seconds_by_phase) == [Phase.FORWARD]
    assert "update" not in {phase.value for phase in found.seconds_by_phase}


def test_gradient_accumulation():
    graph = trainer()
    graph.config.set_gradient_accumulation_steps(3)
    settle(graph, *batch(12))
    found = graph.profile(*batch(12))
    assert list(found.seconds_by_phase) == list(Phase)
    calls = [one for one in found.timeline if one.op == "addmm" and one.module == "model.fc"]
    assert len(calls) == 3  # one for each micro-batch
    assert len([one for one in found.plan if one.node == calls[0].node]) == 3
    assert found.seconds_by_node[calls[0].node] > 0
    whole = trainer()
    settle(whole, *batch(12))
    assert least_flops(graph.program) == least_flops(whole.program)


def test_half_precision():
    graph, arguments = wide(64, 64)
    graph.config.enable_amp(dtype=torch.bfloat16)
    settle(graph, *arguments)
    found = graph.profile(*arguments)
    assert {one.dtype for one in found.floor.products} == {torch.bfloat16}
    assert "products in bfloat16" in str(found)


def test_compiled_code_is_split_by_work(interpreted):
    graph = trainer()
    graph.config.set_backend("inductor")
    settle(graph, *batch())
    found = graph.profile(*batch())
    assert found.backend == "inductor"
    inside = [one for one in found.nodes if one.estimated]
    assert {one.phase for one in inside} >= {Phase.FORWARD, Phase.BACKWARD}
    assert {"model.fc", "model.head"} <= {one.module for one in inside}
    assert "~" in str(found)
    (region,) = replay_of(graph).code.regions
    names = {node.name for node in region.origins()}
    assert {one.node for one in inside} == names


def test_a_cuda_graph_is_timed_op_by_op(recording):
    graph = trainer(torch.optim.SGD, lr=0.1)
    settle(graph, *batch())
    replay = replay_of(graph)
    assert isinstance(replay.executable, CudaGraph)
    stage = replay.executable.stage
    found = graph.profile(*batch())
    assert found.notes == ("timed op by op, not as its CUDA Graph",)
    assert list(found.seconds_by_phase) == list(Phase)
    assert replay.executable.stage is stage


def test_a_step_that_stays_in_eager():
    class Numpy(nn.Module):
        def forward(self, x: torch.Tensor) -> Any:
            return torch.from_numpy(x.numpy() + 1)

    graph = Evaluate(Numpy())
    graph.config.set_fallback("eager")
    with pytest.warns(tg.errors.EagerWarning):
        graph(torch.ones(2))
    for look in (graph.profile, graph.check):
        with pytest.raises(NoProgram, match=r"\.numpy\(\)") as error:
            look(torch.ones(2))
        assert "set_fallback" not in str(error.value), "that is set"
    with pytest.raises(NoProgram, match=r"graph\.report") as error:
        graph.report().save_memory_snapshot("nowhere")
    assert "set_fallback" not in str(error.value)


def test_arguments_that_are_missing_are_named():
    graph = trainer()
    for look in (graph.profile, graph.check):
        with pytest.raises(UnsupportedInput, match=r"'x', and 'y'\.\n  Fix: build\(x, y, weight=1"):
            look()
    with pytest.raises(UnsupportedInput, match=r"'x', and 'y'"):
        graph.profile(wieght=2.0)
    model = nn.Linear(4, 2)
    step = tg.train_step(model, nn.MSELoss(), torch.optim.SGD(model.parameters(), 0.1))
    with pytest.raises(UnsupportedInput, match="the target last"):
        step.profile()


def test_text(profile):
    text = str(profile)
    assert "\x1b" not in text
    assert max(map(len, text.splitlines())) <= 80
    for part in ("ms per step", "Limit:", "is reached", "read and written", "products in float32"):
        assert part in text
    for part in ("Phases", "backward", "Modules", "model.norm", "Nodes that take longest"):
        assert part in text
    assert "models.py:" in text


def test_nothing_is_a_stroke_and_names_keep_their_ends(profile):
    text = str(profile)
    rows = {line.split()[0]: line.split()[1:] for line in text.splitlines() if line}
    assert rows["model.drop"][2] == "-"
    nodes = [
        replace(profile.nodes[0], node=f"convolution_backward_default_{number}", seconds=1.0)
        for number in range(12)
    ]
    shown = str(replace(profile, nodes=tuple(nodes)))
    for number in range(12):
        assert re.search(rf"^convolution_\w*…\w+_{number}\b", shown, re.MULTILINE)
    assert max(map(len, shown.splitlines())) <= 80
