"""What CUDA kernels share with the CPU's: functors, against the vector code that runs here."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
from pathlib import Path

import pytest
import torch

from torchgraph import _extension
from torchgraph.passes.fusions.bce_mean import op as bce

HERE = Path(__file__).parent
COMPILER = shutil.which("c++") or shutil.which("g++")
LIBRARY = _extension.path("cpu")
VARIANTS = 14
SPECIAL = (float("nan"), float("inf"), -float("inf"), 0.0, -0.0, 1e-45, 3e38, -1e-39)

pytestmark = [
    pytest.mark.skipif(not COMPILER, reason="there is no C++ compiler"),
    pytest.mark.skipif(LIBRARY is None, reason="the compiled library is not there"),
]


@pytest.fixture(scope="module")
def functors(tmp_path_factory):
    assert _extension.load()
    built = tmp_path_factory.mktemp("functors") / "functors.so"
    sources = HERE.parents[1] / "torchgraph" / "csrc"
    flags = ["-std=c++20", "-O1", "-fPIC", "-shared", "-ffp-contract=off", f"-I{sources}"]
    files = [str(HERE / "functors.cpp"), str(LIBRARY)]
    subprocess.run([COMPILER, *flags, *files, "-o", str(built)], check=True)
    return ctypes.CDLL(str(built))


def pointer(tensor: torch.Tensor) -> ctypes.c_void_p:
    return ctypes.c_void_p(tensor.data_ptr())


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("variant", range(VARIANTS))
def test_the_loops_do_what_the_functors_say(functors, variant, dtype):
    compare = functors.differing_f32 if dtype == torch.float32 else functors.differing_f64
    compare.restype = ctypes.c_int64
    numbers = (ctypes.c_double * 5)(0.0123, 0.87, 0.984, 1e-3, 0.0345)
    for size in (1, 7, 64, 1023):
        for flags in range(16):
            tensors = [torch.randn(size, dtype=dtype) for _ in range(5)]
            for tensor in tensors[3:]:
                tensor.abs_().add_(1.0)
            special = torch.tensor(SPECIAL, dtype=dtype)[: size // 2]
            tensors[1][: len(special)] = special
            wrong = compare(
                variant,
                numbers,
                flags,
                flags % 3,
                ctypes.c_double(flags + 1.0),
                *map(pointer, tensors),
                ctypes.c_int64(size),
            )
            assert wrong == 0, (size, flags)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_loops_of_binary_cross_entropy_too(functors, dtype):
    compute = functors.bce_f32 if dtype == torch.float32 else functors.bce_f64
    for size in (1, 7, 64, 1023, 5000):
        x, target = 5 * torch.randn(size, dtype=dtype), torch.rand(size, dtype=dtype)
        losses, wanted = torch.empty_like(x), torch.empty_like(x)
        compute(*map(pointer, (x, target, losses, wanted)), ctypes.c_int64(size))
        loss = bce.forward(x, target)
        torch.testing.assert_close(loss.double(), losses.double().mean(), rtol=1e-7, atol=0)
        assert torch.equal(bce.backward(torch.ones((), dtype=dtype), x, target), wanted)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_every_16_bit_number_is_widened_as_torch_does(functors, dtype):
    bits = torch.arange(-(2**15), 2**15, dtype=torch.int16)
    wanted = bits.view(dtype).float()
    got = torch.empty_like(wanted)
    widen = functors.widen_half if dtype == torch.float16 else functors.widen_bfloat16
    widen(pointer(bits), pointer(got), ctypes.c_int64(len(bits)))
    number = ~wanted.isnan()
    assert torch.equal(got.isnan(), wanted.isnan())
    assert torch.equal(got.view(torch.int32)[number], wanted.view(torch.int32)[number])


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_floats_are_narrowed_as_torch_does(functors, dtype):
    # Every exponent, and the low bits that decide how to round.
    high = torch.arange(0, 2**16, dtype=torch.int64) << 16
    low = torch.tensor([0, 1, 0x7FFF, 0x8000, 0x8001, 0xFFFF, 0x0FFF, 0x1000, 0x1001, 0xF000])
    values = (high[:, None] + low).flatten().to(torch.int32).view(torch.float32)
    wanted = values.to(dtype)
    got = torch.empty_like(wanted)
    narrow = functors.narrow_half if dtype == torch.float16 else functors.narrow_bfloat16
    narrow(pointer(values), pointer(got), ctypes.c_int64(len(values)))
    number = ~wanted.isnan()
    assert torch.equal(got.isnan(), wanted.isnan())
    assert torch.equal(got.view(torch.int16)[number], wanted.view(torch.int16)[number])
