"""Gradients that are parts of one tensor, as those of biases that are concatenated."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import torchgraph as tg


class Attention(nn.Module):
    """With a bias for queries and values alone, as BEiT's, EVA's and Swin V2's."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Linear(4, 12, bias=False)
        self.q_bias, self.v_bias = nn.Parameter(torch.zeros(4)), nn.Parameter(torch.zeros(4))
        self.register_buffer("k_bias", torch.zeros(4), persistent=False)

    def forward(self, x):
        bias = torch.cat((self.q_bias, self.k_bias, self.v_bias))
        q, k, v = F.linear(x, self.qkv.weight, bias).chunk(3, -1)
        return F.scaled_dot_product_attention(q, k, v)


def trained(wrap, every, backend):
    torch.manual_seed(0)
    model = Attention()
    optimizer = torch.optim.AdamW(model.parameters())
    found = []

    def body(x, cleared):
        if cleared:
            optimizer.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        return loss.detach()

    step = wrap(body)
    if step is not body:
        step.config.set_backend(backend)
    for call in range(12):
        loss = step(torch.randn(2, 5, 4), call % every == 0)
        gradients = [parameter.grad.clone() for parameter in model.parameters()]
        found += [loss, *gradients, *(p.detach().clone() for p in model.parameters())]
        model.q_bias.grad.mul_(2)
    return found, step


@pytest.mark.parametrize("every", [1, 2])
def test_gradients_that_are_parts_of_one(every):
    expected, _ = trained(lambda body: body, every, "")
    found, step = trained(tg.step, every, "aten")
    assert all(map(torch.equal, expected, found))
    assert every > 1 or step.report().calls.programs
