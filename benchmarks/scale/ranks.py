"""Data-parallel steps of several processes of this machine, joined by gloo, and what they take.

Each rank trains one model after the other on one thread. The gradients are averaged by functional
collectives within the step, so they are nodes of the program.
"""

from __future__ import annotations

import os
import pickle
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as funcol
import torch.multiprocessing
from torch import Tensor, nn
from torch.nn import functional as F

import torchgraph as tg
from torchgraph.costs.timeline import Item, items
from torchgraph.lower.lifetimes import Lifetimes, peak

from ..work import Work, next_token

BUCKET = 2**20
"""Bytes of gradients that travel together."""
_QUIET = 0.25
"""Of one processor, that others may use."""
_LOOK, _PAUSE = 0.1, 0.4
"""Seconds: so long the machine is looked at before a round, and then left alone."""
WARM = 8
"""Calls before the first that is timed: the program serves by then."""


class Mlp(nn.Sequential):
    """Linear layers with ReLU between."""

    def __init__(self, width: int, depth: int, inputs: int = 128) -> None:
        layers: list[nn.Module] = [nn.Linear(inputs, width), nn.ReLU()]
        for _ in range(depth - 2):
            layers += [nn.Linear(width, width), nn.ReLU()]
        super().__init__(*layers, nn.Linear(width, 10))


class Conv(nn.Sequential):
    """Convolutions with batch norm and ReLU, halved twice."""

    def __init__(self, width: int, depth: int) -> None:
        layers: list[nn.Module] = []
        channels = 3
        for number in range(depth):
            layers += [nn.Conv2d(channels, width, 3, stride=1 + (number in (1, 3)), padding=1)]
            layers += [nn.BatchNorm2d(width), nn.ReLU()]
            channels = width
        super().__init__(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, 10))


class Block(nn.Module):
    """A block of a GPT: attention, and a product up and down."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.before, self.between = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        parts = (
            self.qkv(self.before(x)).view(batch, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        )
        seen = F.scaled_dot_product_attention(parts[0], parts[1], parts[2], is_causal=True)
        x = x + self.out(seen.transpose(1, 2).reshape(batch, length, width))
        grown: Tensor = x + self.down(F.gelu(self.up(self.between(x))))
        return grown


class Gpt(nn.Module):
    """A small GPT."""

    def __init__(self, width: int, depth: int, length: int, vocabulary: int = 512) -> None:
        super().__init__()
        self.words = nn.Embedding(vocabulary, width)
        self.places = nn.Parameter(torch.randn(length, width) * 0.02)
        self.blocks = nn.Sequential(*(Block(width, width // 32) for _ in range(depth)))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, vocabulary, bias=False)

    def forward(self, ids: Tensor) -> Tensor:
        logits: Tensor = self.head(self.norm(self.blocks(self.words(ids) + self.places)))
        return logits


def mlp(width: int, depth: int, batch: int) -> Work:
    x, y = torch.randn(batch, 128), torch.randint(10, (batch,))
    return Work(Mlp(width, depth), x, y, F.cross_entropy)


def conv(width: int, depth: int, batch: int) -> Work:
    x, y = torch.randn(batch, 3, 16, 16), torch.randint(10, (batch,))
    return Work(Conv(width, depth), x, y, F.cross_entropy)


def gpt(width: int, depth: int, length: int, batch: int) -> Work:
    ids = torch.randint(512, (batch, length))
    return Work(Gpt(width, depth, length), ids, ids, next_token)


@dataclass(frozen=True)
class Case:
    """A model, and whether the constants of this machine are fitted on it."""

    name: str
    make: Callable[..., Work]
    sizes: tuple[int, ...]
    fits: bool


CASES = (
    Case("mlp 256x3", mlp, (256, 3, 64), True),
    Case("mlp 64x12", mlp, (64, 12, 32), True),
    Case("mlp 768x3", mlp, (768, 3, 128), True),
    Case("mlp 1280x3", mlp, (1280, 3, 32), True),
    Case("mlp 896x4", mlp, (896, 4, 48), True),
    Case("conv 16x4", conv, (16, 4, 8), True),
    Case("conv 48x3", conv, (48, 3, 16), True),
    Case("conv 24x5", conv, (24, 5, 24), True),
    Case("gpt 64x6", gpt, (64, 6, 32, 4), True),
    Case("gpt 128x2", gpt, (128, 2, 64, 4), True),
    Case("gpt 256x2", gpt, (256, 2, 64, 4), True),
    Case("gpt 224x3", gpt, (224, 3, 80, 3), True),
    Case("mlp 1024x4", mlp, (1024, 4, 64), False),
    Case("conv 32x5", conv, (32, 5, 16), False),
    Case("gpt 192x4", gpt, (192, 4, 96, 4), False),
)


@dataclass(frozen=True)
class Measured:
    """What the ranks of one group took for a case."""

    case: str
    ranks: int
    seconds: float
    """The median of the quiet rounds, each as long as its slowest rank."""
    spread: tuple[float, float]
    """The least and the most of them."""
    others: float
    """Processors that were busy with something else in the noisiest of these rounds."""
    items: list[Item]
    """Of the program that ran."""
    works_on: int
    """Bytes of states, arguments and what a step allocates at its most."""


def step_of(work: Work, ranks: int) -> Any:
    """A data-parallel step: the gradients are averaged in buckets, a collective for each."""
    optimizer = torch.optim.Adam(work.model.parameters(), 1e-3)
    buckets = _buckets(list(work.model.parameters()))

    @tg.step
    def step(x: Tensor, y: Tensor) -> Tensor:
        optimizer.zero_grad()
        loss = work.loss_fn(work.model(x), y)
        loss.backward()
        for bucket in buckets if ranks > 1 else ():
            _average(bucket, ranks)
        optimizer.step()
        return loss

    step.config.set_backend("aten")
    return step


def _buckets(parameters: list[Tensor]) -> list[list[Tensor]]:
    """Parameters, the last first, as many together as their bytes allow."""
    found: list[list[Tensor]] = [[]]
    size = 0
    for parameter in reversed(parameters):
        if size and size + parameter.nbytes > BUCKET:
            found.append([])
            size = 0
        found[-1].append(parameter)
        size += parameter.nbytes
    return found


def _average(bucket: list[Tensor], ranks: int) -> None:
    gradients = [parameter.grad for parameter in bucket if parameter.grad is not None]
    flat = torch.cat([gradient.flatten() for gradient in gradients]) / ranks
    group = dist.group.WORLD
    assert group is not None
    shared = funcol.all_reduce(flat, "sum", group)
    parts = shared.split([gradient.numel() for gradient in gradients])
    for gradient, part in zip(gradients, parts, strict=True):
        gradient.copy_(part.view_as(gradient))


@dataclass(frozen=True)
class Effort:
    """How long is measured."""

    rounds: int
    """So often each case is timed, in turns with the others."""
    seconds: float
    """About how long a round is."""
    patience: float
    """Seconds that all rounds together may wait until nobody else uses the machine."""


def measure(ranks: int, cases: Sequence[Case], effort: Effort) -> list[Measured]:
    """Train each case on so many processes."""
    with tempfile.TemporaryDirectory() as folder:
        args = (ranks, folder, cases, effort)
        torch.multiprocessing.spawn(_rank, args=args, nprocs=ranks)  # type: ignore[attr-defined, no-untyped-call]  # fmt: skip
        found: list[Measured] = pickle.loads(Path(folder, "0").read_bytes())
    return found


def _rank(rank: int, ranks: int, folder: str, cases: Sequence[Case], effort: Effort) -> None:
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo",
        init_method=f"file://{folder}/store",
        rank=rank,
        world_size=ranks,
        timeout=timedelta(seconds=120 + effort.patience),
    )
    try:
        steps = [_started(case, ranks) for case in cases]
        counts = [_count(step, effort.seconds) for step in steps]
        quiet = _Quiet(effort.patience)
        taken: list[list[tuple[float, float]]] = [[] for _ in cases]
        for _ in range(effort.rounds):
            for place, step in enumerate(steps):
                if rank == 0:
                    quiet.wait()
                taken[place].append(_timed(step, counts[place]))
        if rank == 0:
            found = [
                _measured(case, ranks, each, step.step)
                for case, step, each in zip(cases, steps, taken, strict=True)
            ]
            Path(folder, "0").write_bytes(pickle.dumps(found))
        dist.barrier()
    finally:
        dist.destroy_process_group()


@dataclass
class _Started:
    step: Any
    x: Tensor
    y: Tensor

    def __call__(self) -> None:
        self.step(self.x, self.y)


def _started(case: Case, ranks: int) -> _Started:
    torch.manual_seed(0)
    work = case.make(*case.sizes)
    started = _Started(step_of(work, ranks), work.x, work.y)
    for _ in range(WARM):
        started()
    return started


def _count(step: _Started, seconds: float) -> int:
    """How many steps take about so long; the same number on all ranks."""
    begins = time.perf_counter()
    for _ in range(3):
        step()
    each = torch.tensor((time.perf_counter() - begins) / 3)
    dist.all_reduce(each, dist.ReduceOp.MAX)
    return max(1, min(200, round(seconds / float(each))))


def _timed(step: _Started, count: int) -> tuple[float, float]:
    """Processors that others kept busy, and the seconds of a step, of the slowest rank."""
    dist.barrier()
    busy, used, begins = _busy(), time.process_time(), time.perf_counter()
    for _ in range(count):
        step()
    wall = time.perf_counter() - begins
    ours = torch.tensor(time.process_time() - used, dtype=torch.float64)
    slowest = torch.tensor(wall, dtype=torch.float64)
    dist.all_reduce(ours)
    dist.all_reduce(slowest, dist.ReduceOp.MAX)
    others = max(0.0, _busy() - busy - float(ours)) / wall
    return others, float(slowest) / count


class _Quiet:
    """Waits until nobody else uses the machine, as long as there is patience for it."""

    def __init__(self, patience: float) -> None:
        self._left = patience

    def wait(self) -> None:
        """While the other ranks wait for this one."""
        while self._left > 0:
            busy, begins = _busy(), time.perf_counter()
            time.sleep(_LOOK)
            taken = time.perf_counter() - begins
            if _busy() - busy < _QUIET * taken:
                return
            time.sleep(_PAUSE)
            self._left -= taken + _PAUSE


def _busy() -> float:
    """Seconds that all processors of this machine have been busy; 0 where nobody says so."""
    try:
        fields = Path("/proc/stat").read_text(encoding="ascii").split()[1:9]
    except OSError:
        return 0.0
    user, nice, system, _, _, irq, soft, steal = map(int, fields)
    return (user + nice + system + irq + soft + steal) / os.sysconf("SC_CLK_TCK")


def _measured(case: Case, ranks: int, taken: list[tuple[float, float]], step: Any) -> Measured:
    """Of the rounds in which others did least: a third of all."""
    quiet = sorted(taken)[: max(1, len(taken) // 3)]
    times = [seconds for _, seconds in quiet]
    spread = (min(times), max(times))
    work, works_on = items(step.program), working_set(step)
    median = statistics.median(times)
    return Measured(case.name, ranks, median, spread, quiet[-1][0], work, works_on)


def working_set(step: Any) -> int:
    """Bytes of what a step is given and holds, and of what it allocates at its most."""
    replay, _, _ = step._runner.programs.last()
    metas = [spec.meta for spec in replay.program.signature.inputs]
    held: int = sum(meta.nbytes for meta in metas if meta is not None)
    return held + peak(Lifetimes(replay.executable.program))
