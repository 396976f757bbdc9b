"""No region relies on how the values made in it lie in memory: each here is laid out at random."""

import pytest
import torch
from torch import nn, optim
from torch.nn import functional as F

from torchgraph.testing import Setup, assert_parity

pytestmark = pytest.mark.usefixtures("in_any_layout", "doubles")


@pytest.fixture
def doubles():
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


def heads(x, w):
    """Attention as transformers writes it; the mask of the dropout is eager's."""
    q, k, v = (part.view(2, 6, 3, 4).transpose(1, 2) for part in (x @ w).split(12, dim=2))
    weights = F.dropout((q @ k.transpose(2, 3)).softmax(-1), 0.3)
    return (weights @ v).transpose(1, 2).reshape(2, 6, 12).contiguous().view(-1, 6)


def chunks(x, w):
    y = (x @ w).transpose(1, 2)
    size, (a, b, c) = y.shape, y.stride()
    return y.as_strided((size[0], size[1] // 2, 2, 3), (a, 2 * b, b, c), y.storage_offset())


def overlapping(x, w):
    y = (x @ w)[1:]
    return y.as_strided((4, 8), (3, 1), y.storage_offset() + 2) * torch.arange(8.0)


def rotated(x, w):
    y = torch.view_as_complex((x @ w).view(2, 6, 18, 2))
    return torch.view_as_real(y * torch.polar(torch.ones(18), torch.arange(18.0))).flatten(2)


def bits(x, w):
    y = x @ w
    signs = y.view(torch.int32).view(2, 6, 36, 2)[..., 1].sign()
    return y * signs


def distances(x, w):
    y = (x @ w).transpose(1, 2)
    return torch.cdist(y, y + 1, p=1.0)


def windows(x, w):
    y = (x @ w).unflatten(2, (6, 6)).permute(0, 3, 1, 2)
    product = torch.einsum("bchw,bdhw->bcd", y, y)
    return product.sum() + F.unfold(y, 3).square() + y.unfold(2, 3, 2).mean()


def scattered(x, w):
    y = x @ w
    z = torch.as_strided_scatter(y, y.new_ones(2, 3), (2, 3), (40, 5), 1)
    return z * torch.arange(36.0)


def normed(x, w):
    y = (x @ w).view(2, 6, 3, 12).transpose(1, 2)
    y = F.scaled_dot_product_attention(y, y, y)[:1].transpose(1, 2).reshape(1, 6, -1)
    return F.group_norm(y, 3)


class Written(nn.Module):
    def __init__(self, rule):
        super().__init__()
        self.rule = rule
        self.w = nn.Parameter(torch.randn(5, 36))

    def forward(self, x):
        return self.rule(x, self.w)


RULES = (heads, chunks, overlapping, rotated, bits, distances, windows, scattered, normed)


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.__name__)
def test_a_step_is_eagers(rule, in_any_layout):
    def make():
        model = Written(rule)
        sgd = optim.SGD(model.parameters(), lr=0.1)
        return Setup(model, sgd, lambda m, x: (m(x) ** 2).mean())

    graph = assert_parity(
        make,
        [(torch.randn(2, 6, 5),) for _ in range(3)],
        rtol=1e-9,
        atol=1e-12,
        configure=lambda config: config.set_backend("inductor"),
    )
    assert graph.report().backend == "inductor"
    assert in_any_layout[-1].regions
