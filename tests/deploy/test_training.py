"""A training step that is exported trains as the Graph does, where neither is."""

from __future__ import annotations

import json
import subprocess
import sys
import zipfile
from typing import Any

import pytest
import torch
from torch import nn, optim
from torch.nn import functional as F

import torchgraph as tg
from tests.deploy.steps import Net, TrainStep, assert_same_training, batches, loaded, trained
from tests.support import assert_golden
from torchgraph.deploy.captured import captured_step

OPTIMIZERS = {
    "sgd": lambda p: optim.SGD(p, lr=0.1),
    "momentum": lambda p: optim.SGD(p, lr=0.1, momentum=0.9, nesterov=True, weight_decay=1e-3),
    "adamw": lambda p: optim.AdamW(p, lr=0.01),
    "amsgrad": lambda p: optim.Adam(p, lr=0.01, amsgrad=True, weight_decay=0.01),
    "foreach": lambda p: optim.AdamW(p, lr=0.01, foreach=True),
    "fused": lambda p: optim.AdamW(p, lr=0.01, fused=True),
    "fused sgd": lambda p: optim.SGD(p, lr=0.1, momentum=0.9, fused=True),
    "fused adagrad": lambda p: optim.Adagrad(p, lr=0.1, fused=True),
    "rmsprop": lambda p: optim.RMSprop(p, lr=0.01, centered=True, momentum=0.5),
    "adadelta": lambda p: optim.Adadelta(p),
    "nadam": lambda p: optim.NAdam(p, lr=0.01),
    "adamax": lambda p: optim.Adamax(p, lr=0.01),
    "rprop": lambda p: optim.Rprop(p, lr=0.01),
    "lion": lambda p: tg.optim.Lion(p, lr=0.01),
    "lamb": lambda p: tg.optim.LAMB(p, lr=0.01),
}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_it_trains_as_the_graph(name, tmp_path):
    step = trained(OPTIMIZERS[name])
    tg.export(step, tmp_path / "step.pt2")
    module = loaded(tmp_path / "step.pt2")
    assert_same_training(step, module, batches(20))
    ends = module.state_dict()
    for key, value in step.model.state_dict(prefix="model.").items():
        torch.testing.assert_close(ends[key], value, rtol=1e-4, atol=1e-5)


class Counts(optim.SGD):
    """Leaves numbers that no step reads: one that it counts up to, and a constant."""

    def step(self, closure=None):
        for group in self.param_groups:
            group["count"] += 1
            group["seen"], group["mark"] = group["count"], 3
        return super().step(closure)


def test_numbers_that_a_step_only_sets_are_states(tmp_path):
    groups = []

    def made(parameters):
        groups.append({"params": list(parameters), "count": 0, "seen": 0, "mark": 0})
        optimizer = Counts(groups, lr=0.1)
        groups[:] = optimizer.param_groups
        return optimizer

    step = trained(made)
    tg.export(step, tmp_path / "step.pt2")
    module = loaded(tmp_path / "step.pt2")
    assert_same_training(step, module, batches(5))
    ends = module.state_dict()
    for name in ("count", "seen", "mark"):
        assert ends[f"optimizer.0.param_groups.0.{name}"].item() == groups[0][name]


def test_no_op_of_ours_is_inside(tmp_path):
    step = trained(OPTIMIZERS["fused"])
    step.set_grad_scaler(torch.amp.GradScaler("cpu"))
    for batch in batches(3):
        step(*batch)
    tg.export(step, tmp_path / "step.pt2")
    program = torch.export.load(tmp_path / "step.pt2")
    calls = [node for node in program.graph.nodes if node.op == "call_function"]
    spaces = {getattr(node.target, "namespace", node.target.__module__) for node in calls}
    assert spaces == {"aten", "_operator"}


def test_states_have_their_names_and_kinds(tmp_path):
    step = trained(OPTIMIZERS["momentum"])
    tg.export(step, tmp_path / "step.pt2")
    signature = torch.export.load(tmp_path / "step.pt2").graph_signature
    assert "model.first.weight" in signature.parameters
    assert "optimizer.0.param_groups.0.lr" in signature.buffers
    assert set(signature.parameters_to_mutate.values()) == set(signature.parameters)
    moved = set(signature.buffers_to_mutate.values())
    assert "optimizer.0.state.model.first.weight.momentum_buffer" in moved
    assert "model.norm.running_mean" in moved
    assert "optimizer.0.param_groups.0.lr" not in moved


def test_the_file_says_what_it_is(tmp_path):
    step = trained(OPTIMIZERS["momentum"])
    tg.export(step, tmp_path / "step.pt2")
    with zipfile.ZipFile(tmp_path / "step.pt2") as file:
        name = next(n for n in file.namelist() if n.endswith("extra/torchgraph.json"))
        found = json.loads(file.read(name))
    assert found.pop("torch") == torch.__version__
    assert_golden("exported_step", json.dumps(found, indent=1) + "\n")


FRESH = """
import sys, torch
module = torch.export.load(sys.argv[1]).module()
stream = torch.load(sys.argv[2])
print([module(x, y)["loss"].item() for x, y in stream])
assert not [name for name in sys.modules if name.startswith(("torchgraph", "tests"))]
"""


def test_it_trains_in_a_process_without_torchgraph_and_the_source(tmp_path):
    step = trained(OPTIMIZERS["adamw"])
    tg.export(step, tmp_path / "step.pt2")
    stream = batches(10)
    torch.save(stream, tmp_path / "stream.pt")
    expected = [step(*batch)["loss"].item() for batch in stream]
    done = subprocess.run(
        [sys.executable, "-c", FRESH, str(tmp_path / "step.pt2"), str(tmp_path / "stream.pt")],
        cwd=tmp_path,
        env={"PATH": "", "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    torch.testing.assert_close(json.loads(done.stdout), expected, rtol=1e-5, atol=1e-5)


def test_a_learning_rate_is_written_by_its_name(tmp_path):
    step = trained(OPTIMIZERS["momentum"])
    tg.export(step, tmp_path / "step.pt2")
    module = loaded(tmp_path / "step.pt2")
    step._runner.live.optimizers[0].param_groups[0]["lr"] = 0.003
    module.get_buffer("optimizer.0.param_groups.0.lr").fill_(0.003)
    assert_same_training(step, module, batches(5))


def test_a_scheduler_is_the_readers_to_step(tmp_path):
    torch.manual_seed(0)
    model = Net()
    optimizer = optim.SGD(model.parameters(), lr=0.1)
    step = TrainStep(model, optimizer, lr_sch=optim.lr_scheduler.StepLR(optimizer, 2))
    for batch in batches(4):
        step(*batch)
    tg.export(step, tmp_path / "step.pt2")
    module = loaded(tmp_path / "step.pt2")
    rate = module.get_buffer("optimizer.0.param_groups.0.lr")

    def run(*batch: Any) -> Any:
        rate.fill_(rates.pop(0))
        return module(*batch)

    stream, rates = batches(6), []
    state = optimizer.param_groups[0]
    expected = []
    for batch in stream:
        rates.append(state["lr"])
        expected.append(step(*batch)["loss"].item())
    assert len(set(rates)) == 3
    got = [run(*batch)["loss"].item() for batch in stream]
    torch.testing.assert_close(got, expected, rtol=1e-5, atol=1e-5)


def test_dropout_draws_the_numbers_of_the_graph(tmp_path):
    step = trained(OPTIMIZERS["sgd"], dropout=0.4)
    tg.export(step, tmp_path / "step.pt2")
    assert_same_training(step, loaded(tmp_path / "step.pt2"), batches(5))


def test_dropout_of_what_lies_transposed_draws_the_same(tmp_path):
    class Transposed(Net):
        def forward(self, x):
            hidden = self.first(x).view(8, 3, 4).transpose(0, 1)
            hidden = F.dropout(hidden, 0.4) + torch.empty_like(hidden).normal_(0.0, 0.1)
            return self.last(hidden.transpose(0, 1).reshape(8, 12))

    torch.manual_seed(0)
    model = Transposed()
    step = TrainStep(model, optim.SGD(model.parameters(), lr=0.1))
    for batch in batches(3):
        step(*batch)
    tg.export(step, tmp_path / "step.pt2")
    assert_same_training(step, loaded(tmp_path / "step.pt2"), batches(5))


class _Clipped(TrainStep):
    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self.config.set_clip_grad_norm(0.1)


class _Autocast(TrainStep):
    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self.config.enable_amp(True, dtype=torch.bfloat16)


class _OneFlow(TrainStep):
    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self.config.enable_amp(True, dtype=torch.bfloat16, policy="oneflow")


class _Accumulating(TrainStep):
    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self.config.set_gradient_accumulation_steps(4)


@pytest.mark.parametrize(
    ("kind", "tolerance"),
    [(_Clipped, 1e-5), (_Autocast, 1e-2), (_OneFlow, 1e-2), (_Accumulating, 1e-5)],
    ids=lambda one: getattr(one, "__name__", ""),
)
def test_options_that_say_what_a_step_computes(kind, tolerance, tmp_path):
    torch.manual_seed(0)
    model = Net()
    step = kind(model, optim.AdamW(model.parameters(), lr=0.01))
    for batch in batches(3):
        step(*batch)
    tg.export(step, tmp_path / "step.pt2")
    stream = batches(8)
    assert_same_training(step, loaded(tmp_path / "step.pt2"), stream, tolerance=tolerance)


def test_a_scaler_skips_the_step_that_overflows(tmp_path):
    torch.manual_seed(0)
    model = Net()
    step = TrainStep(model, optim.AdamW(model.parameters(), lr=0.01))
    step.set_grad_scaler(torch.amp.GradScaler("cpu", init_scale=256.0, growth_interval=3))
    for batch in batches(3):
        step(*batch)
    tg.export(step, tmp_path / "step.pt2")
    module = loaded(tmp_path / "step.pt2")
    scale = module.get_buffer("_train.scaler.scale")
    before, weight = scale.item(), module.get_parameter("model.first.weight").clone()
    broken = (torch.full((8, 6), float("inf")), torch.zeros(8, dtype=torch.int64))
    module(*broken)
    step(*broken)
    assert torch.equal(module.get_parameter("model.first.weight"), weight)
    assert scale.item() == before / 2
    assert not torch.isfinite(module.get_buffer("model.norm.running_mean")).all()
    for held in (module, step.model):  # the statistics are the batch's, skipped or not
        for name, buffer in held.named_buffers():
            if name.endswith("running_mean"):
                buffer.zero_()
            if name.endswith("running_var"):
                buffer.fill_(1.0)
    assert_same_training(step, module, batches(8))
    assert scale.item() == step._runner.live.scaler.get_scale()


class _Counting(optim.Optimizer):
    """Keeps its step count as Python's int."""

    def __init__(self, parameters):
        super().__init__(parameters, {"lr": 0.1})

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for parameter in group["params"]:
                state = self.state[parameter]
                state["step"] = state.get("step", 0) + 1
                rate = group["lr"] / (1 + 0.5 * state["step"] // 2) ** 0.5
                parameter.sub_(parameter.grad, alpha=rate)


def test_a_count_in_python_moves_unless_the_step_is_skipped(tmp_path):
    torch.manual_seed(0)
    model = Net()
    step = TrainStep(model, _Counting(model.parameters()))
    step.set_grad_scaler(torch.amp.GradScaler("cpu", init_scale=256.0))
    for batch in batches(4):
        step(*batch)
    tg.export(step, tmp_path / "step.pt2")
    module = loaded(tmp_path / "step.pt2")
    name = "optimizer.0.state.model.last.weight.step"
    count = module.get_buffer(name)
    assert (count.dtype, count.item()) == (torch.int64, 4)
    assert_same_training(step, module, batches(6))
    assert count.item() == 10
    module(torch.full((8, 6), float("inf")), torch.zeros(8, dtype=torch.int64))
    assert count.item() == 10


def test_a_tied_weight_is_one_state(tmp_path):
    torch.manual_seed(0)
    first, last = nn.Linear(6, 6, bias=False), nn.Linear(6, 6, bias=False)
    last.weight = first.weight
    model = nn.Sequential(first, nn.Tanh(), last)
    step = TrainStep(model, optim.SGD(model.parameters(), lr=0.1))
    for batch in batches(3):
        step(*batch)
    tg.export(step, tmp_path / "step.pt2")
    module = loaded(tmp_path / "step.pt2")
    assert [name for name, _ in module.named_parameters()] == ["model.0.weight"]
    assert_same_training(step, module, batches(6))


def test_a_step_that_takes_its_own_update(tmp_path):
    torch.manual_seed(0)
    model = Net()
    optimizer = optim.AdamW(model.parameters(), lr=0.01)

    @tg.step
    def step(x, y):
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        return {"loss": loss.detach()}

    for batch in batches(4):
        step(*batch)
    tg.export(step, tmp_path / "step.pt2")
    assert_same_training(step, loaded(tmp_path / "step.pt2"), batches(6))


def test_states_as_an_argument_are_written(tmp_path):
    """What is compiled for C++, run by torch: the states go in and come out changed."""
    step = trained(OPTIMIZERS["adamw"])
    one, _ = captured_step(step._runner, None)
    module = one.lifted().module()
    states = {state.name: state.value for state in one.states}
    before = states["model.last.weight"].clone()
    assert_same_training(step, lambda *batch: module(states, *batch), batches(10))
    assert not torch.equal(states["model.last.weight"], before)
