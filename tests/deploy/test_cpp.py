"""``examples/deploy_cpp``: a C++ program without Python trains with what `tg.export` compiled."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import numpy
import pytest
import torch

import torchgraph as tg
from examples.deploy_cpp import make_step
from tests.deploy.steps import Net, TrainStep, assert_same_training, batches, states_in

SOURCE = Path(__file__).parents[2] / "examples" / "deploy_cpp"
RATE = "optimizer.0.param_groups.0.lr"

pytestmark = pytest.mark.slow


def done(command: list[str], folder: Path) -> str:
    """What a command prints; without Python's or torch's folders among its variables."""
    found = subprocess.run(
        command, cwd=folder, capture_output=True, text=True, check=False, timeout=280
    )
    assert found.returncode == 0, found.stdout + found.stderr
    return found.stdout


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The C++ program, compiled against the torch that is installed."""
    if not (shutil.which("cmake") and shutil.which("g++")):
        pytest.skip("there is no cmake and g++")
    build = tmp_path_factory.mktemp("build")
    prefix = torch.utils.cmake_prefix_path
    done(["cmake", "-S", str(SOURCE), "-B", ".", f"-DCMAKE_PREFIX_PATH={prefix}"], build)
    done(["cmake", "--build", "."], build)
    return build / "train_step"


@pytest.mark.parametrize("optimizer", ["adamw", "sgd"])
def test_it_trains_as_python_does(optimizer, program, tmp_path):
    expected = make_step.main([str(tmp_path), "--steps", "100", "--optimizer", optimizer])
    assert expected[-1] < expected[0]
    step, states = str(tmp_path / "step.pt2"), tmp_path / "states"
    text = done([str(program), step, "batches.bin", "100", str(states)], tmp_path)
    got = [float(line) for line in text.split()]
    torch.testing.assert_close(got, expected, rtol=1e-5, atol=1e-5)
    # And once more in Python, for the states; the first run has left the file as it was.
    twin = make_step.make_step(optimizer)
    for batch in [*make_step.batches(2, seed=1), *make_step.batches(100, seed=2)]:
        twin(*batch)
    for name, value in twin.model.state_dict(prefix="model.").items():
        torch.testing.assert_close(read(states, name, value), value, rtol=1e-4, atol=1e-5)
    slots = twin._runner.live.optimizers[0].state[twin.model[0].weight]
    for name, value in slots.items():
        found = read(states, f"optimizer.0.state.model.0.weight.{name}", value)
        torch.testing.assert_close(found, value, rtol=1e-4, atol=1e-5)


def read(folder: Path, name: str, like: torch.Tensor) -> torch.Tensor:
    """A state that the program wrote."""
    dtype = str(like.dtype).removeprefix("torch.")
    values = numpy.fromfile(folder / f"{name}.bin", dtype=dtype)
    return torch.from_numpy(values).view(like.shape)


def test_a_rate_is_set_on_the_way(program, tmp_path):
    make_step.main([str(tmp_path), "--steps", "20", "--optimizer", "sgd"])
    command = [str(program), "step.pt2", "batches.bin", "20", "states", f"{RATE}=0.001@10"]
    got = [float(line) for line in done(command, tmp_path).split()]
    twin = make_step.make_step("sgd")
    for batch in make_step.batches(2, seed=1):
        twin(*batch)
    expected = []
    for number, batch in enumerate(make_step.batches(20, seed=2)):
        if number == 10:
            twin._runner.live.optimizers[0].param_groups[0]["lr"] = 0.001
        expected.append(twin(*batch).item())
    torch.testing.assert_close(got, expected, rtol=1e-5, atol=1e-5)


def test_python_trains_with_the_package_too(tmp_path):
    step = make_step.make_step("adamw")
    stream = make_step.batches(12, seed=3)
    for batch in stream[:2]:
        step(*batch)
    tg.export(step, tmp_path / "step.pt2", "aoti")
    run = torch._inductor.aoti_load_package(str(tmp_path / "step.pt2"))
    states = states_in(tmp_path / "step.pt2")
    expected = [step(*batch).item() for batch in stream[2:]]
    got = [run(states, *batch).item() for batch in stream[2:]]
    torch.testing.assert_close(got, expected, rtol=1e-5, atol=1e-5)


def test_batch_norm_and_a_scaler_are_compiled(tmp_path):
    torch.manual_seed(0)
    model = Net()
    step = TrainStep(model, torch.optim.AdamW(model.parameters(), lr=0.01))
    step.set_grad_scaler(torch.amp.GradScaler("cpu", init_scale=256.0, growth_interval=3))
    for batch in batches(3):
        step(*batch)
    tg.export(step, tmp_path / "step.pt2", "aoti")
    run = torch._inductor.aoti_load_package(str(tmp_path / "step.pt2"))
    states = states_in(tmp_path / "step.pt2")
    assert_same_training(step, lambda *batch: run(states, *batch), batches(10))
    weight, scale = (states[name].clone() for name in ("model.last.weight", "_train.scaler.scale"))
    run(states, torch.full((8, 6), float("inf")), torch.zeros(8, dtype=torch.int64))
    assert torch.equal(states["model.last.weight"], weight)
    assert torch.equal(states["_train.scaler.scale"], scale / 2)
