"""What torch hands to a convolution's backward for its shape alone: memory that nothing fills."""

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.func import functional_call, grad, vmap

import torchgraph as tg
from torchgraph.errors import NoProgram

BACKENDS = ["aten", pytest.param("inductor", marks=pytest.mark.slow)]
NETS = {
    "1d": (lambda: nn.Conv1d(2, 4, 3, padding=1), (2, 9)),
    "2d": (lambda: nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Conv2d(4, 2, 3)), (1, 8, 8)),
    "groups": (lambda: nn.Conv2d(4, 4, 3, groups=2, stride=2, bias=False), (4, 9, 9)),
    "transposed": (lambda: nn.ConvTranspose2d(2, 3, 3, stride=2), (2, 5, 5)),
}


class Convolved(torch.autograd.Function):
    """As the tutorial on fusing has it."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x, weight)
        return F.conv2d(x, weight)

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> Any:
        x, weight = ctx.saved_tensors
        by_input = torch.nn.grad.conv2d_input(x.shape, weight, grads[0])
        return by_input, torch.nn.grad.conv2d_weight(x, weight.shape, grads[0])


def _trained(x: torch.Tensor, weight: torch.Tensor) -> Any:
    x, weight = x.clone().requires_grad_(), weight.clone().requires_grad_()
    return torch.autograd.grad(Convolved.apply(x, weight).square().sum(), (x, weight))


GRADIENTS = {
    "weight": lambda x, weight: torch.nn.grad.conv2d_weight(x, weight.shape, F.conv2d(x, weight)),
    "input": lambda x, weight: torch.nn.grad.conv2d_input(x.shape, weight, F.conv2d(x, weight)),
    "function": _trained,
}


def _check(function: Any, batches: Any, backend: str) -> None:
    step = tg.step(lambda *args: function(*args))
    step.config.set_backend(backend)
    for args in batches:
        got, expected = step(*args), function(*args)
        if backend == "aten":
            torch.testing.assert_close(got, expected, rtol=0, atol=0, check_stride=True)
        else:
            torch.testing.assert_close(got, expected)
    assert "2 by programs, 2 recorded, 0 in eager" in str(step.report())


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("what", GRADIENTS)
def test_gradients_by_name(what, backend):
    batches = [(torch.randn(4, 2, 8, 8), torch.randn(3, 2, 3, 3)) for _ in range(4)]
    _check(GRADIENTS[what], batches, backend)


@pytest.mark.parametrize("net", NETS)
def test_gradients_of_each_sample(net):
    make, shape = NETS[net]
    model = make()
    params = {name: param.detach() for name, param in model.named_parameters()}

    def loss(params: Any, sample: torch.Tensor) -> torch.Tensor:
        return functional_call(model, params, (sample[None],)).square().mean()

    per_sample = vmap(grad(loss, argnums=(0, 1)), in_dims=(None, 0))
    _check(lambda x: per_sample(params, x), [(torch.randn(3, *shape),) for _ in range(4)], "aten")


@pytest.mark.parametrize("mask", [[True, False, False], [False, True, False]])
def test_what_is_read_is_still_looked_at(mask):
    """The operand that the wanted gradient is made of."""

    def backward(x: torch.Tensor, weight: torch.Tensor) -> Any:
        blank = torch.empty(1).expand_as(weight if mask[0] else x)
        operands = (x, blank) if mask[0] else (blank, weight)
        sizes = ([3], [1, 1], [0, 0], [1, 1], False, [0, 0], 1)
        return torch.ops.aten.convolution_backward(F.conv2d(x, weight), *operands, *sizes, mask)

    step = tg.step(backward)
    with pytest.raises(NoProgram, match="no op has filled"):
        step(torch.randn(4, 2, 8, 8), torch.randn(3, 2, 3, 3))


def test_what_was_only_a_shape_is_no_data_later():
    def backward(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        blank = x.new_empty((1, 1, 1, 1)).expand_as(x)
        sizes = ([3], [1, 1], [0, 0], [1, 1], False, [0, 0], 1)
        given = (F.conv2d(x, weight), blank, weight)
        mask = [True, False, False]
        found = torch.ops.aten.convolution_backward(*given, *sizes, output_mask=mask)[0]
        return found + blank

    step = tg.step(backward)
    with pytest.raises(NoProgram, match="no op has filled"):
        step(torch.randn(4, 2, 8, 8), torch.randn(3, 2, 3, 3))
