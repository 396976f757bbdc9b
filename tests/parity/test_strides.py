"""Kernels that look at strides see eager's: also those of dims of size 1."""

import pytest
import torch
from torch import nn, optim

import torchgraph as tg
from tests.parity.test_fused import KINDS
from tests.support import thinned
from torchgraph.testing import Setup, assert_parity, counters


class AttentionOfImages(nn.Module):
    """As diffusers has it: the pixels are the tokens, and the result is an image once more."""

    def __init__(self):
        super().__init__()
        self.parts = nn.ModuleList(nn.Linear(8, 8) for _ in range(3))
        self.norm = nn.GroupNorm(2, 8)

    def forward(self, x):
        tokens = x.flatten(2).transpose(1, 2)
        heads = (part(tokens).view(len(x), -1, 2, 4).transpose(1, 2) for part in self.parts)
        made = nn.functional.scaled_dot_product_attention(*heads).transpose(1, 2).flatten(2)
        return self.norm(made.transpose(1, 2).reshape(x.shape) + x)


@pytest.mark.parametrize("batch", [1, 2])
@pytest.mark.parametrize("size", [(3, 4), (4, 1)])
def test_a_group_norm_after_attention(batch, size):
    def make():
        model = AttentionOfImages()
        sgd = optim.SGD(model.parameters(), lr=0.1)
        return Setup(model, sgd, lambda m, x: m(x).pow(3).mean())

    images = [(torch.randn(batch, 8, *size),) for _ in range(2)]
    assert_parity(make, images, configure=lambda config: config.set_backend("aten"))


@pytest.mark.parametrize("layer", [lambda: nn.Linear(4, 4), lambda: nn.Conv2d(3, 4, 2)])
@pytest.mark.parametrize("name", thinned(KINDS, keep=["_fused_adamw", "_fused_sgd"]))
@pytest.mark.filterwarnings("ignore:grad and param do not obey:UserWarning")
def test_a_parameter_that_lies_otherwise_than_its_gradient_and_slots(name, layer):
    def losses(form):
        torch.manual_seed(0)
        model = layer()
        optimizer = KINDS[name](model.parameters(), lr=0.1, fused=True)

        def step(x):
            loss = model(x).square().mean()
            loss.backward()  # into the gradient of the calls before
            optimizer.step()
            return loss.detach()

        made, found = form(step), []
        for number in range(12):
            if number == 6:
                weight = model.weight
                weight.data = weight.data.transpose(0, 1).contiguous().transpose(0, 1)
            x = torch.randn(2, 4) if isinstance(model, nn.Linear) else torch.randn(2, 3, 4, 4)
            found.append(made(x).item())
        return found

    expected = losses(lambda step: step)
    with counters.expect(replays=7):
        assert losses(tg.step) == expected
