"""Kernels that look at strides see eager's: also those of dims of size 1."""

import pytest
import torch
from torch import nn, optim

from torchgraph.testing import Setup, assert_parity


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
