"""Steps that tests export, and what runs them."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import torchgraph as tg


class Net(nn.Module):
    """Linear, batch norm, dropout if asked for."""

    def __init__(self, dropout: float = 0.0) -> None:
        super().__init__()
        self.first = nn.Linear(6, 12, bias=False)
        self.norm = nn.BatchNorm1d(12)
        self.last = nn.Linear(12, 3)
        self.dropout = dropout

    def forward(self, x: Tensor) -> Tensor:
        hidden = torch.relu(self.norm(self.first(x)))
        return self.last(F.dropout(hidden, self.dropout, self.training))


class TrainStep(tg.Graph):
    """A classifier's step."""

    def __init__(self, model: nn.Module, optimizer: torch.optim.Optimizer, **added: Any) -> None:
        super().__init__()
        self.model = model
        self.add_optimizer(optimizer, **added)

    def build(self, x: Tensor, y: Tensor) -> dict[str, Any]:
        loss = F.cross_entropy(self.model(x), y)
        loss.backward()
        return {"loss": loss, "rows": 8}


class EvalStep(tg.Graph):
    """A model's forward."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def build(self, x: Tensor, *, scale: float = 1.0) -> dict[str, Any]:
        out = self.model(x)
        return {"out": out, "scaled": [out * scale, None]}


def batches(count: int, rows: int = 8) -> list[tuple[Tensor, Tensor]]:
    """Batches for `TrainStep`."""
    return [(torch.randn(rows, 6), torch.randint(0, 3, (rows,))) for _ in range(count)]


def trained(
    optimizer: Callable[[Any], torch.optim.Optimizer], *, dropout: float = 0.0, steps: int = 3
) -> TrainStep:
    """A step that ran a few times."""
    torch.manual_seed(0)
    model = Net(dropout)
    step = TrainStep(model, optimizer(model.parameters()))
    for batch in batches(steps):
        step(*batch)
    return step


def loaded(path: Path) -> Any:
    """The module of an exported program, from its file."""
    with warnings.catch_warnings():  # torch 2.11 warns of how it reads constants
        warnings.filterwarnings("ignore", message="The given buffer is not writable")
        return torch.export.load(path).module()


def assert_same_training(
    graph: tg.Graph,
    module: Callable[..., Any],
    stream: Sequence[Sequence[Tensor]],
    *,
    tolerance: float = 1e-5,
) -> None:
    """Both train on the same stream with the same losses. The random numbers are the same."""
    state = torch.get_rng_state()
    expected = [graph(*batch)["loss"].tolist() for batch in stream]
    torch.set_rng_state(state)
    got = [module(*batch)["loss"].tolist() for batch in stream]
    torch.testing.assert_close(
        torch.tensor(got), torch.tensor(expected), rtol=tolerance, atol=tolerance
    )
    assert expected[0] != expected[-1]


def states_in(path: Path) -> dict[str, torch.Tensor]:
    """The states of a package, read without torchgraph."""
    reader = torch._C.PyTorchFileReader(str(path))
    found = {}
    for line in reader.get_record("torchgraph/states.tsv").decode().splitlines():
        name, _, dtype, shape, _, file = line.split("\t")
        values = numpy.frombuffer(bytearray(reader.get_record(file)), dtype=dtype)
        sizes = [int(size) for size in shape.split(",") if size]
        found[name] = torch.from_numpy(values).view(sizes)
    return found
