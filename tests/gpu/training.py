"""One training run in two forms, an eager loop and a Graph, with all that happens in real ones.

What happens is in a `Scenario`; `run` drives either `Side` through it and returns a `Trace`.
"""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any, final

import torch
from torch import Tensor, nn, optim
from torch.nn import functional as F

import torchgraph as tg
from benchmarks.cases import mlp, resnet18
from examples.models import GPT

from .machine import Machine

STEPS = 30
ROWS, FEWER_ROWS = 12, 6
"""Of a batch, and of one of the second shape; three micro-batches divide both."""
DECAY_AT, JOINS_AT, SECOND_SHAPE = 7, 8, range(10, 20)
KEPT_AT, LOADED_AT = 12, 18
OVERFLOWS = (11, 12)
EVALUATED = range(5, STEPS, 2)
CLASSES = 10


class Recurrent(nn.Module):
    """Two layers of LSTM over embedded tokens."""

    def __init__(self, width: int = 64) -> None:
        super().__init__()
        self.embedding = nn.Embedding(CLASSES, width)
        self.lstm = nn.LSTM(width, width, 2, batch_first=True)
        self.head = nn.Linear(width, CLASSES)

    def forward(self, tokens: Tensor) -> Tensor:
        """Tokens (N, L) to logits (N, L, C)."""
        logits: Tensor = self.head(self.lstm(self.embedding(tokens))[0])
        return logits


class Joining(nn.Module):
    """A model with a parameter that takes part, and so has a gradient, only once ``joins``."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner
        self.offset = nn.Parameter(torch.full((CLASSES,), 0.1))
        self.joins = False

    def forward(self, x: Tensor) -> Tensor:
        """The logits."""
        logits: Tensor = self.inner(x)
        return logits + self.offset if self.joins else logits


@dataclass(frozen=True)
class Model:
    """A model, and what one row of its batches is: numbers of a shape, or so many tokens."""

    make: Callable[[], nn.Module]
    row: tuple[int, ...]
    tokens: bool = False

    def batch(self, rows: int, random: torch.Generator) -> tuple[Tensor, Tensor]:
        """Random inputs and classes."""
        if self.tokens:
            ids = torch.randint(CLASSES, (rows, self.row[0] + 1), generator=random)
            return ids[:, :-1].contiguous(), ids[:, 1:].contiguous()
        x = torch.randn(rows, *self.row, generator=random, dtype=torch.float64)
        return x, torch.randint(CLASSES, (rows,), generator=random)


MODELS = {
    "mlp": Model(lambda: mlp(3, inputs=32, width=64), (32,)),
    "gpt": Model(
        lambda: GPT(CLASSES, block_size=32, layers=2, width=64, heads=4, dropout=0.1), (32,), True
    ),
    "resnet18": Model(lambda: resnet18(8), (3, 16, 16)),
    "lstm": Model(Recurrent, (16,), True),
}
OPTIMIZERS: dict[str, Callable[[Any, Machine], optim.Optimizer]] = {
    "AdamW": lambda p, on: optim.AdamW(p, lr=3e-3, weight_decay=0.1),
    "AdamW capturable": lambda p, on: optim.AdamW(
        p, lr=3e-3, weight_decay=0.1, capturable=not on.dry
    ),
    "SGD": lambda p, on: optim.SGD(p, lr=0.05, momentum=0.9, weight_decay=0.01),
}


@dataclass(frozen=True)
class Scenario:
    """A model in training, and the events of its run.

    Attributes:
        decay: the weight decay is changed by hand at a step.
        overflow: a GradScaler, and batches with an infinity.
        second_shape: some batches have fewer rows.
        joins: a parameter has no gradient in the first steps.
        restore: ``state_dict()`` is taken in the middle and loaded some steps later.
        evaluate: the model is evaluated between steps.
    """

    name: str
    model: str = "mlp"
    dtype: torch.dtype = torch.float64
    amp: torch.dtype | None = None
    optimizer: str = "AdamW"
    schedule: bool = False
    decay: bool = False
    overflow: bool = False
    micro_batches: int = 1
    clip: float | None = None
    second_shape: bool = False
    joins: bool = False
    restore: bool = False
    evaluate: bool = False

    def batches(self, on: Machine, seed: int) -> Iterator[tuple[Tensor, Tensor]]:
        """One for each step, the same for each side."""
        random = torch.Generator().manual_seed(seed)
        for number in range(STEPS):
            rows = FEWER_ROWS if self.second_shape and number in SECOND_SHAPE else ROWS
            x, y = MODELS[self.model].batch(rows, random)
            x = x.to(self.dtype) if x.is_floating_point() else x
            if self.overflow and number in OVERFLOWS:
                x[0] = torch.inf
            yield x.to(on.device), y.to(on.device)


@dataclass
class Trace:
    """The results of a run: tensors of each step, and all that there is at its end, by name."""

    losses: list[Tensor] = field(default_factory=list)
    evaluations: list[Tensor] = field(default_factory=list)
    states: dict[str, Tensor] = field(default_factory=dict)
    settings: dict[str, Any] = field(default_factory=dict)
    """Rates, decays, counts, the scale: equal to the last bit, or something was missed."""
    random: Tensor = field(default_factory=lambda: torch.empty(0))


class Side(ABC):
    """A model in training with its optimizer, scheduler and scaler, as ``scenario`` has them."""

    def __init__(self, scenario: Scenario, on: Machine) -> None:
        self.scenario = scenario
        self.on = on
        self.model = Joining(MODELS[scenario.model].make()).to(on.device, scenario.dtype)
        self.optimizer = OPTIMIZERS[scenario.optimizer](self.model.parameters(), on)
        self.scheduler = (
            optim.lr_scheduler.ExponentialLR(self.optimizer, 0.97) if scenario.schedule else None
        )
        self.scaler = (
            torch.amp.GradScaler(on.device.type, init_scale=1024.0, growth_interval=4)
            if scenario.overflow
            else None
        )

    @abstractmethod
    def train(self, x: Tensor, y: Tensor) -> Tensor:
        """One step; the losses of its micro-batches, or the one loss."""

    @abstractmethod
    def evaluate(self, x: Tensor) -> Tensor:
        """The logits of a model that is in ``eval()``."""

    @abstractmethod
    def state_dict(self) -> Any:
        """All that training goes on from."""

    @abstractmethod
    def load_state_dict(self, state: Any) -> None:
        """Go on from there."""


def loss_of(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    """The mean cross-entropy over all places."""
    return F.cross_entropy(model(x).flatten(0, -2), y.flatten())


@final
class Eager(Side):
    """The loop as one writes it."""

    def train(self, x: Tensor, y: Tensor) -> Tensor:
        """See `Side`."""
        k, amp = self.scenario.micro_batches, self.scenario.amp
        losses = []
        for part_x, part_y in zip(x.chunk(k), y.chunk(k), strict=True):
            with torch.autocast(x.device.type, amp) if amp else nullcontext():
                loss = loss_of(self.model, part_x, part_y)
            share = loss if k == 1 else loss / k
            (share if self.scaler is None else self.scaler.scale(share)).backward()
            losses.append(loss.detach())
        if self._stepped() and self.scheduler is not None:
            self.scheduler.step()
        self.optimizer.zero_grad()
        return losses[0] if k == 1 else torch.stack(losses)

    def _stepped(self) -> bool:
        """Clip and update; False where the scaler skipped the update."""
        if self.scaler is not None:
            self.scaler.unscale_(self.optimizer)
        if self.scenario.clip is not None:
            nn.utils.clip_grad_norm_(self.model.parameters(), self.scenario.clip)
        if self.scaler is None:
            self.optimizer.step()
            return True
        before = self.scaler.get_scale()
        self.scaler.step(self.optimizer)
        self.scaler.update()
        return self.scaler.get_scale() >= before

    def evaluate(self, x: Tensor) -> Tensor:
        """See `Side`."""
        with torch.no_grad():
            logits: Tensor = self.model(x)
        return logits

    def state_dict(self) -> Any:
        """See `Side`."""
        parts = (self.model, self.optimizer, self.scheduler, self.scaler)
        states = [None if part is None else copy.deepcopy(part.state_dict()) for part in parts]
        return states, torch.get_rng_state(), self.on.random_state()

    def load_state_dict(self, state: Any) -> None:
        """See `Side`."""
        states, random, on_device = state
        parts = (self.model, self.optimizer, self.scheduler, self.scaler)
        for part, own in zip(parts, states, strict=True):
            if part is not None:
                part.load_state_dict(copy.deepcopy(own))
        torch.set_rng_state(random)
        self.on.set_random_state(on_device)


class TrainGraph(tg.Graph):
    """Forward, backward and update of a side."""

    def __init__(self, side: Side) -> None:
        super().__init__()
        self.model = side.model
        self.add_optimizer(side.optimizer, lr_sch=side.scheduler)
        if side.scaler is not None:
            self.set_grad_scaler(side.scaler)
        self.config.set_backend("aten")
        self.config.set_cuda_graph("require")
        if side.scenario.amp is not None:
            self.config.enable_amp(dtype=side.scenario.amp)
        if side.scenario.micro_batches > 1:
            self.config.set_gradient_accumulation_steps(side.scenario.micro_batches)
        if side.scenario.clip is not None:
            self.config.set_clip_grad_norm(side.scenario.clip)

    def build(self, x: Tensor, y: Tensor) -> Tensor:
        """The loss of a batch."""
        loss = loss_of(self.model, x, y)
        loss.backward()
        return loss


class EvalGraph(tg.Graph):
    """The logits of a side's model."""

    def __init__(self, side: Side) -> None:
        super().__init__()
        self.model = side.model
        self.config.set_backend("aten")
        self.config.set_cuda_graph("require")

    def build(self, x: Tensor) -> Tensor:
        """The logits of a batch."""
        with torch.no_grad():
            logits: Tensor = self.model(x)
        return logits


@final
class Graphed(Side):
    """Through Graphs, as CUDA Graphs."""

    def __init__(self, scenario: Scenario, on: Machine) -> None:
        super().__init__(scenario, on)
        self.graph = TrainGraph(self)
        self._evaluation = EvalGraph(self)

    def train(self, x: Tensor, y: Tensor) -> Tensor:
        """See `Side`."""
        loss: Tensor = self.graph(x, y)
        return loss.detach()

    def evaluate(self, x: Tensor) -> Tensor:
        """See `Side`."""
        logits: Tensor = self._evaluation(x)
        return logits

    def state_dict(self) -> Any:
        """See `Side`."""
        return copy.deepcopy(self.graph.state_dict())

    def load_state_dict(self, state: Any) -> None:
        """See `Side`."""
        self.graph.load_state_dict(state)

    def close(self) -> None:
        """Give the memory of the CUDA Graphs back."""
        self.graph.close()
        self._evaluation.close()

    def statuses(self) -> dict[str, str]:
        """Whether the Graphs that were called are CUDA Graphs, in words."""
        found = {"training": self.graph.report().cuda_graph}
        if self.scenario.evaluate:
            found["evaluation"] = self._evaluation.report().cuda_graph
        return found


def run(side: Side, seed: int) -> Trace:
    """Train through the side's scenario."""
    scenario, on, trace, kept = side.scenario, side.on, Trace(), None
    torch.manual_seed(seed)
    for number, (x, y) in enumerate(scenario.batches(on, seed)):
        if scenario.decay and number == DECAY_AT:
            for group in side.optimizer.param_groups:
                group["weight_decay"] = 0.5
        if scenario.joins and number == JOINS_AT:
            side.model.joins = True
        if scenario.restore and number == KEPT_AT:
            kept = side.state_dict()
        if scenario.restore and number == LOADED_AT:
            side.load_state_dict(kept)
        if scenario.evaluate and number in EVALUATED:
            side.model.eval()
            trace.evaluations.append(side.evaluate(x).clone())
            side.model.train()
        trace.losses.append(side.train(x, y).clone())
    on.wait()
    trace.random = on.random_state()
    _states(side, trace)
    return trace


def _states(side: Side, trace: Trace) -> None:
    for name, tensor in side.model.state_dict().items():
        trace.states[f"model.{name}"] = tensor.clone()
    names: dict[Tensor, str] = {
        parameter: name for name, parameter in side.model.named_parameters()
    }
    for parameter, slots in side.optimizer.state.items():
        for slot, value in slots.items():
            # A counter lies on the CPU or on the GPU, as the optimizer likes: its value counts.
            if slot == "step":
                trace.settings[f"{names[parameter]}.step"] = float(value)
            elif isinstance(value, Tensor):
                trace.states[f"optimizer.{names[parameter]}.{slot}"] = value.clone()
    for number, group in enumerate(side.optimizer.param_groups):
        trace.settings[f"lr {number}"] = float(group["lr"])
        trace.settings[f"weight_decay {number}"] = float(group["weight_decay"])
    if side.scaler is not None:
        trace.settings["scale"] = side.scaler.get_scale()
