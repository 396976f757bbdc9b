"""A recording device in the place of a GPU."""

import pytest
import torch

from tests.replay.recording import Recording
from torchgraph.replay.cuda import graphs


@pytest.fixture
def recording(monkeypatch: pytest.MonkeyPatch) -> list[Recording]:
    """The devices of the test, newest last; programs on the CPU count as being on a GPU."""
    monkeypatch.setattr(graphs, "Cuda", Recording)
    monkeypatch.setattr(graphs, "device_of", lambda program: torch.device("cpu"))
    monkeypatch.setattr(Recording, "made", [])
    return Recording.made
