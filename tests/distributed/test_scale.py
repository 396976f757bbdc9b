"""Growth on paper: what it is made of, beside programs, sockets and processes."""

from __future__ import annotations

import os
import socket
import struct
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as funcol
from torch import nn
from torch.nn import functional as F

import torchgraph as tg
from benchmarks.scale import __main__ as scale, fit, growth, machines, ranks
from benchmarks.scale.gpt import PRIMES, Sizes, recorded, resized
from tests.distributed import spawn
from tests.support import thinned
from torchgraph.costs import collectives
from torchgraph.costs.collectives import wire_bytes, wired
from torchgraph.costs.timeline import COMMUNICATE, Rates, Wire, items, timeline
from torchgraph.distributed.ranks import simulated_rank
from torchgraph.ir.program import Phase, Program
from torchgraph.ir.values import tensors_of

# --- bytes on the wire ----------------------------------------------------------------------------


@pytest.mark.parametrize("ranks", [1, 2, 3, 8])
def test_bytes_of_a_ring(ranks):
    whole = 1000
    once = (ranks - 1) / ranks * whole
    assert wire_bytes("all_reduce", whole, ranks) == pytest.approx(2 * once)
    assert wire_bytes("all_gather", whole, ranks) == pytest.approx(once)
    assert wire_bytes("reduce_scatter", whole, ranks) == pytest.approx(once)
    assert wire_bytes("reduce_scatter", whole, ranks, "gloo") == pytest.approx(2 * once)
    assert wire_bytes("all_to_all", whole, ranks) == pytest.approx(once)


def sent() -> int:
    """Bytes that this process has sent over its sockets, as the kernel counts them."""
    total = 0
    for name in os.listdir("/proc/self/fd"):
        try:
            one = socket.socket(fileno=os.dup(int(name)))
        except OSError:  # no socket, or closed meanwhile
            continue
        with one:
            if one.family in (socket.AF_INET, socket.AF_INET6) and one.type == socket.SOCK_STREAM:
                told = one.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 256)
                total += struct.unpack_from("Q", told, 200)[0]  # tcpi_bytes_sent
    return total


ROWS = 1 << 16
"""Floats of a rank: enough for the heads of messages to count for nothing."""


class Communicates(tg.Graph):
    """One collective."""

    def __init__(self, what: Callable[[torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.what = what
        self.config.set_look_again("off")

    def build(self, x: torch.Tensor) -> torch.Tensor:
        return funcol.wait_tensor(self.what(x))


KINDS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "all_reduce": lambda x: funcol.all_reduce(x, "sum", dist.group.WORLD),
    "all_gather": lambda x: funcol.all_gather_single(x, 0, dist.group.WORLD),
    "reduce_scatter": lambda x: funcol.reduce_scatter_single(x, "sum", 0, dist.group.WORLD),
    "broadcast": lambda x: funcol.broadcast(x, 0, dist.group.WORLD),
    "all_to_all": lambda x: funcol.all_to_all_single(x, None, None, dist.group.WORLD),
}


def counted(rank: int) -> dict[str, tuple[float, int]]:
    """By kind: bytes as read in the program, and as this rank's sockets have sent them."""
    found = {}
    x = torch.ones(ROWS)
    for kind, what in KINDS.items():
        graph = Communicates(what)
        for _ in range(3):
            graph(x)
        names = {one.group for _, one in collectives.collectives(graph.program)}
        told = wired(graph.program, dict.fromkeys(names, dist.get_world_size()), "gloo")
        dist.barrier()
        time.sleep(0.2)
        before = sent()
        graph(x)
        time.sleep(0.2)
        found[kind] = (told[kind], sent() - before)
        dist.barrier()
    return found


@pytest.mark.dist
@pytest.mark.parametrize("world", thinned([2, 4], keep=[2]))
def test_bytes_in_the_program_are_those_on_gloos_sockets(world):
    if not hasattr(socket, "TCP_INFO"):
        pytest.skip("this system does not count the bytes of a socket")
    by_rank = spawn.run(counted, world)
    for kind in KINDS:
        told = by_rank[0][kind][0]
        most = max(rank[kind][1] for rank in by_rank)  # of a tree, the root sends most
        assert most == pytest.approx(told, rel=0.01), kind


def test_a_collective_that_nobody_has_counted():
    ops = torch.ops._c10d_functional
    graph = torch.fx.Graph()
    node = graph.call_function(ops.batch_p2p_ops.default, ([], [], [], [], "0"))
    with pytest.raises(NotImplementedError, match="not counted"):
        collectives.collective_of(node)


# --- a timeline -----------------------------------------------------------------------------------


class Beside(tg.Graph):
    """A product that nothing of the sum is needed for, while it is under way."""

    def build(self, x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        total = torch.ops._c10d_functional.all_reduce(x, "sum", dist.group.WORLD.group_name)
        product = y @ y
        return torch.ops._c10d_functional.wait_tensor(total) + 1, product


RATES = Rates({torch.float32: 1e9}, bytes=1e12, launch=0.0, view=0.0)


@pytest.mark.parametrize(("slower", "exposed"), [(0.5, 0.0), (4.0, 3.0)])
def test_a_sum_travels_while_a_product_is_computed(slower, exposed):
    side, rows = 100, 1000
    with simulated_rank(0, 4, []):
        graph = Beside()
        for _ in range(3):
            graph(torch.ones(rows), torch.ones(side, side))
        work = items(graph.program)
    product = 2 * side**3 / 1e9
    sent_ = 1.5 * 4 * rows
    wire = Wire(4, bytes=sent_ / (slower * product), message=0.0)
    (name,) = {item.collective.group for item in work if item.collective is not None}

    found = timeline(work, RATES, {name: wire})

    assert found.communicating == pytest.approx(slower * product)
    order = [span.lane for span in found.spans]
    if order.index(COMMUNICATE) < len(order) - 1:  # the pass that begins early did its work
        assert found.exposed == pytest.approx(exposed * product, rel=1e-2, abs=product * 1e-2)
    assert found.seconds == pytest.approx((1 + exposed) * product, rel=0.02)


def test_a_group_without_a_wire():
    with simulated_rank(0, 2, []):
        graph = Communicates(KINDS["all_reduce"])
        for _ in range(3):
            graph(torch.ones(4))
        work = items(graph.program)
    with pytest.raises(KeyError):
        timeline(work, RATES, {})


# --- programs of other sizes ----------------------------------------------------------------------

OTHER = Sizes(2, 6, 24, 3, 4, 5, 14, 22)


@pytest.mark.parametrize("split", [1, 2])
def test_a_program_of_other_sizes_is_the_one_recorded_there(split):
    made = resized(recorded(2, split), PRIMES, OTHER)
    there = recorded(2, split, OTHER)

    for one, other in zip(made.nodes, there.nodes, strict=True):
        assert str(one.target) == str(other.target)
        kinds = [[(t.shape, t.stride(), t.dtype) for t in tensors_of(n)] for n in (one, other)]
        assert kinds[0] == kinds[1], one
    work = [[item for item in items(p) if item.phase is not Phase.UPDATE] for p in (made, there)]
    assert work[0] == work[1]


def test_the_models_have_as_many_parameters_as_published():
    sizes = {name: growth.parameters(model) for name, model in growth.MODELS.items()}
    assert sizes == {"7B": 6_738_415_616, "70B": 68_976_648_192, "8B": 8_030_261_248}


@pytest.mark.parametrize("split", [1, 2])
def test_two_layers_tell_of_five(split):
    """A layer's share times their number, and the ends, are what a deeper program takes."""
    gpu, reached = machines.GPUS["H100"], machines.Reached()
    sizes = growth.MODELS["7B"].sizes(split, 1)
    at, joined = machines.rates(gpu, reached), machines.wire(gpu, reached, split)
    two = resized(recorded(2, split), PRIMES, sizes)
    five = resized(recorded(5, split), PRIMES, sizes)
    taken = growth.shares(two, 2, sizes, at, joined)

    work = items(five)
    wires = {item.collective.group: joined for item in work if item.collective is not None}
    spans = timeline(work, at, wires).spans
    whole = max(span.ends for span in spans if span.item.phase is not Phase.UPDATE)
    layer, ends = taken.layer, taken.ends
    told = 5 * (layer.forward + layer.backward) + ends.forward + ends.backward
    assert told == pytest.approx(whole, rel=1e-3)
    held = 5 * (layer.kept + layer.casts) + ends.kept + ends.casts + taken.works
    assert held == pytest.approx(growth.activations_at_most(five), rel=1e-3)


# --- plans ----------------------------------------------------------------------------------------


def zero_program(stage: int, world: int) -> tuple[Program, int]:
    """A step under data parallel and ZeRO, and the bytes of its parameters."""
    torch.manual_seed(0)
    net = nn.Sequential(*(nn.Linear(32, 32, bias=False) for _ in range(3)))

    class Train(tg.Graph):
        def __init__(self) -> None:
            super().__init__()
            self.net = net
            self.add_optimizer(torch.optim.Adam(net.parameters()))
            self.config.enable_data_parallel()
            self.config.enable_zero(bool(stage), stage=max(1, stage), shard_min_size=1)

        def build(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            loss = F.mse_loss(self.net(x), y)
            loss.backward()
            return loss

    with simulated_rank(0, world, []):
        graph = Train()
        for _ in range(3):
            graph(torch.ones(4, 32), torch.ones(4, 32))
        return graph.program, 4 * 3 * 32 * 32


@pytest.mark.parametrize("stage", [0, 1, 2, 3])
def test_what_a_plan_sends_is_what_the_program_of_that_stage_sends(stage):
    world = 8
    program, size = zero_program(stage, world)
    names = {one.group for _, one in collectives.collectives(program)}
    in_program = sum(wired(program, dict.fromkeys(names, world)).values()) / size

    model = growth.MODELS["7B"]
    gpu, reached = machines.GPUS["H100"], machines.Reached()
    found = growth.predicted(model, growth.Plan(world, stage), gpu, reached)
    assert found.wired / (4 * growth.parameters(model)) == pytest.approx(in_program)


@pytest.mark.parametrize(("stages", "micro"), [(1, 4), (4, 1), (4, 4), (4, 16), (8, 8)])
def test_a_pipeline_of_equal_stages(stages, micro):
    found = growth.one_forward_one_backward([1.0] * stages, [2.0] * stages, micro, 0.0)
    assert found == pytest.approx((micro + stages - 1) * 3.0)


def test_the_slowest_stage_sets_the_pace():
    even = growth.one_forward_one_backward([1.0, 1.0], [2.0, 2.0], 32, 0.0)
    slow = growth.one_forward_one_backward([1.0, 2.0], [2.0, 4.0], 32, 0.0)
    assert slow - even == pytest.approx(32 * 3.0, rel=0.05)
    assert growth.one_forward_one_backward([1.0, 1.0], [2.0, 2.0], 32, 0.5) > even


def test_memory_by_stage_and_by_rank():
    model = growth.MODELS["7B"]
    gpu, reached = machines.GPUS["H100"], machines.Reached()

    def held(**plan: Any) -> float:
        return growth.predicted(model, growth.Plan(**plan), gpu, reached).bytes

    by_stage = [held(gpus=64, zero=zero) for zero in (0, 1, 2, 3)]
    assert by_stage == sorted(by_stage, reverse=True)
    assert held(gpus=512, zero=3) < by_stage[3]
    assert held(gpus=64, zero=0) == held(gpus=8, zero=0)
    assert held(gpus=64, zero=0, checkpointing=True) < by_stage[0]
    assert held(gpus=64, tensor=8) < by_stage[0] / 4
    states = 16 * growth.parameters(model)
    assert by_stage[0] > states
    assert held(gpus=4096, zero=3, checkpointing=True) < states / 8


def test_a_plan_that_is_none():
    gpu, reached = machines.GPUS["H100"], machines.Reached()
    for plan in (growth.Plan(12, tensor=8), growth.Plan(8, 3, stages=2)):
        with pytest.raises(ValueError, match=r"divide|not predicted"):
            growth.predicted(growth.MODELS["7B"], plan, gpu, reached)


def test_beside_the_published_figures():
    """Products are fitted on 8 GPUs; what 128 of them do is predicted."""
    found = scale.beside_published(machines.Reached())
    fitted, other = found["rows"]
    assert (fitted["gpus"], other["gpus"]) == (8, 128)
    assert fitted["ratio"] == pytest.approx(1, abs=1e-3)
    assert 0.8 <= other["ratio"] <= 1.25
    assert 0.3 < found["products"] < 0.7


def test_the_command(tmp_path, capsys):
    result = scale.main(["--quick", "--models", "7B", "--gpus", "8,64", "--out", str(tmp_path)])
    rows = result["models"][0]["rows"]
    assert {row["plan"]["gpus"] for row in rows} == {8, 64}
    assert {row["plan"]["zero"] for row in rows} == {0, 1, 2, 3}
    printed = capsys.readouterr().out
    assert max(map(len, printed.splitlines()[:-1])) <= 80
    assert all(name in printed for name in ("s/step", "fits", "published"))
    assert (tmp_path / "scale.json").is_file()


# --- this machine ---------------------------------------------------------------------------------


def synthetic(here: fit.Here, names: tuple[str, ...], counts: tuple[int, ...]) -> list[Any]:
    """Measurements that ``here`` explains."""
    found = []
    for count in counts:
        with simulated_rank(0, count, []):
            for case in (case for case in ranks.CASES if case.name in names):
                torch.manual_seed(0)
                work = case.make(*case.sizes)
                step = ranks.step_of(work, count)
                for _ in range(3):
                    step(work.x, work.y)
                held = ranks.working_set(step)
                one = ranks.Measured(case.name, count, 1, (1, 1), 0, items(step.program), held)
                found.append(replace(one, seconds=here.seconds(one)))
    return found


def test_constants_are_found_again():
    crowds = (fit.Crowd(2, slower=1.4, bytes=1e9, message=1e-3),)
    true = replace(fit.Here(), product=60e9, memory=6e9, shared=18e9, launch=8e-6, crowds=crowds)
    measured = synthetic(true, ("mlp 256x3", "mlp 64x12", "mlp 768x3", "conv 16x4"), (1, 2))
    before = [abs(ratio - 1) for ratio in fit.ratios(fit.Here(), measured).values()]

    found = fit.fitted(measured)

    after = [abs(ratio - 1) for ratio in fit.ratios(found, measured).values()]
    assert max(after) < 0.1 < max(before)


@pytest.mark.slow
@pytest.mark.dist
@pytest.mark.timeout(1800)
def test_what_is_predicted_is_what_is_measured(tmp_path):
    """On models that nothing was fitted on, at 1, 2 and 4 processes."""
    result = scale.main(["--measure", "--out", str(tmp_path)])
    others = [row for row in result["rows"] if not row["fitted"]]
    assert {row["processes"] for row in others} == {1, 2, 4}
    if max(row["processors_of_others"] for row in result["rows"]) > 0.5:
        pytest.skip("other processes kept this machine busy: nothing can be measured")
    low, high = scale.BAND
    assert [row for row in others if not low <= row["ratio"] <= high] == []
