"""What Inductor is known to get wrong, compiled for real."""

import pytest
import torch

import torchgraph as tg
from torchgraph.errors import ConfirmWarning
from torchgraph.lower.inductor import job

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(job.cpp_compiler() is None, reason="Inductor needs a C++ compiler"),
]


def of_mean(x):
    means = x.mean(-1)
    return means.argmax(), means.argmin(), means.amax()


def overflowing(x):
    half = x.half()
    return (half * half).float()


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


def test_an_overflow_that_compiled_code_does_not_have():
    graph = tg.step(overflowing)
    graph.config.set_backend("inductor")
    small, large = torch.full((4,), 3.0), torch.full((4,), 300.0)
    for _ in range(8):
        assert torch.equal(graph(small.clone()), overflowing(small))
    with pytest.warns(ConfirmWarning, match="not finite") as caught:
        given = [graph(large.clone()) for _ in range(6)]
    assert len(caught) == 1
    assert all(torch.isinf(one).all() for one in given[1:])  # the 8th by programs is looked at
