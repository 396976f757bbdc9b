"""Complex numbers: a product written over its factor rounds otherwise; eager's form is run."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from tests.support import thinned
from torchgraph.testing import Setup, assert_parity

SHAPE = (3, 8, 5)


class Waves(nn.Module):
    """Products of both forms, over temporaries whose memory is laid out in another order."""

    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()
        self.left = nn.Parameter(torch.randn(SHAPE[::-1], dtype=dtype))
        self.right = nn.Parameter(torch.randn(SHAPE, dtype=dtype))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        turned = (x + self.left).permute(2, 1, 0)
        product = turned.exp() * self.right
        quotient = product.sin() / (self.right + 3)
        squashed = quotient.tanh().sigmoid()
        written = (squashed + x.permute(2, 1, 0)).clone().mul_(self.right).div_(turned + 3)
        written.addcmul_(quotient, self.right, value=0.3)
        return torch.view_as_real(written.mul(product.cos())).pow(2).sum((0, 1, 3))


@pytest.mark.parametrize(
    "dtype", thinned([torch.complex64, torch.complex128], keep=[torch.complex64])
)
@pytest.mark.parametrize(
    "name", thinned(["SGD", "Adam", "AdamW", "Adagrad"], keep=["SGD", "AdamW"])
)
def test_steps_are_bitwise_eager(name: str, dtype: torch.dtype) -> None:
    def make() -> Setup:
        model = Waves(dtype)
        optimizer = getattr(torch.optim, name)(model.parameters(), lr=0.01, weight_decay=0.1)
        return Setup(model, optimizer, lambda m, x: m(x).mean())

    batches = [(torch.randn(SHAPE[::-1], dtype=dtype) / 4,) for _ in range(3)]
    assert_parity(make, batches)


class Conjugates(nn.Module):
    """A conjugate view is read after the memory that it shows was written."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(SHAPE, dtype=torch.complex64))
        self.register_buffer("mean", torch.zeros(SHAPE, dtype=torch.complex64))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        written = (x * self.weight).clone()
        conjugate = written.conj()
        written.mul_(self.weight.detach())
        with torch.no_grad():
            self.mean.lerp_(conjugate, 0.1)
        return torch.view_as_real(conjugate * x).pow(2).sum()


def test_a_conjugate_view_of_memory_that_is_written() -> None:
    def make() -> Setup:
        model = Conjugates()
        return Setup(model, torch.optim.SGD(model.parameters(), lr=0.01), lambda m, x: m(x))

    assert_parity(make, [(torch.randn(SHAPE, dtype=torch.complex64) / 4,) for _ in range(3)])


class Parts(nn.Module):
    """The real and the imaginary part are written, the whole is read."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(SHAPE, dtype=torch.complex64))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        z = (x * self.weight).clone()
        z.real.mul_(0.5)
        z.imag[1:].add_(z.real[1:] * 0.3)
        z.imag[0] = 0
        return (z * z.conj()).real.sum()


def test_the_parts_of_complex_numbers_are_written() -> None:
    def make() -> Setup:
        model = Parts()
        return Setup(model, torch.optim.AdamW(model.parameters(), lr=0.01), lambda m, x: m(x))

    assert_parity(make, [(torch.randn(SHAPE, dtype=torch.complex64) / 4,) for _ in range(3)])
