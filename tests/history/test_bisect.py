"""tg.bisect: the first bad op of the first bad step, and a way back to how things were."""

from __future__ import annotations

import copy
import gc
import random
import subprocess
import sys
import weakref
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import torchgraph as tg
from tests.inspect.test_planted import Plant, _behind
from torchgraph.errors import HistoryDiffers, HistoryTooShort, InvalidOption, NoHistory
from torchgraph.inspect.bisecting.bisect import BadStep
from torchgraph.ir import bits
from torchgraph.ir.program import Phase

aten = torch.ops.aten


class Net(nn.Module):
    """Linear layers and dropout; the loss takes a logarithm of an input."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(4, 8), nn.Linear(8, 1)
        self.drop = nn.Dropout(0.1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(self.drop(torch.relu(self.first(x))))


class Train(tg.Graph):
    """A regression, and a term that is infinite where an input is 0."""

    def __init__(self, model: nn.Module, optimizer: Any, scheduler: Any = None) -> None:
        super().__init__()
        self.model = model
        self.add_optimizer(optimizer, lr_sch=scheduler)

    def build(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        error = ((self.model(x) - y) ** 2).mean()
        loss = error - 1e-3 * torch.log(x[:, 0].abs()).mean()
        loss.backward()
        return loss


def _made(history: int, every: int | None = None) -> Train:
    torch.manual_seed(0)
    model = Net()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    graph = Train(model, optimizer, torch.optim.lr_scheduler.StepLR(optimizer, 20))
    graph.config.set_backend("aten")
    graph.config.keep_history(history, every=every)
    return graph


def _run(graph: Any, steps: int, bad: int = 0, plant: Any = None) -> None:
    for step in range(1, steps + 1):
        x, y = torch.randn(6, 4), torch.randn(6, 1)
        if step == bad:
            plant(x)
        graph(x, y)


def _zero(x: torch.Tensor) -> None:
    x[2, 0] = 0


def _nan(x: torch.Tensor) -> None:
    x[2, 1] = float("nan")


def _large(x: torch.Tensor) -> None:
    x.mul_(1e4)


def _everything(graph: Any) -> Any:
    optimizer, schedule = (
        graph._runner.live.optimizers[0],
        next(iter(graph._runner.live.schedulers), None),
    )
    grads = [p.grad for p in graph.model.parameters()]
    state = copy.deepcopy([graph.state_dict(), grads])
    rates = [group["lr"] for group in optimizer.param_groups]
    runs = [replay.runs for replay in graph._runner.cache]
    position = None if schedule is None else copy.deepcopy(schedule.state_dict())
    return [state, rates, runs, position, random.getstate(), torch.get_rng_state()]


def _same(old: Any, new: Any) -> None:
    assert type(old) is type(new)
    if isinstance(old, torch.Tensor):
        assert bits.same(old, new)
    elif isinstance(old, dict):
        assert list(old) == list(new)
        _same(list(old.values()), list(new.values()))
    elif isinstance(old, (list, tuple)):
        assert len(old) == len(new)
        for left, right in zip(old, new, strict=True):
            _same(left, right)
    else:
        assert old == new


def _found(graph: Any, tmp_path: Path, *args: Any, **kwargs: Any) -> BadStep | None:
    """`bisect`, which changes nothing."""
    before = _everything(graph)
    found = tg.bisect(graph, *args, directory=str(tmp_path), **kwargs)
    _same(before, _everything(graph))
    return found


@pytest.mark.parametrize(("steps", "bad", "history"), [(30, 17, 20), (1000, 700, 400)])
def test_a_nan_in_an_op(steps, bad, history, tmp_path):
    graph = _made(history)
    _run(graph, steps, bad, _zero)
    found = _found(graph, tmp_path)
    assert found is not None
    assert (found.step, found.kind, found.op) == (bad, "nan", "aten.log.default")
    assert found.phase is Phase.FORWARD
    assert found.line is not None
    assert "torch.log(x[:, 0].abs())" in found.line.text
    assert f"Step {bad} is the first bad one: output is inf." in str(found)
    text = Path(found.script).read_text(encoding="utf-8")
    assert len(text.splitlines()) <= 40
    done = subprocess.run(
        [sys.executable, found.script], cwd=tmp_path, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert "NaN: 0 infinite: 1" in done.stdout
    graph(torch.randn(6, 4), torch.randn(6, 1))  # and on it goes


def test_a_nan_that_came_with_the_batch(tmp_path):
    graph = _made(20)
    _run(graph, 12, 9, _nan)
    found = _found(graph, tmp_path)
    assert found is not None
    assert (found.step, found.came_with, found.module) == (9, "args[0]", "model.first")
    assert "It came with args[0], before any op ran." in str(found)


def test_a_spike(tmp_path):
    graph = _made(20)
    _run(graph, 15, 12, _large)
    found = _found(graph, tmp_path)
    assert found is not None
    assert (found.step, found.kind, found.came_with) == (12, "spike", "args[0]")
    assert "above" in found.what
    calm = _made(20)
    _run(calm, 12)
    limited = _found(calm, tmp_path, above=0.0)
    assert limited is not None
    assert (limited.step, limited.kind) == (1, "spike")


def test_a_mismatch_with_eager(tmp_path):
    graph = _made(10)
    _run(graph, 6)
    assert _found(graph, tmp_path) is None
    graph.config.passes.insert(Plant(aten.relu.default, _behind(aten.neg.default)), after="dce")
    found = _found(graph, tmp_path)
    assert found is not None
    assert (found.kind, found.op) == ("mismatch", "aten.neg.default")
    assert found.divergence is not None
    assert found.divergence.culprit is not None
    assert found.divergence.culprit.name == "plant"
    assert Path(found.script).exists()


def test_a_step_that_draws_runs_again_as_it_was(tmp_path):
    """The dropout of step 8 divides by zero: its mask is drawn anew, the same."""

    class Drops(Train):
        def build(self, x, y):
            mask = nn.functional.dropout(x, 0.5)
            loss = (self.model(x) - y).square().mean() + (1 / mask[:1, :1]).sum() * 1e-9
            loss.backward()
            return loss

    torch.manual_seed(1)
    model = Net()
    graph = Drops(model, torch.optim.SGD(model.parameters(), lr=1e-3))
    graph.config.keep_history(20)
    first = 0
    for step in range(1, 13):
        loss = graph(torch.randn(6, 4), torch.randn(6, 1))
        first = first or (0 if loss.isfinite() else step)
    assert first
    found = _found(graph, tmp_path)
    assert found is not None
    assert (found.step, found.op) == (first, "aten.reciprocal.default")


def test_no_further_than_a_step(tmp_path):
    graph = _made(20)
    _run(graph, 12, 9, _zero)
    assert _found(graph, tmp_path, 8) is None
    found = _found(graph, tmp_path, 10)
    assert found is not None
    assert found.step == 9


def test_a_history_that_is_too_short(tmp_path):
    graph = _made(4)
    _run(graph, 30, 12, _nan)
    with pytest.raises(HistoryTooShort, match="is not finite before step"):
        _found(graph, tmp_path)
    with pytest.raises(HistoryTooShort, match="Step 12 is not kept"):
        _found(graph, tmp_path, 12)


def test_no_history(tmp_path):
    graph = _made(0)
    _run(graph, 3)
    with pytest.raises(NoHistory):
        tg.bisect(graph)
    with pytest.raises(InvalidOption):
        tg.bisect(nn.Linear(1, 1))
    assert not graph._runner.reruns.history.records
    graph.config.keep_history(2)
    _run(graph, 2)
    assert len(graph._runner.reruns.history.records) == 2
    graph.config.keep_history(0)
    _run(graph, 1)
    assert not graph._runner.reruns.history.records  # and what was kept is free


def test_a_history_without_a_step(tmp_path):
    with pytest.raises(NoHistory, match="has kept no step yet"):
        tg.bisect(_made(10), directory=tmp_path)


def test_a_file_where_a_directory_is_meant(tmp_path):
    graph, taken = _made(10), tmp_path / "taken"
    _run(graph, 6)
    taken.touch()
    with pytest.raises(InvalidOption, match="directory is a file"):
        tg.bisect(graph, directory=taken)


def test_who_looks_for_it_is_no_line_of_the_step(tmp_path):
    model = nn.Linear(4, 1)
    step = tg.train_step(model, nn.MSELoss(), torch.optim.Adam(model.parameters()))
    step.config.keep_history(20)
    x, y = torch.randn(6, 4), torch.randn(6, 1)
    for number in range(1, 13):  # equal batches: the program is made as it is looked for
        step(x * (1e6 if number == 9 else 1), y)
    found = tg.bisect(step, directory=tmp_path)
    assert found is not None
    assert found.script
    assert found.line is None
    assert __file__ not in Path(found.script).read_text(encoding="utf-8")


def test_a_state_that_others_write(tmp_path):
    graph = _made(20)
    _run(graph, 6)
    with torch.no_grad():
        graph.model.last.weight.mul_(2)
    _run(graph, 3)
    with pytest.raises(HistoryDiffers, match="do not lead to the state"):
        _found(graph, tmp_path)
    each = _made(20, every=1)
    _run(each, 6)
    with torch.no_grad():
        each.model.last.weight.mul_(float("inf"))
    _run(each, 1)
    with pytest.raises(HistoryDiffers):
        _found(each, tmp_path)


def test_a_rate_that_the_user_sets(tmp_path):
    graph = _made(20)
    for _ in range(3):
        _run(graph, 4)
        graph._runner.live.optimizers[0].param_groups[0]["weight_decay"] += 0.01
    assert _found(graph, tmp_path) is None


def test_arguments_that_are_written_later(tmp_path):
    graph = _made(20)
    x, y = torch.empty(6, 4), torch.empty(6, 1)
    for step in range(1, 15):
        x.normal_()
        y.normal_()
        if step == 9:
            _zero(x)
        graph(x, y)
    found = _found(graph, tmp_path)
    assert found is not None
    assert found.step == 9


def test_what_it_holds():
    graph = _made(10)
    _run(graph, 200)
    history = graph._runner.reruns.history
    assert len(history.records) <= 20
    assert len(history.states) <= 3
    batch = 6 * 4 * 4 + 6 * 4
    state = sum(p.nbytes for p in graph.model.parameters())
    assert history.nbytes <= 3 * (3 * state + 200) + 20 * batch
    states = sum(kept.snapshot.nbytes for kept in history.states)
    x, y = torch.randn(6, 4), torch.randn(6, 1)
    for _ in range(30):
        graph(x, y)
    assert history.nbytes == states + batch  # one that comes again is copied once


def test_frozen_weights_are_not_copied():
    torch.manual_seed(0)
    model = Net()
    model.first.requires_grad_(False)
    graph = Train(model, torch.optim.SGD(model.last.parameters(), lr=0.1))
    graph.config.keep_history(2)
    _run(graph, 12)
    assert graph._runner.reruns.history.states[-1].snapshot.nbytes == sum(
        p.nbytes for p in model.last.parameters()
    )


def test_a_graph_that_is_dropped_is_gone():
    graph = _made(5)
    _run(graph, 8)
    kept = weakref.ref(graph)
    gc.disable()
    try:
        del graph
        assert kept() is None
    finally:
        gc.enable()


def test_with_accumulation(tmp_path):
    graph = _made(20)
    graph.config.set_gradient_accumulation_steps(2)
    _run(graph, 12, 9, _zero)
    found = _found(graph, tmp_path)
    assert found is not None
    assert (found.step, found.op) == (9, "aten.log.default")


def test_with_a_scaler(tmp_path):
    """A step that the scaler skips is no bad one."""
    graph = _made(30)
    graph.set_grad_scaler(torch.amp.GradScaler("cpu", init_scale=2.0**127))
    graph.config.keep_history(30)
    for _ in range(16):
        graph(torch.randn(6, 4) + 3, torch.randn(6, 1))
    assert _found(graph, tmp_path) is None
    model = graph.model
    _run(graph, 3, 2, _nan)
    assert all(p.isfinite().all() for p in model.parameters())  # skipped, so good
    assert _found(graph, tmp_path) is None


def test_a_step_of_the_users_own(tmp_path):
    torch.manual_seed(0)
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)

    @tg.step
    def step(x, y):
        optimizer.zero_grad()
        loss = ((model(x) - y) ** 2).mean() - 1e-3 * torch.log(x[:, 0].abs()).mean()
        loss.backward()
        optimizer.step()
        schedule.step()
        return loss

    step.config.keep_history(20)
    _run(step, 14, 11, _zero)
    rate = optimizer.param_groups[0]["lr"]
    found = tg.bisect(step, directory=str(tmp_path))
    assert found is not None
    assert (found.step, found.op) == (11, "aten.log.default")
    assert (optimizer.param_groups[0]["lr"], schedule.last_epoch) == (rate, 14)


@pytest.mark.slow
def test_across_the_switch_to_inductor(tmp_path):
    graph = _made(30)
    graph.config.set_backend("auto", switch_at=8)
    _run(graph, 11)
    assert _found(graph, tmp_path) is None  # and each step gives what it gave
    _run(graph, 3, 1, _zero)
    assert any(replay.code.regions for replay in graph._runner.cache)
    found = _found(graph, tmp_path)
    assert found is not None
    assert (found.step, found.op) == (12, "aten.log.default")
