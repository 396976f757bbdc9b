"""What Inductor is known to get wrong, compiled for real."""

import math

import pytest
import torch
from torch import nn

import torchgraph as tg
from torchgraph.lower.inductor import job

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(job.cpp_compiler() is None, reason="Inductor needs a C++ compiler"),
]


def of_mean(x):
    means = x.mean(-1)
    return means.argmax(), means.argmin(), means.amax()


def rounded(x):
    half, brain = x.half(), x.bfloat16()
    sums = half.sum(-1)
    return (half * half).float(), x - brain.float(), half == x, (brain + 1 - 1) * 2, sums * sums


def odd(x):
    image = x.view(1, 2, 8, 8).mT
    places = nn.functional.max_pool2d(image, 6, return_indices=True)[1]
    byte = x.abs().to(torch.uint8)[0, :37]
    return x // 0.1, x * 0, nn.functional.softshrink(x), places, byte.min(), x.half() % 1.7


def equal(one, other):
    return torch.equal(one.isnan(), other.isnan()) and torch.equal(
        *map(torch.nan_to_num, (one, other))
    )


def test_a_place_among_all_elements_is_never_compiled():
    graph = tg.step(of_mean)
    graph.config.set_backend("inductor")
    graph.config.set_look_again("off")
    for seed in range(6):
        torch.manual_seed(seed)
        x = torch.randn(4, 4, 8, 8).to(memory_format=torch.channels_last)
        got, expected = graph(x), of_mean(x)
        assert all(map(torch.equal, got[:2], expected[:2]))
    assert graph.report().backend == "inductor"


@pytest.mark.parametrize("step", [rounded, odd])
def test_compiled_code_computes_what_eager_does(step):
    graph = tg.step(step)
    graph.config.set_backend("inductor")
    graph.config.set_look_again("off")
    plain = torch.linspace(0.5, 3, 128).view(2, 64)
    special = torch.randn(2, 64, generator=torch.Generator().manual_seed(0)) * 300
    special[0, :4] = torch.tensor([math.nan, math.inf, -0.0, 1.0])
    for x in (plain, plain, plain, special, special):
        assert all(map(equal, graph(x.clone()), step(x)))
    assert graph.report().backend == "inductor"
