"""cuDNN's choice of algorithms: set while the Graph runs, and put back."""

import pytest
import torch
from torch import nn

import torchgraph as tg
from tests.support import settle
from torchgraph.errors import BackendWarning
from torchgraph.replay import cudnn


class Convolve(tg.Graph):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(2, 3, 3)

    def build(self, x):
        return self.conv(x)


@pytest.mark.parametrize("before", [True, False])
@pytest.mark.parametrize(("heuristic", "inside"), [(True, False), (False, True)])
def test_it_is_put_back(before, heuristic, inside, monkeypatch):
    monkeypatch.setattr(torch.backends.cudnn, "benchmark", before)
    with cudnn.chosen(heuristic):
        assert torch.backends.cudnn.benchmark is inside
    assert torch.backends.cudnn.benchmark is before
    with pytest.raises(KeyError), cudnn.chosen(heuristic):
        raise KeyError
    assert torch.backends.cudnn.benchmark is before


def test_without_a_gpu_a_warning_says_so():
    graph = Convolve()
    graph.config.enable_cudnn_conv_heuristic_search_algo()
    with pytest.warns(BackendWarning, match="no effect"):
        settle(graph, torch.ones(1, 2, 4, 4))
    graph(torch.ones(1, 2, 4, 4))


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU here")
@pytest.mark.parametrize("mode", [True, False])
def test_on_a_gpu(mode, monkeypatch):
    graph = Convolve()
    graph.conv.to("cuda")
    graph.config.enable_cudnn_conv_heuristic_search_algo(mode)
    x = torch.ones(1, 2, 4, 4, device="cuda")
    torch.testing.assert_close(graph(x), graph.conv(x))
    assert torch.backends.cudnn.benchmark is False
