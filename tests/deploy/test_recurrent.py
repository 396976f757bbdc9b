"""An LSTM, which a CPU computes by an op of oneDNN's: an exported step has none of it."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import torchgraph as tg
from tests.deploy.steps import EvalStep

WAYS: dict[str, dict[str, Any]] = {
    "one layer": {},
    "both directions": {"bidirectional": True, "batch_first": True},
    "two layers": {"num_layers": 2, "bias": False},
}


class Reader(nn.Module):
    """The outputs and both last states of an LSTM."""

    def __init__(self, **options: Any) -> None:
        super().__init__()
        self.lstm = nn.LSTM(4, 5, **options)
        self.head = nn.LazyLinear(1)

    def forward(self, x: Tensor) -> Tensor:
        out, (hidden, cell) = self.lstm(x)
        return self.head(out) + hidden.mean() + cell.mean() / 2


def stepped(options: dict[str, Any]) -> tuple[tg.Graph, Tensor, Tensor]:
    model, x, y = Reader(**options), torch.randn(3, 6, 4), torch.randn(3, 6, 1)
    model(x)
    step = tg.train_step(model, nn.MSELoss(), torch.optim.SGD(model.parameters(), 0.1))
    for _ in range(2):
        step(x, y)
    return step, x, y


@pytest.mark.parametrize("way", WAYS)
def test_it_trains_elsewhere_in_any_grad_mode(way, tmp_path):
    step, x, y = stepped(WAYS[way])
    tg.export(step, tmp_path / "step.pt2")
    program = torch.export.load(tmp_path / "step.pt2")
    assert not [node for node in program.graph.nodes if "mkldnn" in str(node.target)]
    trainer = program.module()
    for mode in (torch.enable_grad, torch.no_grad, torch.inference_mode):
        with mode():
            loss = trainer(x, y).clone()
        torch.testing.assert_close(loss, step(x, y), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("way", WAYS)
def test_its_outputs_are_the_same_in_onnx(way, tmp_path):
    onnxruntime = pytest.importorskip("onnxruntime")
    model, x = Reader(**WAYS[way]).eval(), torch.randn(3, 6, 4)
    expected = model(x)
    path = tmp_path / "reader.onnx"
    tg.export(EvalStep(model), path, "onnx", args=(x,))
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    (first,) = session.get_inputs()
    got = session.run(None, {first.name: x.numpy()})[0]
    torch.testing.assert_close(torch.from_numpy(got), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.slow
def test_it_trains_as_a_package(tmp_path):
    step, x, y = stepped(WAYS["both directions"])
    tg.export(step, tmp_path / "step.pt2")
    states = torch.export.load(tmp_path / "step.pt2").state_dict
    tg.export(step, tmp_path / "step.aoti.pt2", "aoti")
    run = torch._inductor.aoti_load_package(str(tmp_path / "step.aoti.pt2"))
    given = {name: value.detach().clone() for name, value in states.items()}
    for _ in range(5):
        torch.testing.assert_close(run(given, x, y), step(x, y), rtol=1e-5, atol=1e-6)


def test_a_step_is_looked_into_as_it_runs():
    step, x, y = stepped({})
    step(x, y)
    step(x, y)
    assert step.check(x, y) is None
    assert step.check(x, y, precision="float64").divergence is None
    assert len(step.profile(x, y).seconds_by_phase) == 3


def test_a_nan_in_one_is_found(tmp_path):
    step, x, y = stepped({})
    step.config.keep_history(10)
    for number in range(6):
        step(x if number < 5 else x / 0, y)
    found = tg.bisect(step, directory=tmp_path)
    assert found is not None
    assert found.step == 8
