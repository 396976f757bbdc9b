"""What Inductor needs, said before anything is compiled."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import torchgraph as tg
from torchgraph.errors import BackendWarning


class Predict(tg.Graph):
    def __init__(self) -> None:
        super().__init__()
        self.model = nn.Linear(3, 2)
        self.config.set_backend("inductor")

    def build(self, x: torch.Tensor) -> torch.Tensor:
        return self.model(x)


@pytest.mark.parametrize(
    ("variable", "off"),
    [
        ("TORCHINDUCTOR_FORCE_DISABLE_CACHES", "1"),
        ("TORCH_COMPILE_FORCE_DISABLE_CACHES", "1"),
        ("TORCHINDUCTOR_FX_GRAPH_CACHE", "0"),
        ("TORCHINDUCTOR_AUTOGRAD_CACHE", "0"),
    ],
)
def test_without_its_caches_inductor_cannot_hand_over_code(
    variable: str, off: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(variable, off)
    graph = Predict()
    x = torch.randn(4, 3)
    with pytest.warns(BackendWarning, match=f"{variable}={off} takes the caches away"):
        assert torch.equal(graph(x), graph.model(x))
