"""MobileNetV2 on handwritten digits: eager PyTorch and a Graph, side by side.

    make demo

Two copies of one model get the same batches, the same AdamW and the same one-cycle schedule; one
is trained by the usual eager loop, the other by a Graph whose every call is one training step.
On the CPU the two must agree in every bit: each loss and, at the end, each parameter and buffer.
On a GPU convolutions may add up in another order from run to run, so that there "the same" means
that the mean losses of each epoch differ by at most `GPU_TOLERANCE`.

Before the last epoch the graph's `state_dict()` is saved. Afterwards a new Graph, around a new
model and a new optimizer, loads the file and repeats that epoch: it must end where the first did.
"""

import argparse
import copy
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import torch
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim import AdamW, Optimizer
from torch.optim.lr_scheduler import LRScheduler, OneCycleLR

import torchgraph as tg
from examples.data import digits
from examples.models import MobileNetV2

GPU_TOLERANCE = 0.05
ACCURACY_WANTED = 0.97

Batches = list[tuple[Tensor, Tensor]]
Step = Callable[..., Tensor]


class TrainGraph(tg.Graph):
    """One training step: what `build` says, then AdamW, then the schedule."""

    def __init__(self, model: nn.Module, optimizer: Optimizer, scheduler: LRScheduler) -> None:
        super().__init__()
        self.model = model
        self.add_optimizer(optimizer, lr_sch=scheduler)
        self.config.set_backend("aten")  # the backend that promises equal bits

    def build(self, images: Tensor, labels: Tensor) -> Tensor:
        loss = F.cross_entropy(self.model(images), labels)
        loss.backward()
        return loss


class EvalGraph(tg.Graph):
    """The predicted digits."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def build(self, images: Tensor) -> Tensor:
        return self.model(images).argmax(1)


class RandomStream:
    """A place of one's own in torch's random sequence.

    Both contenders draw dropout masks from torch's global generators. Each does so within its own
    stream, so that neither moves the other.
    """

    def __init__(self, seed: int, device: torch.device) -> None:
        self.cuda = device.type == "cuda"
        outside = self._now()
        torch.manual_seed(seed)
        self.state = self._now()
        self._set(outside)

    @contextmanager
    def active(self) -> Iterator[None]:
        """Within it, torch draws from this stream."""
        outside = self._now()
        self._set(self.state)
        try:
            yield
        finally:
            self.state = self._now()
            self._set(outside)

    def _now(self) -> tuple[Tensor, Tensor | None]:
        return torch.get_rng_state(), torch.cuda.get_rng_state() if self.cuda else None

    def _set(self, state: tuple[Tensor, Tensor | None]) -> None:
        torch.set_rng_state(state[0])
        if state[1] is not None:
            torch.cuda.set_rng_state(state[1])


@dataclass
class Contender:
    """A way to train: the model it trains, its random stream, and what its steps gave and cost."""

    model: nn.Module
    step: Step
    stream: RandomStream
    losses: list[float] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)

    def train(self, images: Tensor, labels: Tensor) -> None:
        """One timed step. Reading the loss waits for the device, so the time is complete."""
        with self.stream.active():
            started = time.perf_counter()
            loss = self.step(images, labels).item()
            self.seconds.append(time.perf_counter() - started)
        self.losses.append(loss)

    @property
    def milliseconds(self) -> float:
        """The median step, the first one apart."""
        return 1e3 * statistics.median(self.seconds[1:] or self.seconds)


@dataclass(frozen=True)
class Comparison:
    """How far two contenders agree over their last `steps` steps."""

    steps: int
    equal_steps: int
    largest_difference: float
    equal_state: bool
    same: bool

    def __str__(self) -> str:
        state = "the same bits" if self.equal_state else "different bits"
        return (
            f"{self.equal_steps} of {self.steps} losses are bitwise equal, largest difference "
            f"{self.largest_difference:.3g}; parameters and buffers have {state}"
        )


@dataclass(frozen=True)
class Result:
    """What the demonstration found."""

    training: Comparison
    resuming: Comparison
    accuracy: float
    eager_accuracy: float
    first_step_seconds: float
    eager_first_step_seconds: float
    milliseconds: float
    eager_milliseconds: float

    @property
    def ratio(self) -> float:
        """How many graph steps fit into one eager step."""
        return self.eager_milliseconds / self.milliseconds

    @property
    def passed(self) -> bool:
        """Everything that the demonstration claims."""
        return self.training.same and self.resuming.same and self.accuracy >= ACCURACY_WANTED


def make_model(width: float, device: torch.device) -> MobileNetV2:
    """MobileNetV2 for ten digits. Their strokes are thick: the stem may halve the image once."""
    return MobileNetV2(10, width=width, stem_strides=(2, 1)).to(device)


def make_optimizer(model: nn.Module, lr: float, steps: int) -> tuple[AdamW, OneCycleLR]:
    """AdamW, and a one-cycle schedule that moves its learning rate and its first beta."""
    optimizer = AdamW(model.parameters(), lr=lr, weight_decay=0.01)
    return optimizer, OneCycleLR(optimizer, max_lr=lr, total_steps=steps)


def eager_step(model: nn.Module, optimizer: Optimizer, scheduler: LRScheduler) -> Step:
    """The loop body that one writes without a graph."""

    def step(images: Tensor, labels: Tensor) -> Tensor:
        optimizer.zero_grad()
        loss = F.cross_entropy(model(images), labels)
        loss.backward()
        optimizer.step()
        scheduler.step()
        return loss.detach()

    return step


def make_epochs(
    images: Tensor, labels: Tensor, *, count: int, size: int, seed: int
) -> list[Batches]:
    """The batches of each epoch, in an order of its own; one that is not full is left out."""
    generator = torch.Generator().manual_seed(seed)
    epochs = []
    for _ in range(count):
        order = torch.randperm(len(labels), generator=generator).to(labels.device)
        full = [index for index in order.split(size) if len(index) == size]
        epochs.append([(images[index], labels[index]) for index in full])
    return epochs


def accuracy(model: nn.Module, predict: Step, images: Tensor, labels: Tensor) -> float:
    """The share of right answers, with the model in eval mode meanwhile."""
    model.eval()
    with torch.no_grad():
        found = predict(images)
    model.train()
    return (found == labels).float().mean().item()


def compare(one: Contender, other: Contender, *, steps: int, per_epoch: int) -> Comparison:
    """Compare the last `steps` losses, and the models as they are now."""
    pairs = list(zip(one.losses[-steps:], other.losses[-steps:], strict=True))
    equal_steps = sum(a == b for a, b in pairs)
    ours, theirs = one.model.state_dict(), other.model.state_dict()
    equal_state = all(torch.equal(ours[name], theirs[name]) for name in ours)
    if next(one.model.parameters()).device.type == "cpu":
        same = equal_steps == steps and equal_state
    else:
        epochs = [pairs[at : at + per_epoch] for at in range(0, steps, per_epoch)]
        apart = [abs(statistics.fmean(a - b for a, b in epoch)) for epoch in epochs]
        same = max(apart) <= GPU_TOLERANCE
    return Comparison(steps, equal_steps, max(abs(a - b) for a, b in pairs), equal_state, same)


def show(result: Result, console: Console) -> None:
    """Print the figures, eager beside graph, and what was claimed."""
    table = Table("", "eager", "graph", "ratio", title="MobileNetV2 on digits")
    table.add_row(
        "first step",
        f"{result.eager_first_step_seconds:.2f} s",
        f"{result.first_step_seconds:.2f} s",
    )
    table.add_row(
        "median step",
        f"{result.eager_milliseconds:.1f} ms",
        f"{result.milliseconds:.1f} ms",
        f"{result.ratio:.2f}x",
    )
    table.add_row("test accuracy", f"{result.eager_accuracy:.1%}", f"{result.accuracy:.1%}")
    console.print(table)
    console.print(f"eager and graph: {result.training}", highlight=False)
    console.print(f"graph and resumed graph: {result.resuming}", highlight=False)
    console.print("[green]passed[/green]" if result.passed else "[red]failed[/red]")


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    """The settings; the defaults are the demonstration."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epochs", type=int, default=12)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--width", type=float, default=0.35, help="MobileNetV2's width multiplier")
    parser.add_argument("--lr", type=float, default=8e-3, help="the highest learning rate")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--limit", type=int, default=None, help="use only so many images")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--checkpoint", type=Path, default=Path("runs/mobilenet_v2.pt"))
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> Result:
    """Train both, test, resume from the file, compare, and print what was found."""
    args = parse(argv)
    console = Console()
    device = torch.device(args.device)
    data = digits(seed=args.seed, limit=args.limit)
    train_images, train_labels, test_images, test_labels = (t.to(device) for t in data)
    epochs = make_epochs(
        train_images, train_labels, count=args.epochs, size=args.batch_size, seed=args.seed
    )
    per_epoch = len(epochs[0])
    steps = args.epochs * per_epoch

    torch.manual_seed(args.seed)
    model = make_model(args.width, device)
    twin = copy.deepcopy(model)
    train = eager_step(twin, *make_optimizer(twin, args.lr, steps))
    eager = Contender(twin, train, RandomStream(args.seed, device))
    train_graph = TrainGraph(model, *make_optimizer(model, args.lr, steps))
    graph = Contender(model, train_graph, RandomStream(args.seed, device))

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console) as progress:
        task = progress.add_task("training", total=steps)
        for number, batches in enumerate(epochs, start=1):
            if number == len(epochs):  # the epoch that is repeated from the file
                args.checkpoint.parent.mkdir(parents=True, exist_ok=True)
                with graph.stream.active():
                    tg.save(train_graph.state_dict(), args.checkpoint)
            for images, labels in batches:
                eager.train(images, labels)
                graph.train(images, labels)
                text = f"epoch {number}/{len(epochs)}  loss {graph.losses[-1]:.4f}"
                progress.update(task, advance=1, description=text)

    # Other weights, another optimizer, another stream: what the new graph needs is in the file.
    model = make_model(args.width, device)
    new_graph = TrainGraph(model, *make_optimizer(model, args.lr, steps))
    resumed = Contender(model, new_graph, RandomStream(args.seed + 1, device))
    with resumed.stream.active():
        new_graph.load_state_dict(tg.load(args.checkpoint))
    for images, labels in epochs[-1]:
        resumed.train(images, labels)

    def eager_predict(images: Tensor) -> Tensor:
        return twin(images).argmax(1)

    result = Result(
        training=compare(eager, graph, steps=steps, per_epoch=per_epoch),
        resuming=compare(graph, resumed, steps=per_epoch, per_epoch=per_epoch),
        accuracy=accuracy(graph.model, EvalGraph(graph.model), test_images, test_labels),
        eager_accuracy=accuracy(twin, eager_predict, test_images, test_labels),
        first_step_seconds=graph.seconds[0],
        eager_first_step_seconds=eager.seconds[0],
        milliseconds=graph.milliseconds,
        eager_milliseconds=eager.milliseconds,
    )
    console.print(train_graph.tree(depth=3))
    show(result, console)
    return result


if __name__ == "__main__":
    raise SystemExit(0 if main().passed else 1)
