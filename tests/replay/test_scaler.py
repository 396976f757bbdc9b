"""A grad scaler in a CUDA Graph: the host counts steps when the device has said which it took."""

import pytest
import torch

from tests.features.test_covering import Side, Train as Step, data, eager
from tests.replay import recording as device
from torchgraph.testing import counters

pytestmark = pytest.mark.usefixtures("without_looks")


@pytest.fixture
def asking(recording, monkeypatch):
    """On the CPU, which stands in for a GPU, a flag is read where a GPU chooses with `where`."""
    monkeypatch.setattr(device, "_FORBIDDEN", (torch.ops.aten.nonzero.default,))
    return recording


@pytest.mark.usefixtures("asking")
@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("k", ["1", "2"])
@pytest.mark.parametrize("optimizer", ["SGD, momentum", "AdamW"])
def test_ten_steps_that_overflow_at_first_and_again(optimizer, k, fused):
    row = ("float16 + scaler", k, "no", "no", optimizer, "MLP")
    mine, other = Side(*row), Side(*row)
    graph = Step(mine)
    graph.config.set_cuda_graph("require")
    if fused:
        graph.config.enable_multi_tensor_update()
    skipped = 0
    before = counters.graph_replays
    for number, (x, y) in enumerate(data("MLP")):
        torch.manual_seed(number)
        got = graph(x, y)
        torch.manual_seed(number)
        expected = eager(other, x, y)
        close(got, expected)
        close(mine.model.state_dict(), other.model.state_dict())
        assert mine.scaler.state_dict() == other.scaler.state_dict()
        states = zip(mine.optimizer.state.values(), other.optimizer.state.values(), strict=True)
        for slots, wanted in states:
            if "step" in wanted:
                assert slots["step"] == wanted["step"]
        skipped += bool(graph._runner.programs.last()[0].skipped)
    assert 1 < skipped < 10
    assert counters.graph_replays > before


def close(got, expected):
    torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-6)
