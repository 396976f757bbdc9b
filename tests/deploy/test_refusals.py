"""What cannot be exported is said with the way out; nothing of the user's moves either way."""

from __future__ import annotations

from typing import NamedTuple

import pytest
import torch
from torch import nn, optim
from torch.nn import functional as F

import torchgraph as tg
from tests.deploy.steps import EvalStep, Net, TrainStep, batches, loaded, trained
from torchgraph import errors
from torchgraph.deploy import files


def momentum(parameters):
    return optim.SGD(parameters, lr=0.1, momentum=0.9)


def test_a_branch_on_a_number_that_the_step_moves(tmp_path):
    step = trained(lambda p: optim.RAdam(p, lr=0.01), steps=9)
    with pytest.raises(errors.NotExportable, match=r"branches .* on optimizer\.0\.state"):
        tg.export(step, tmp_path / "step.pt2")
    assert list(tmp_path.iterdir()) == []


def test_a_value_that_python_looks_at(tmp_path):
    class Branching(TrainStep):
        def build(self, x, y):
            loss = F.cross_entropy(self.model(x), y)
            if y.max() > 1:
                loss = loss * 2
            loss.backward()
            return loss

    model = Net()
    step = Branching(model, momentum(model.parameters()))
    x, _ = batches(1)[0]
    y = torch.tensor([0, 1, 2, 0, 1, 2, 0, 1])
    for _ in range(4):
        step(x, y)
    with pytest.raises(
        errors.NotExportable, match="Python, or a function that this line calls, looks at a value"
    ) as caught:
        tg.export(step, tmp_path / "step.pt2")
    assert caught.value.where.text == "if y.max() > 1:"


def test_a_graph_that_was_not_called(tmp_path):
    with pytest.raises(errors.NotCompiled, match="args="):
        tg.export(EvalStep(Net()), tmp_path / "step.pt2")


def test_a_first_step_that_makes_states(tmp_path):
    model = Net()
    step = TrainStep(model, momentum(model.parameters()))
    with pytest.raises(errors.NotExportable, match="makes states"):
        tg.export(step, tmp_path / "step.pt2", args=batches(1)[0])
    step(*batches(1)[0])
    tg.export(step, tmp_path / "step.pt2")  # of a step with zeros, which is taken back
    module = loaded(tmp_path / "step.pt2")
    stream = batches(3)
    got = [module(*batch)["loss"].item() for batch in stream]
    expected = [step(*batch)["loss"].item() for batch in stream]
    torch.testing.assert_close(got, expected, rtol=1e-5, atol=1e-5)


def test_after_its_first_step_adam_is_exported(tmp_path):
    torch.manual_seed(0)
    model = Net()
    step = TrainStep(model, optim.AdamW(model.parameters(), lr=0.01))
    stream = batches(6)
    step(*stream[0])
    tg.export(step, tmp_path / "step.pt2")
    module = loaded(tmp_path / "step.pt2")
    got = [module(*batch)["loss"].item() for batch in stream]
    expected = [step(*batch)["loss"].item() for batch in stream]
    torch.testing.assert_close(got, expected, rtol=1e-5, atol=1e-5)


def test_a_program_that_no_longer_fits(tmp_path):
    step = trained(momentum)
    step.model.eval()
    for given in ({}, {"args": batches(1)[0]}):
        tg.export(step, tmp_path / "step.pt2", **given)


@pytest.mark.parametrize("options", [{"dynamic_batch": True}, {"format": "onnx"}])
def test_a_training_step_has_one_size_and_is_no_onnx(options, tmp_path):
    with pytest.raises(errors.NotExportable):
        tg.export(trained(momentum), tmp_path / "step.pt2", **options)


def test_other_things(tmp_path):
    with pytest.raises(errors.InvalidOption, match="'pt2'"):
        tg.export(trained(momentum), tmp_path / "step.pt2", "tflite")
    with pytest.raises(errors.InvalidOption, match="takes a Graph"):
        tg.export(Net(), tmp_path / "step.pt2")
    with pytest.raises(errors.CheckpointFileError):
        tg.export(trained(momentum), tmp_path / "no" / "folder" / "step.pt2")


class Pair:
    """No pytree."""

    def __init__(self, x, y):
        self.x, self.y = x, y


def test_an_argument_that_torch_cannot_take_apart(tmp_path):
    class Step(TrainStep):
        def build(self, pair):
            loss = F.cross_entropy(self.model(pair.x), pair.y)
            loss.backward()
            return loss

    model = Net()
    step = Step(model, momentum(model.parameters()))
    for batch in batches(4):
        step(Pair(*batch))
    with pytest.raises(errors.NotExportable, match=r"Pair|in an object"):
        tg.export(step, tmp_path / "step.pt2")


class Batch(NamedTuple):
    """A pytree that torch writes to no file, unless it is told a name for it."""

    x: torch.Tensor
    y: torch.Tensor


def test_a_namedtuple_that_torch_cannot_write(tmp_path):
    class Step(EvalStep):
        def build(self, batch):
            return self.model(batch.x) + batch.y

    step = Step(nn.Linear(6, 3))
    for _ in range(3):
        step(Batch(torch.randn(8, 6), torch.randn(8, 3)))
    with pytest.raises(errors.NotExportable, match="Batch"):
        tg.export(step, tmp_path / "step.pt2")


def test_nested_arguments_by_keyword(tmp_path):
    class Step(TrainStep):
        def build(self, batch, *, weight):
            losses = F.cross_entropy(self.model(batch["x"]), batch["rest"][0], reduction="none")
            loss = (losses * weight).mean()
            loss.backward()
            return loss, {"losses": losses, "given": weight}

    torch.manual_seed(0)
    model = Net()
    step = Step(model, momentum(model.parameters()))
    stream = [({"x": x, "rest": [y]}, torch.rand(8)) for x, y in batches(9)]
    for batch, weight in stream[:4]:
        step(batch, weight=weight)
    tg.export(step, tmp_path / "step.pt2")
    module = loaded(tmp_path / "step.pt2")
    for batch, weight in stream[4:]:
        expected = step(batch, weight=weight)
        got = module(batch, weight=weight)
        torch.testing.assert_close(got, expected, rtol=1e-5, atol=1e-5)
        assert torch.equal(got[1]["given"], weight)


def test_an_argument_that_the_step_writes(tmp_path):
    class Step(EvalStep):
        def build(self, x, total):
            out = self.model(x)
            total.add_(out.sum().detach())
            return out

    step = Step(nn.Linear(6, 3).eval())
    x, total = torch.randn(8, 6), torch.zeros(())
    for _ in range(3):
        step(x, total)
    tg.export(step, tmp_path / "step.pt2")
    expected, got = total.clone(), total.clone()
    step(x, expected)
    loaded(tmp_path / "step.pt2")(x, got)
    torch.testing.assert_close(got, expected)
    assert not torch.equal(got, total)


@pytest.mark.parametrize("given", [False, True])
def test_nothing_of_the_users_moves(given, tmp_path):
    step = trained(lambda p: optim.AdamW(p, lr=0.01), dropout=0.3)
    states = {k: v.clone() for k, v in step.model.state_dict().items()}
    slots = [
        {key: value.clone() for key, value in slot.items()}
        for slot in step._runner.live.optimizers[0].state.values()
    ]
    random = torch.get_rng_state()
    twin = trained(lambda p: optim.AdamW(p, lr=0.01), dropout=0.3)
    torch.set_rng_state(random)
    x, y = batches(1)[0]
    before = torch.get_rng_state()
    tg.export(step, tmp_path / "step.pt2", args=(x, y) if given else None)
    assert torch.equal(torch.get_rng_state(), before)
    assert all(torch.equal(v, states[k]) for k, v in step.model.state_dict().items())
    for slot, old in zip(step._runner.live.optimizers[0].state.values(), slots, strict=True):
        assert all(torch.equal(value, old[key]) for key, value in slot.items())
    module = loaded(tmp_path / "step.pt2")
    module(x, y)  # its states are copies
    assert all(torch.equal(v, states[k]) for k, v in step.model.state_dict().items())
    torch.set_rng_state(before)
    expected = [twin(x, y)["loss"] for _ in range(3)]
    torch.set_rng_state(before)
    assert [step(x, y)["loss"] for _ in range(3)] == expected


def test_a_compiler_that_is_missing(tmp_path, monkeypatch):
    path = tmp_path / "step.pt2"
    path.write_bytes(b"old")
    from_torch = RuntimeError("No working C++ compiler found")

    def broken(*args: object) -> None:
        raise from_torch

    monkeypatch.setattr(files, "compile_ahead", broken)
    with pytest.raises(errors.NotExportable, match="No working C") as caught:
        tg.export(trained(momentum), path, "aoti")
    assert caught.value.__cause__ is from_torch
    assert path.read_bytes() == b"old"
    assert [one.name for one in tmp_path.iterdir()] == ["step.pt2"]


def test_the_file_that_was_there_stays_when_writing_fails(tmp_path, monkeypatch):
    step = trained(momentum)
    path = tmp_path / "step.pt2"
    path.write_bytes(b"old")

    def broken(*args: object, **kwargs: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(torch.export, "save", broken)
    with pytest.raises(errors.CheckpointFileError):
        tg.export(step, path)
    assert path.read_bytes() == b"old"
    assert [one.name for one in tmp_path.iterdir()] == ["step.pt2"]
    monkeypatch.undo()
    tg.export(step, path)
    loaded(path)(*batches(1)[0])
