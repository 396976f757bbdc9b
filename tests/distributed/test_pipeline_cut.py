"""All stages in one process: the programs of a cut step compute what the whole step does."""

import pytest
import torch
from torch import nn

import torchgraph as tg
from tests.distributed.pipelines import Step, ran
from torchgraph import errors
from torchgraph.distributed.errors import (
    NotPipelined,
    PipeliningUnknown,
    ScheduleUnfit,
    StageNotPlaced,
    StagesOutOfOrder,
)
from torchgraph.ir.program import TensorMeta
from torchgraph.nn.graph import GraphModule
from torchgraph.pipeline import alike, layout, packing
from torchgraph.pipeline.pipelined import Pipelined
from torchgraph.pipeline.stages import StagePart

FOUR = [(0, 0), (1, 0), (2, 0), (3, 0)]
THREE = FOUR[:3]


def _runs(graph):
    (replay,) = graph._runner.cache
    return replay.executable


@pytest.mark.parametrize(
    ("name", "optimizer", "placed"),
    [
        ("mlp", "sgd", FOUR),
        ("mlp", "adamw", FOUR),
        ("conv", "sgd", THREE),
        ("dropout", "adamw", THREE),
        ("gpt", "sgd", [(0, 0), (0, 0), (0, 0), (1, 0), (1, 0)]),
    ],
)
@pytest.mark.parametrize("schedule", ["1f1b", "zbv"])
def test_stages_compute_what_the_whole_step_does(name, optimizer, placed, schedule):
    graph = Step(name, optimizer, placed, set_pipeline_schedule=schedule)
    found, expected = ran(graph, name, 8), ran(Step(name, optimizer), name, 8)
    assert isinstance(_runs(graph), Pipelined)
    assert found["runs"] == expected["runs"] > 4
    if name == "gpt":  # the shares of its tied weight are added up by stages
        torch.testing.assert_close(found["losses"], expected["losses"], rtol=1e-6, atol=1e-6)
        return
    assert torch.equal(found["losses"], expected["losses"])
    assert all(torch.equal(found["model"][key], one) for key, one in expected["model"].items())


def test_a_skip_is_carried_through_every_boundary_between():
    graph = Step("mlp", "sgd", FOUR)
    ran(graph, "mlp", 4)
    routes = _runs(graph).cut.routes
    skipped = set(routes.forward[0]) & set(routes.forward[1])
    assert len(skipped) == 1
    assert len(routes.forward[2]) == 1
    assert len(routes.backward[0]) == 1
    assert len(routes.backward[1]) == 2


def test_a_split_backward_has_in_its_first_part_what_others_wait_for():
    graph = Step("mlp", "sgd", FOUR, set_pipeline_schedule="zbv")
    ran(graph, "mlp", 4)
    cut = _runs(graph).cut
    adds = {place: one.adds for place, one in cut.stage_programs.items() if one.adds}
    assert {place.part for place in adds} == {StagePart.WEIGHT}
    assert sum(map(len, adds.values())) == 8


def test_a_stage_without_a_placement_does_nothing():
    graph = Step("mlp", "sgd")
    for number, block in enumerate(graph.model.blocks):
        block.to(GraphModule).set_stage(number)
    ran(graph, "mlp", 4)
    assert not isinstance(_runs(graph), Pipelined)


def test_a_block_tells_its_stage():
    graph = Step("mlp", "sgd", FOUR)
    block = graph.model.blocks[1].to(GraphModule)
    assert (block.stage_id, block.stage_placement) == (1, 0)
    assert graph.model.to(GraphModule).stage_id is None
    block.set_stage()
    block.stage_id = 2
    assert block.stage_id == 2


def test_a_container_speaks_for_what_is_in_it():
    graph = Step("mlp", "sgd")
    graph.model.blocks.to(GraphModule).set_stage(0, 0)
    graph.model.blocks[2].to(GraphModule).set_stage(1, 0)
    graph.model.blocks[3].to(GraphModule).set_stage(1)
    ran(graph, "mlp", 4)
    assert _runs(graph).cut.count == 2


class Line(tg.Graph):
    """Blocks one after the other, in stages."""

    def __init__(self, *blocks: nn.Module, stages=(0, 1), micro_batches=2):
        super().__init__()
        self.blocks = nn.ModuleList(blocks)
        self.add_optimizer(torch.optim.SGD(self.blocks.parameters(), 0.1))
        self.config.set_gradient_accumulation_steps(micro_batches)
        for block, stage in zip(self.blocks, stages, strict=True):
            block.to(GraphModule).set_stage(stage, 0)

    def build(self, x):
        for block in self.blocks:
            x = block(x)
        loss = x.square().mean()
        loss.backward()
        return loss


def _refused(graph, kind, match):
    graph(torch.randn(4, 3))
    with pytest.raises(kind, match=match):
        graph(torch.randn(4, 3))


class SpotChecks(nn.Linear):
    def forward(self, x):
        y = super().forward(x)
        return y if y.abs().sum().item() < 1e9 else x


class Drawn(nn.Linear):
    def forward(self, x):
        return super().forward(x) * torch.poisson(x.sigmoid())


@pytest.mark.parametrize(
    ("graph", "kind", "words"),
    [
        (lambda: Line(nn.Linear(3, 3), nn.Linear(3, 3), stages=(1, 0)), StagesOutOfOrder, "Stage"),
        (lambda: Line(nn.Linear(3, 3), SpotChecks(3, 3)), NotPipelined, "looks at a value"),
        (lambda: Line(Drawn(3, 3), nn.Linear(3, 3)), NotPipelined, "by values"),
    ],
)
def test_what_no_pipeline_holds_is_an_error(graph, kind, words):
    _refused(graph(), kind, words)


class Evaluated(tg.Graph):
    def __init__(self):
        super().__init__()
        self.model = nn.Linear(3, 3)

    def build(self, x):
        return self.model(x)


def test_a_graph_that_trains_nothing_is_no_pipeline():
    graph = Evaluated()
    graph.model.to(GraphModule).set_stage(0, 0)
    _refused(graph, NotPipelined, "no optimizer")


def test_a_step_of_one_micro_batch_has_stages_too():
    graph, plain = (Step("mlp", "adamw", placed, micro_batches=1) for placed in (FOUR, ()))
    found, expected = ran(graph, "mlp", 6), ran(plain, "mlp", 6)
    assert isinstance(_runs(graph), Pipelined)
    assert found["shapes"] == {()}
    assert torch.equal(found["losses"], expected["losses"])
    assert all(torch.equal(found["model"][key], one) for key, one in expected["model"].items())


def test_the_error_names_the_line():
    graph = Line(nn.Linear(3, 3), SpotChecks(3, 3))
    graph(torch.randn(4, 3))
    with pytest.raises(NotPipelined) as error:
        graph(torch.randn(4, 3))
    assert "y.abs().sum().item()" in str(error.value)


def test_a_compiler_is_refused():
    graph = Line(nn.Linear(3, 3), nn.Linear(3, 3))
    graph.config.set_backend("inductor")
    _refused(graph, NotPipelined, "op by op")


def test_stages_have_a_place():
    graph = Line(nn.Linear(3, 3), nn.Linear(3, 3))
    graph.blocks[1].to(GraphModule).set_stage(5)
    _refused(graph, StageNotPlaced, r"stage 5.*no ranks")
    graph = Line(nn.Linear(3, 3), nn.Linear(3, 3))
    graph.blocks[1].to(GraphModule).set_stage(1, 1)
    _refused(graph, StageNotPlaced, "process group")
    block = graph.blocks[0].to(GraphModule)
    for wrong in ("cuda:0", object(), [0, 0], -1, []):
        with pytest.raises(errors.InvalidOption, match="names"):
            block.set_stage(0, wrong)
    with pytest.raises(errors.InvalidOption):
        block.set_stage(placement=0)
    with pytest.raises(errors.InvalidOption):
        block.set_stage(-1)
    with pytest.raises(errors.NotSupported, match="modules"):
        block.tensor("weight").set_stage(0, 0)


def test_schedules_are_chosen_by_name():
    graph = Step("mlp", "sgd")
    with pytest.raises(errors.InvalidOption):
        graph.config.set_pipeline_schedule("fastest")
    with pytest.raises(errors.InvalidOption):
        graph.config.set_pipeline_outputs("first")


@pytest.mark.parametrize(
    ("schedule", "owners", "micro_batches"),
    [("interleaved", [0, 1, 1, 0], 4), ("zbv", [0, 1, 0, 1], 4), ("interleaved", [0, 1, 0, 1], 5)],
)
def test_a_schedule_says_which_stages_it_takes(schedule, owners, micro_batches):
    with pytest.raises(ScheduleUnfit, match=schedule):
        layout.order(schedule, owners, micro_batches)


@pytest.mark.parametrize("size", [0, 1, 7, 8, 1000, (1 << 21) + 3])
def test_a_checksum_is_another_for_other_bytes(size):
    tensor = torch.arange(size, dtype=torch.float32)
    first = alike._checksum(tensor)
    assert alike._checksum(tensor.clone()) == first
    assert alike._checksum(torch.cat([torch.ones(1), tensor])[1:]) == first
    for place in {0, size // 2, size - 1} if size else ():
        other = tensor.clone()
        other[place] += 1
        assert alike._checksum(other) != first
    if size > 1:
        assert alike._checksum(tensor.flip(0)) != first


def test_a_torch_without_the_runtime_is_named(monkeypatch):
    monkeypatch.setattr(layout.pipelining, "lacks", lambda: "torch has no such thing")
    with pytest.raises(PipeliningUnknown, match="no such thing"):
        layout.order("1f1b", [0, 1], 4)


def test_nothing_is_lacking_here():
    assert layout.pipelining.lacks() == ""


@pytest.mark.parametrize("schedule", ["gpipe", "1f1b", "interleaved", "zero_bubble", "zbv"])
@pytest.mark.parametrize("micro_batches", [2, 4, 8])
def test_every_schedule_adds_gradients_up_in_order(schedule, micro_batches):
    owners = [0, 1, 1, 0] if schedule == "zbv" else [0, 1, 0, 1]
    for acts in layout.order(schedule, owners, micro_batches).values():
        for stage in range(4):
            numbers = [act.number for act in acts if act.stage == stage and act.kind in "BW"]
            assert numbers in ([], list(range(micro_batches)))


def test_one_forward_one_backward_has_few_micro_batches_in_flight():
    acts = layout.order("1f1b", [0, 1, 2], 8)
    for position, most in enumerate([3, 2, 1]):
        flying = [0]
        for act in acts[position]:
            flying.append(flying[-1] + (1 if act.kind == "F" else -1))
        assert max(flying) == most


@pytest.mark.parametrize(
    "value",
    [
        torch.randn(3, 4),
        torch.randn(3, 4).t(),
        torch.randn(1, 4).expand(3, 4),
        torch.randn(2, 3, 4, 5).contiguous(memory_format=torch.channels_last),
        torch.randn(6, 8)[::2, 1::3],
        torch.tensor(2.5),
        torch.empty(0, 3),
        torch.randn(3, 1, 2)[:, :, 0],
        torch.randn(2, 2, dtype=torch.complex64).conj(),
        torch.tensor([True, False]),
    ],
)
def test_unpacked_values_equal_the_packed_ones(value):
    meta = TensorMeta.of(value)
    memory = packing.blank(meta)
    memory.copy_(packing.packed(value, meta))
    found = packing.unpacked(memory, meta)
    assert torch.equal(found, value)
    assert found.stride() == value.stride()
    together = packing.as_bytes([packing.packed(value, meta)] * 2)
    assert together.numel() == 2 * packing.bytes_of(meta)
    assert all(torch.equal(one, value) for one in packing.of_bytes(together, [meta] * 2))
