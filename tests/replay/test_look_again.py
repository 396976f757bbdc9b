"""Looks: now and then a call runs in eager, and the program on copies of what it started from."""

import copy
import itertools
import warnings
from dataclasses import dataclass
from types import SimpleNamespace
from typing import ClassVar

import pytest
import torch
from torch import nn, optim

import torchgraph as tg
from tests.lower.conftest import Interpretation
from torchgraph.calls.spot_checks.schedule import SpotChecks, following
from torchgraph.errors import ConfirmWarning, InvalidOption
from torchgraph.passes import Pass
from torchgraph.replay import switch
from torchgraph.replay.replay import Replay
from torchgraph.verify import memory

aten = torch.ops.aten


def model():
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Linear(6, 8), nn.ReLU(), nn.BatchNorm1d(8), nn.Dropout(), nn.Linear(8, 2)
    )


def trainer(net, optimizer, ran):
    def step(x, y):
        ran.append(1)
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(net(x), y)
        loss.backward()
        optimizer.step()
        return loss

    return step


def data(count):
    source = torch.Generator().manual_seed(1)
    for _ in range(count):
        x = torch.randn(6, 6, generator=source)
        yield x, torch.randint(2, (6,), generator=source)


def on_aten(function, schedule="doubling"):
    graph = tg.step(function)
    graph.config.set_backend("aten")
    graph.config.set_look_again(schedule)
    return graph


def looked_at(graph, calls):
    """Which of ``calls`` (of arguments) were looked at, counted from 1."""
    found, before = [], 0
    for number, args in enumerate(calls, 1):
        graph(*args)
        now = graph.report().calls.looked
        if now > before:
            found.append(number)
        before = now
    return found


# --- when -----------------------------------------------------------------------------------------


def test_calls_double_and_then_come_every_thousand():
    found, served = [], 0
    while served < 30_000:
        served = following(served, "doubling")
        found.append(served)
    assert found[:11] == [2, 4, 8, 16, 32, 64, 128, 256, 512, 1000, 2000]
    assert max(b - a for a, b in itertools.pairwise(found)) == 1000
    assert sum(number < 30_000 for number in found) == 38
    assert [following(n, 3) for n in (0, 1, 2, 3)] == [3, 3, 3, 6]


def test_of_long_steps_fewer_of_the_first_calls_are_looked_at():
    torch.manual_seed(0)
    net = nn.Linear(2048, 2048)
    optimizer = optim.SGD(net.parameters(), 0.01)
    x = torch.randn(1024, 2048)

    def step(x):
        optimizer.zero_grad()
        loss = net(x).square().mean()
        loss.backward()
        optimizer.step()
        return loss

    assert looked_at(on_aten(step), [(x,)] * 36) == [34]  # the 32nd after two that are recorded
    assert looked_at(on_aten(step, 3), [(x,)] * 6) == [5]  # who says a number gets it


class Program:
    """What the schedule knows of a program."""

    runs = 0


def checks_of_turns(kinds, calls):
    """The calls that are checked, each with its program, of programs that take turns."""
    programs, schedule, looked = [Program() for _ in kinds], SpotChecks("doubling"), []

    def leaves_out(program):
        few, rare = kinds[programs.index(program)]
        return schedule.leaves_out(few=few, rare=rare)

    for hits in range(calls):
        program = programs[hits % len(kinds)]
        if hits >= schedule.from_hits and schedule.wants(program, programs, hits, leaves_out):
            schedule.made(program, programs, hits + 1)  # this call, too, is served
            looked.append((hits + 1, programs.index(program)))
        program.runs += 1
    return looked


def test_a_program_that_is_checked_rarely_takes_no_turn_of_another():
    """Of short compiled code, and of a short step on aten: a due check is of one that wants it."""
    looked = checks_of_turns([(True, True), (False, False)], 12_000)
    of_aten = [call for call, program in looked if program == 1]
    of_compiled = [call for call, program in looked if program == 0]
    assert of_aten[:5] == [2, 4, 8, 16, 64]  # the 32nd is the other's
    assert max(b - a for a, b in itertools.pairwise(of_aten)) < 3000
    assert len(of_compiled) >= 5
    assert len(looked) >= 20  # of 9 + 12 that are due


@pytest.mark.parametrize("count", [1, 2, 3])
def test_a_due_look_waits_for_its_program(count):
    """Each of several long programs is looked at, whichever call it gets."""
    looked = checks_of_turns([(True, False)] * count, 600)
    assert len(looked) == 3, looked
    assert len({number for _, number in looked}) == count
    wanted = (32, 128, 512)
    assert all(0 <= call - due < 2 * count for (call, _), due in zip(looked, wanted, strict=True))


def test_a_look_is_that_very_call_and_counted_apart():
    ran = []
    net = model()
    graph = on_aten(trainer(net, optim.SGD(net.parameters(), 0.1), ran))
    assert looked_at(graph, data(20)) == [4, 6, 10, 18]  # after two that are recorded
    assert len(ran) == 20  # what a step does happens once a call
    calls = graph.report().calls
    assert (calls.recorded, calls.programs, calls.looked, calls.untold) == (2, 18, 4, "")
    assert "18 by programs, 2 recorded, 0 in eager; 4 of the first were looked at" in str(
        graph.report()
    )


def test_the_program_that_was_looked_at_least_is_next():
    graph = on_aten(lambda x: x.relu() + 1)
    small, large = (torch.ones(2),), (torch.ones(3),)
    calls = [small, small, large, large, *[small, large] * 9]
    # Served: 1 small, 2 large, ...; the 4th is large again: it is the small one's turn.
    assert looked_at(graph, calls) == [6, 9, 12, 21]


def test_a_program_that_is_not_called_any_more_holds_nothing_up():
    graph = on_aten(lambda x: x.relu() + 1, 4)
    small, large = (torch.ones(2),), (torch.ones(3),)
    calls = [small, small, large, large, small, *[large] * 20]
    assert len(looked_at(graph, calls)) >= 4


def test_off_and_what_it_takes():
    net = model()
    graph = on_aten(trainer(net, optim.SGD(net.parameters(), 0.1), []), "off")
    assert looked_at(graph, data(12)) == []
    graph.config.set_look_again(5)  # at any time, and no program is made anew
    assert looked_at(graph, data(10)) == [5, 10]
    assert graph.report().calls.recorded == 2
    for wrong in ("first", 0, True, None):
        with pytest.raises(InvalidOption, match="set_look_again takes"):
            graph.config.set_look_again(wrong)


# --- what stays -----------------------------------------------------------------------------------


class Trained(tg.Graph):
    def __init__(self, net, optimizer):
        super().__init__()
        self.net = net
        self.add_optimizer(optimizer, lr_sch=optim.lr_scheduler.StepLR(optimizer, 3, 0.5))
        self.config.set_backend("aten")

    def build(self, x, y):
        loss = nn.functional.cross_entropy(self.net(x), y)
        loss.backward()
        return loss


def plain(graph):
    pass


SETTINGS = {
    "plain": plain,
    "clipped": lambda graph: graph.config.set_clip_grad_norm(0.1),
    "accumulated": lambda graph: graph.config.set_gradient_accumulation_steps(3),
    "scaled": lambda graph: graph.set_grad_scaler(torch.amp.GradScaler("cpu", init_scale=8.0)),
    "bf16": lambda graph: graph.config.enable_amp(True, dtype=torch.bfloat16),
}


@pytest.mark.parametrize("setting", SETTINGS)
def test_a_graph_leaves_what_it_leaves_without_looks(setting):
    def run(schedule):
        net = model()
        optimizer = optim.AdamW(net.parameters(), 0.01)
        graph = Trained(net, optimizer)
        SETTINGS[setting](graph)
        graph.config.set_look_again(schedule)
        losses = [graph(*batch) for batch in data(12)]
        assert not any(loss.requires_grad for loss in losses)
        assert all(parameter.grad is None for parameter in net.parameters())
        slots = [value for state in optimizer.state.values() for value in state.values()]
        left = [*losses, *net.state_dict().values(), *slots, torch.get_rng_state()]
        return [*left, torch.tensor(graph.last_lr)], graph

    (expected, _), (got, graph) = run("off"), run(1)
    assert all(map(torch.equal, got, expected))
    calls = graph.report().calls
    assert (calls.programs, calls.looked, calls.untold) == (12 - calls.recorded,) * 2 + ("",)
    assert graph._runner.spot_checker.schedule.confirmed == calls.looked


def test_a_step_leaves_what_eager_leaves():
    def run(wrap):
        kept, seen = [], []
        net = model()
        optimizer = optim.Adam(net.parameters(), 0.01)
        net[0].register_forward_hook(lambda *_: seen.append(1))
        body = trainer(net, optimizer, [])

        def step(x, y):
            loss = body(x, y)
            kept.append(loss.detach())
            x.mul_(2)
            return {"loss": loss, "rate": optimizer.param_groups[0]["lr"]}

        function = on_aten(step, 2) if wrap else step
        left = []
        for x, y in data(9):
            given = function(x, y)
            left += [given["loss"].detach(), x, torch.tensor(given["rate"])]
        grads = [parameter.grad for parameter in net.parameters()]
        rest = [*net.state_dict().values(), *grads, *kept, torch.get_rng_state()]
        return [*left, *rest], function

    (expected, _), (got, graph) = run(False), run(True)
    assert len(got) == len(expected)
    assert all(map(torch.equal, got, expected))
    assert graph.report().calls.looked == 3


def test_what_raises_raises_as_in_eager():
    graph = on_aten(lambda x, i: x[i] * 2, 1)
    x, good = torch.arange(4.0), torch.tensor([1, 3])
    for _ in range(4):
        graph(x, good)
    with pytest.raises(IndexError):
        graph(x, torch.tensor([1, 7]))
    assert torch.equal(graph(x, good), x[good] * 2)


def test_without_memory_the_program_runs_and_the_report_says_so(monkeypatch):
    monkeypatch.setattr(memory, "free", lambda device: 100)
    net = model()
    expected = copy.deepcopy(net)
    graph = on_aten(trainer(net, optim.SGD(net.parameters(), 0.1), []), 1)
    plainly = trainer(expected, optim.SGD(expected.parameters(), 0.1), [])
    for seed, (x, y) in enumerate(data(6)):
        torch.manual_seed(seed)
        loss = graph(x, y)
        torch.manual_seed(seed)
        assert torch.equal(loss, plainly(x, y))
    assert graph.report().calls.looked == 0
    assert "no memory" in graph.report().calls.untold
    assert "told nothing: no memory for copies" in " ".join(str(graph.report()).split())


# --- what is found --------------------------------------------------------------------------------


@dataclass(frozen=True)
class NoRelu(Pass):
    """Right for numbers above zero."""

    name: ClassVar[str] = "no_relu"

    def exact(self, program):
        return True  # a lie

    def apply(self, program, edit):
        for node in list(program.nodes):
            if node.target is aten.relu.default:
                edit.replace(node, edit.call(aten.abs.default, node.args, before=node, like=node))


def test_a_pass_that_is_wrong_for_few_values_is_found_at_the_next_look():
    ran = []

    def step(x):
        ran.append(1)
        y = x * 2
        return torch.relu(y).sum()

    graph = on_aten(step)
    graph.config.passes.insert(NoRelu())
    batch = torch.ones(3)
    for _ in range(10):  # the 8th that a program serves is looked at
        graph(batch.clone())
    for _ in range(3):
        assert graph(-batch) == 6  # wrong, as eager gives 0
    for _ in range(4):
        graph(batch.clone())
    with pytest.warns(ConfirmWarning) as caught:
        assert graph(-batch) == 0  # the 16th
    assert len(caught) == 1
    said = str(caught[0].message)
    assert "output 0 differs from eager's by up to 6; the first node that differs is abs" in said
    assert "test_look_again.py" in said
    assert "return torch.relu(y).sum()" in said
    assert "the last 7 calls by this program (args[0]: float32[3])" in said
    assert "Such calls go on in eager. It was rewritten by 'no_relu'" in said
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        ran.clear()
        assert [graph(-batch).item() for _ in range(5)] == [0] * 5
    assert len(ran) == 5
    assert "did not compute what eager does" in graph.report().calls.eager[0].why


@pytest.mark.parametrize("place", ["argument", "result"])
def test_what_nothing_tells_of_is_found_at_the_next_look(place, monkeypatch):
    """The guards are blind here: a constant that the step reads is another one from call 13 on."""
    config = SimpleNamespace(weight=1.0)

    def step(x):
        return (x * config.weight).sum() if place == "argument" else (x.sum(), config.weight)

    graph = on_aten(step)
    batch = torch.ones(3)
    for _ in range(12):
        graph(batch)
    monkeypatch.setattr(Replay, "why_not", lambda replay: "")
    config.weight = 5.0
    with pytest.warns(ConfirmWarning) as caught:
        given = [graph(batch) for _ in range(8)]
    assert len(caught) == 1
    wrong, right = (3, 15) if place == "argument" else (1, 5)
    values = [one.item() if place == "argument" else one[1] for one in given]
    assert values == [wrong] * 5 + [right] * 3  # the 16th by programs is the 18th call
    said = str(caught[0].message)
    assert "the last 7 calls" in said
    if place == "argument":
        assert "computed by sum" in said
        assert "test_look_again.py" in said
        assert "something that the step reads has changed" in said
    else:
        assert "the step returned 1.0 at [1], and now 5.0" in said


def test_what_it_leaves_in_a_place_is_compared(monkeypatch):
    kept = SimpleNamespace(last=torch.zeros(3), scale=1.0)

    def step(x):
        kept.last = kept.last + x * kept.scale
        return x.sum()

    graph = on_aten(step)
    for _ in range(5):
        graph(torch.ones(3))
    assert graph.report().calls.looked == 1
    monkeypatch.setattr(Replay, "why_not", lambda replay: "")
    kept.scale = 2.0
    with pytest.warns(ConfirmWarning, match="what it leaves at .*last"):
        graph(torch.ones(3))
    assert torch.equal(kept.last, torch.full((3,), 7.0))


def test_short_steps_of_compiled_code_are_looked_at_rarely():
    looked = [call for call, _ in checks_of_turns([(True, True)], 40_000)]
    assert looked == [32, 128, 512, 1000, 2000, 4000, 8000, 16_000, 24_000, 32_000, 40_000]


def test_calls_by_compiled_code_are_looked_at_as_long_steps_are(monkeypatch):
    monkeypatch.setattr(switch, "Compilation", Interpretation)
    net = nn.Linear(3, 3)
    graph = tg.step(lambda x: net(x).detach().sum())
    graph.config.set_backend("inductor")
    assert looked_at(graph, [(torch.randn(2, 3),)] * 36) == [34]


@pytest.mark.parametrize("kind", ["output", "state", "failing"])
def test_compiled_code_that_is_wrong_for_few_values(kind, monkeypatch):
    """Its first call confirms it; from the look on the aten program runs."""

    def finish(self, limit=None, goes_on=None):
        for region in self.regions:
            region.compiled(lambda *inputs, gm=region.gm: wrong(gm, *inputs))

    def wrong(gm, *inputs: torch.Tensor):
        outputs = list(gm(*inputs))
        if min(float(value.min()) for value in inputs if value.ndim == 2) < -50:
            if kind == "failing":
                raise RuntimeError("no such kernel")
            outputs = [value + 1 for value in outputs]
        return outputs

    monkeypatch.setattr(Interpretation, "finish", finish)
    monkeypatch.setattr(switch, "Compilation", Interpretation)
    scale = nn.Linear(3, 3)
    before = copy.deepcopy(scale.state_dict())
    optimizer = optim.SGD(scale.parameters(), 0.1)

    def step(x):
        if kind != "state":
            return scale(x).detach().sum()
        optimizer.zero_grad()
        loss = scale(x).mean()
        loss.backward()
        optimizer.step()
        return loss

    def run(graph):
        scale.load_state_dict(before)
        return [graph(x) for x in batches]

    batches = [torch.randn(2, 3) - 100 * (number == 9) for number in range(13)]
    expected = run(step)
    graph = tg.step(step)
    graph.config.set_backend("inductor")
    graph.config.set_look_again(4)
    with pytest.warns(ConfirmWarning, match="Compiled code does not compute") as caught:
        got = run(graph)
    assert len(caught) == 1
    assert torch.equal(got[9], expected[9].detach())
    assert "the last 3 calls" in str(caught[0].message)
    assert "go on in the aten program" in str(caught[0].message)
    report = graph.report()
    assert report.backend == "aten"
    assert report.confirmation.dropped
    assert (report.calls.looked, report.calls.eager) == (2, ())
