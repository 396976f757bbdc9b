"""An inference step, in each format, with a fixed and with a free batch."""

from __future__ import annotations

import importlib.util
import json
import shutil
import subprocess
from pathlib import Path

import pytest
import torch
from torch import nn

import torchgraph as tg
from tests.deploy.steps import EvalStep, Net, loaded
from torchgraph import errors


class Images(nn.Module):
    """Convolutions, and a view that names the batch."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(3, 6, 3, padding=1), nn.BatchNorm2d(6), nn.ReLU(), nn.MaxPool2d(2)
        )
        self.head = nn.Linear(6 * 16, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.body(x).view(x.shape[0], -1)).softmax(-1)


class Tokens(nn.Module):
    """Attention."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(20, 16)
        self.layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True, norm_first=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(self.embedding(x)).mean(1)


def images(rows):
    return torch.randn(rows, 3, 8, 8)


def tokens(rows):
    return torch.randint(0, 20, (rows, 5))


CASES = {"images": (Images, images), "tokens": (Tokens, tokens)}


def step_of(name, rows=4):
    model, make = CASES[name]
    step = EvalStep(model().eval())
    for _ in range(3):
        step(make(rows))
    return step, make


def close(got, expected):
    torch.testing.assert_close(got, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", CASES)
def test_pt2_gives_the_same(name, tmp_path):
    step, make = step_of(name)
    tg.export(step, tmp_path / "step.pt2")
    x = make(4)
    close(loaded(tmp_path / "step.pt2")(x), step(x))


@pytest.mark.parametrize("rows", [1, 4])
@pytest.mark.parametrize("name", CASES)
def test_a_batch_is_free_where_asked_for(name, rows, tmp_path):
    step, make = step_of(name, rows)
    tg.export(step, tmp_path / "step.pt2", dynamic_batch=True)
    module = loaded(tmp_path / "step.pt2")
    for other in (1, 2, 3, 4, 17):
        x = make(other)
        close(module(x)["out"], step.model(x).detach())


def test_a_fixed_batch_is_fixed(tmp_path):
    step, make = step_of("images")
    tg.export(step, tmp_path / "step.pt2")
    with pytest.raises((RuntimeError, AssertionError)):
        loaded(tmp_path / "step.pt2")(make(5))


def test_dimensions_by_name(tmp_path):
    step, _ = step_of("tokens")
    shapes = {"x": {1: torch.export.Dim("length", max=64)}}
    tg.export(step, tmp_path / "step.pt2", args=(tokens(4),), dynamic_shapes=shapes)
    module = loaded(tmp_path / "step.pt2")
    for length in (2, 9):
        x = torch.randint(0, 20, (4, length))
        close(module(x)["out"], step.model(x).detach())


def test_an_argument_by_keyword(tmp_path):
    step, make = step_of("images")
    x = make(4)
    for dynamic in (False, True):
        given = {"args": (x,), "kwargs": {"scale": 3.0}}
        tg.export(step, tmp_path / "step.pt2", dynamic_batch=dynamic, **given)
        got = loaded(tmp_path / "step.pt2")(x, scale=3.0)
        close(got, step(x, scale=3.0))


def test_under_autocast(tmp_path):
    step, make = step_of("images")
    step.config.enable_amp(True, dtype=torch.bfloat16)
    x = make(4)
    for dynamic in (False, True):
        tg.export(step, tmp_path / "step.pt2", args=(x,), dynamic_batch=dynamic)
        got = loaded(tmp_path / "step.pt2")(x)["out"]
        torch.testing.assert_close(got, step(x)["out"], rtol=2e-2, atol=2e-2)
        assert "torch.bfloat16" in str(torch.export.load(tmp_path / "step.pt2").graph_module.code)


def test_statistics_of_an_inference_step_are_written(tmp_path):
    step = EvalStep(Net())
    step.model.train()
    x = torch.randn(8, 6)
    for _ in range(3):
        step(x)
    for dynamic in (False, True):
        tg.export(step, tmp_path / "step.pt2", dynamic_batch=dynamic)
        module = loaded(tmp_path / "step.pt2")
        expected = copy(step.model)
        close(module(x)["out"], expected(x).detach())
        close(module.get_buffer("model.norm.running_mean"), expected.norm.running_mean)


@pytest.mark.parametrize("format", ["aoti", "onnx"])
def test_a_format_that_would_lose_writes_refuses(format, tmp_path):
    pytest.importorskip("onnxscript" if format == "onnx" else "torch")
    step = EvalStep(Net())
    step.model.train()
    for dynamic in (False, True)[format == "aoti" :]:
        with pytest.raises(errors.NotExportable, match="running_mean"):
            tg.export(
                step, tmp_path / "s", format, args=(torch.randn(8, 6),), dynamic_batch=dynamic
            )


def copy(model):
    other = Net()
    other.load_state_dict(model.state_dict())
    return other


def test_depend_leaves_no_op_of_ours(tmp_path):
    class Ordered(EvalStep):
        def build(self, x):
            first = x * 2
            return tg.depend(self.model(x), first)

    step = Ordered(nn.Linear(6, 3))
    x = torch.randn(4, 6)
    for dynamic in (False, True):
        tg.export(step, tmp_path / "step.pt2", args=(x,), dynamic_batch=dynamic)
        program = torch.export.load(tmp_path / "step.pt2")
        assert "torchgraph" not in str(program.graph)
        close(program.module()(x), step.model(x).detach())


def test_what_torch_export_cannot_trace(tmp_path):
    class Listing(EvalStep):
        def build(self, x):
            return self.model(x) * len(x.tolist())

    step = Listing(nn.Linear(6, 3))
    with pytest.raises(errors.NotExportable, match="cannot trace"):
        tg.export(step, tmp_path / "s.pt2", args=(torch.randn(4, 6),), dynamic_batch=True)


def test_a_trace_with_a_free_batch_moves_nothing(tmp_path):
    class Counting(EvalStep):
        def build(self, x):
            self.model.calls = getattr(self.model, "calls", 0) + 1
            return torch.dropout(self.model(x), 0.5, train=True)

    step = Counting(nn.Linear(6, 3))
    before = torch.get_rng_state()
    tg.export(step, tmp_path / "s.pt2", args=(torch.randn(4, 6),), dynamic_batch=True)
    assert not hasattr(step.model, "calls")
    # The batch above is drawn before.
    torch.set_rng_state(before)
    torch.randn(4, 6)
    expected = torch.get_rng_state()
    torch.set_rng_state(before)
    tg.export(step, tmp_path / "s.pt2", args=(torch.randn(4, 6),), dynamic_batch=True)
    assert torch.equal(torch.get_rng_state(), expected)


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("dynamic", [False, True])
def test_onnx_gives_the_same_in_onnxruntime(name, dynamic, tmp_path):
    onnx = pytest.importorskip("onnx")
    pytest.importorskip("onnxscript")
    runtime = pytest.importorskip("onnxruntime")
    step, make = step_of(name)
    path = tmp_path / "step.onnx"
    tg.export(step, path, "onnx", dynamic_batch=dynamic)
    onnx.checker.check_model(str(path), full_check=True)
    model = onnx.load(path)
    assert {one.domain for one in model.opset_import} <= {"", "ai.onnx"}
    held = {one.key: one.value for one in model.metadata_props}
    assert json.loads(held["torchgraph.json"])["graph"] == "EvalStep"
    session = runtime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    for rows in (1, 4, 9) if dynamic else (4,):
        x = make(rows)
        got = session.run(None, {session.get_inputs()[0].name: x.numpy()})
        close(torch.from_numpy(got[0]), step.model(x).detach())


def test_netron_reads_it(tmp_path):
    pytest.importorskip("onnxscript")
    netron, node = importlib.util.find_spec("netron"), shutil.which("node")
    if netron is None or node is None:
        pytest.skip("there is no netron and node")
    step, _ = step_of("images")
    path = tmp_path / "step.onnx"
    tg.export(step, path, "onnx", dynamic_batch=True)
    script = Path(__file__).with_name("netron.mjs")
    command = [node, str(script), str(Path(netron.origin).parent), str(path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["format"].startswith("ONNX")
    assert {"Conv", "Relu", "MaxPool", "Softmax"} <= set(found["nodes"])
    assert (found["inputs"], found["outputs"]) == (["x"], ["result_out", "result_scaled_0"])


def test_onnx_names_a_free_batch(tmp_path):
    onnx = pytest.importorskip("onnx")
    pytest.importorskip("onnxscript")
    step, _ = step_of("images")
    tg.export(step, tmp_path / "step.onnx", "onnx", dynamic_batch=True)
    (given,) = onnx.load(tmp_path / "step.onnx").graph.input
    sizes = [one.dim_param or one.dim_value for one in given.type.tensor_type.shape.dim]
    assert sizes == ["batch", 3, 8, 8]


def test_onnx_says_what_it_needs(tmp_path, monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    step, _ = step_of("images")
    with pytest.raises(errors.NotSupported, match=r"onnxscript"):
        tg.export(step, tmp_path / "step.onnx", "onnx")


def test_aoti_gives_the_same(tmp_path):
    step = EvalStep(nn.Sequential(nn.Linear(6, 3), nn.Tanh()).eval())
    step(torch.randn(4, 6))
    path = tmp_path / "step.pt2"
    tg.export(step, path, "aoti", dynamic_batch=True)
    run = aoti(path)
    assert json.loads(run.get_metadata()["torchgraph.json"])["graph"] == "EvalStep"
    for rows in (1, 3, 8):
        x = torch.randn(rows, 6)
        close(run(x)["out"], step.model(x).detach())


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("dynamic", [False, True])
def test_aoti_gives_the_same_of_larger_models(name, dynamic, tmp_path):
    step, make = step_of(name)
    path = tmp_path / "step.pt2"
    tg.export(step, path, "aoti", dynamic_batch=dynamic)
    for rows in (1, 4, 9) if dynamic else (4,):
        x = make(rows)
        close(aoti(path)(x)["out"], step.model(x).detach())


def aoti(path):
    """A reader that knows torch alone."""
    return torch._inductor.aoti_load_package(str(path))
