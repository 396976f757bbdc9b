"""The functors that CUDA kernel and CPU loop share, run on the CPU as the kernel runs them."""

from __future__ import annotations

import ctypes
import math
import shutil
import subprocess
from pathlib import Path

import pytest
import torch

from torchgraph.passes.fusions.cross_entropy.op import backward, forward

COMPILER = shutil.which("c++") or shutil.which("g++")
pytestmark = pytest.mark.skipif(not COMPILER, reason="there is no C++ compiler")
ROOT = Path(__file__).parents[2]
SOURCE = Path(__file__).with_name("cross_entropy_team.cpp")
HEADERS = ROOT / "torchgraph" / "csrc"
ROWS, CLASSES = 5, 3001


@pytest.fixture(scope="module")
def team(tmp_path_factory):
    library = tmp_path_factory.mktemp("team") / "team.so"
    flags = ["-std=c++20", "-O1", "-ffp-contract=off", "-shared", "-fPIC", f"-I{HEADERS}"]
    subprocess.run([COMPILER, *flags, str(SOURCE), "-o", str(library)], check=True)
    loaded = ctypes.CDLL(str(library))
    number, pointer = ctypes.c_double, ctypes.c_void_p
    loaded.row.argtypes = [
        pointer, pointer, ctypes.c_int64, ctypes.c_int64, number, ctypes.c_int, pointer, pointer
    ]  # fmt: skip
    loaded.gradient.argtypes = [
        pointer, pointer, ctypes.c_int64, ctypes.c_int64, number, number, number, pointer
    ]  # fmt: skip
    loaded.exponentials.argtypes = [pointer, ctypes.c_int64, pointer]
    loaded.exponentials_double.argtypes = [pointer, ctypes.c_int64, pointer]
    return loaded


def address(tensor: torch.Tensor | None) -> int | None:
    return None if tensor is None else tensor.data_ptr()


@pytest.mark.parametrize("threads", [1, 32, 512])
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("weighted", [False, True])
def test_a_team_finds_what_the_loop_finds(team, threads, smoothing, weighted):
    logits = torch.randn(ROWS, CLASSES) * 8
    logits[1, :2000] = -math.inf
    target = torch.randint(2000, CLASSES, (ROWS,))
    weight = torch.rand(CLASSES) + 0.1 if weighted else None
    want, lse, total = forward(logits, target, weight, 0, -100, smoothing)
    grad = torch.randn(ROWS)
    gradients = backward(logits, grad, target, lse, total, weight, 0, -100, smoothing)
    loss, found = torch.zeros((), dtype=torch.float64), torch.zeros((), dtype=torch.float64)
    gradient = torch.empty(CLASSES)
    for row in range(ROWS):
        x, at = logits[row], int(target[row])
        team.row(
            x.data_ptr(), address(weight), CLASSES, at, smoothing, threads,
            loss.data_ptr(), found.data_ptr(),
        )  # fmt: skip
        torch.testing.assert_close(found, lse[row], rtol=1e-6, atol=0)
        torch.testing.assert_close(loss, want[row].double(), rtol=1e-6, atol=0)
        team.gradient(
            x.data_ptr(), address(weight), CLASSES, at, smoothing, float(lse[row]),
            float(grad[row]), gradient.data_ptr(),
        )  # fmt: skip
        assert torch.equal(gradient, gradients[row])  # the same functor, as vector code or not


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_exponential(team, dtype):
    edges = torch.tensor(
        [0.0, -0.0, math.inf, -math.inf, math.nan, 88.7, 88.8, -103.9, -104.1, 1e30]
    )
    x = torch.cat([torch.linspace(-104, 89, 100_000), edges]).to(dtype)
    got = torch.empty_like(x)
    run = team.exponentials if dtype == torch.float32 else team.exponentials_double
    run(x.data_ptr(), len(x), got.data_ptr())
    want = x.double().exp()
    if dtype == torch.float32:
        assert torch.equal(got.isinf(), want.float().isinf())
    assert torch.equal(got.isnan(), want.isnan())
    finite = got.isfinite()
    info = torch.finfo(dtype)
    within = 1.5 * info.eps * want + info.smallest_normal * info.eps
    if dtype == torch.float64:
        within = 2.5 * info.eps * want  # torch's own is within a unit in the last place
    assert bool(((got.double() - want).abs() <= within)[finite].all())
