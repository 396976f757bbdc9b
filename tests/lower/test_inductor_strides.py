"""Attention whose strides Inductor's decompositions change: compiled; and what a failure says."""

import re

import pytest
import torch
from torch import nn, optim

from torchgraph.errors import BackendWarning
from torchgraph.lower.inductor import job
from torchgraph.lower.inplace.layouts import Layouts
from torchgraph.testing import Setup, assert_parity

pytestmark = pytest.mark.skipif(
    job.cpp_compiler() is None, reason="Inductor needs a C++ compiler, and there is none here"
)


class Attention(nn.Module):
    """Dropout in it takes the product apart, whose key comes out of a cache: as in GPT-2."""

    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(8, 24), nn.Linear(8, 8)

    def forward(self, x):
        heads = self.first(x).split(8, 2)
        q, k, v = (part.view(2, 6, 2, 4).transpose(1, 2) for part in heads)
        k, v = (torch.cat([part[:, :, :0], part], 2) for part in (k, v))
        made = nn.functional.scaled_dot_product_attention(q, k, v, dropout_p=0.1, is_causal=True)
        return self.last(made.transpose(1, 2).reshape(2, 6, 8))


def attention():
    model = Attention()
    return Setup(model, optim.SGD(model.parameters(), lr=0.1), lambda m, x: m(x).square().mean())


def check_attention():
    return assert_parity(
        attention,
        [(torch.randn(2, 6, 8),) for _ in range(3)],
        rtol=1e-5,
        atol=1e-6,
        configure=lambda config: config.set_backend("inductor"),
    )


@pytest.mark.slow
def test_strides_that_a_decomposition_changes(tmp_path, monkeypatch):
    monkeypatch.setenv("TORCHGRAPH_CACHE_DIR", str(tmp_path))
    assert check_attention().report().backend == "inductor"


def test_a_failed_compilation_says_which_op_of_which_line(tmp_path, monkeypatch):
    monkeypatch.setenv("TORCHGRAPH_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(Layouts, "written", lambda self, node, args: None)
    with pytest.warns(BackendWarning) as seen:
        graph = check_attention()
    (message,) = (str(one.message) for one in seen)
    assert re.search(
        r"stays on the aten backend. Inductor cannot compile aten.(?:view|_reshape_alias).default"
        r"\(f32\[2, 2, 4, 6\]"
        r".*, \[4, 4, 6\].*\).* \(\w+\): ValueError: Cannot view a tensor .*\n"
        r"  at .*test_inductor_strides.py:\d+ in forward: made = ",
        message,
    )
    assert "tlparse" not in message
    assert graph.report().backend.startswith("aten (inductor failed: Inductor cannot compile aten")
