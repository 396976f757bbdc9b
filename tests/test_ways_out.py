"""The way out that an error or a warning names, followed to the letter, gives eager's numbers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
import torch
from torch import nn

import torchgraph as tg
from tests.contract.models import same
from torchgraph import errors
from torchgraph.counters import counters

Make = Callable[[], tuple[Callable[..., Any], list[nn.Module]]]
"""A step, and the modules that it trains."""


class Way(NamedTuple):
    """What is refused, and the same as the message says to write it."""

    kind: type[Exception]
    words: str
    refused: Make
    instead: Make


def model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Linear(4, 4)


def evaluated(function: Callable[..., Any]) -> Make:
    return lambda: (function, [])


def trained(loss: Callable[[nn.Module, torch.Tensor], Any]) -> Make:
    """A training step that a model is given by ``loss``."""

    def make() -> tuple[Callable[..., Any], list[nn.Module]]:
        net = model()
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)

        def step(x: torch.Tensor) -> Any:
            optimizer.zero_grad()
            found = loss(net, x)
            found.backward()
            optimizer.step()
            return found.detach()

        return step, [net]

    return make


class CountsInText(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.calls = ""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += "1"
        return x * len(self.calls)


class CountsInABuffer(nn.Module):
    calls: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls.add_(1)
        return x * self.calls


def held(module: type[nn.Module]) -> Make:
    def make() -> tuple[Callable[..., Any], list[nn.Module]]:
        made = module()
        return lambda x: made(x), [made]

    return make


def queue(*, sliced: bool) -> Make:
    """As of MoCo: keys go where a pointer says."""

    def make() -> tuple[Callable[..., Any], list[nn.Module]]:
        net, size = nn.Module(), 60
        net.register_buffer("keys", torch.zeros(4, size))
        net.register_buffer("ptr", torch.zeros((), dtype=torch.long))

        def step(x: torch.Tensor) -> torch.Tensor:
            keys, ptr, n = net.get_buffer("keys"), net.get_buffer("ptr"), len(x)
            if sliced:
                keys[:, int(ptr) : int(ptr) + n] = x.T
                ptr.copy_((ptr + n) % size)
            else:
                keys.index_copy_(1, (ptr + torch.arange(n)) % size, x.T)
                ptr.add_(n).remainder_(size)
            return keys.sum()

        return step, [net]

    return make


def embedding(*, sparse: bool) -> Make:
    def make() -> tuple[Callable[..., Any], list[nn.Module]]:
        torch.manual_seed(0)
        table = nn.Embedding(9, 4, sparse=sparse)
        optimizer = torch.optim.SGD(table.parameters(), lr=0.1)

        def step(x: torch.Tensor) -> Any:
            optimizer.zero_grad()
            loss = table((x * 3).long().abs() % 9).square().mean()
            loss.backward()
            optimizer.step()
            return loss.detach()

        return step, [table]

    return make


def encoder(*, nested: bool) -> Make:
    def make() -> tuple[Callable[..., Any], list[nn.Module]]:
        torch.manual_seed(0)
        layer = nn.TransformerEncoderLayer(4, 2, 8, batch_first=True)
        net = nn.TransformerEncoder(layer, 1, enable_nested_tensor=nested).eval()
        mask = torch.zeros(1, 6, dtype=torch.bool)
        mask[0, 4:] = True

        def step(x: torch.Tensor) -> torch.Tensor:
            with torch.no_grad():
                return net(x[None], src_key_padding_mask=mask)[:, :4]

        return step, [net]

    return make


def penalized(net: nn.Module, x: torch.Tensor) -> torch.Tensor:
    return net(x).square().sum(1)


_GENERATOR = torch.Generator()
_PARTS = torch.zeros(6)

WAYS = {
    "numpy": Way(
        errors.DataDependent, "compute it with torch",
        evaluated(lambda x: torch.from_numpy(x.numpy() * 2)),
        evaluated(lambda x: x * 2),
    ),
    "text": Way(
        errors.DataDependent, "return the tensor, and make the text after the call",
        evaluated(lambda x: f"{x.sum():.2f}"),
        evaluated(lambda x: x.sum()),
    ),
    "seed": Way(
        errors.RandomStateTouched, "seed outside of the step",
        evaluated(lambda x: (torch.manual_seed(0), torch.rand(3))[1]),
        evaluated(lambda x: torch.rand(3)),
    ),
    "own generator": Way(
        errors.NoProgram, "draw from torch's default generator",
        evaluated(lambda x: torch.rand(3, generator=_GENERATOR)),
        evaluated(lambda x: torch.rand(3)),
    ),
    "memory that nothing has filled": Way(
        errors.NoProgram, r"make it with torch.zeros\(\)",
        evaluated(lambda x: torch.where(x < -99, torch.empty(6, 4), x)),
        evaluated(lambda x: torch.where(x < -99, torch.zeros(6, 4), x)),
    ),
    "parts that overlap": Way(
        errors.NoProgram, "keep the tensor that they are parts of, and take the parts in the step",
        (lambda left, right: evaluated(lambda x: left.add_(1).sum() + right.mul_(2).sum()))(
            _PARTS[:4], _PARTS[2:]
        ),
        evaluated(lambda x: _PARTS[:4].add_(1).sum() + _PARTS[2:].mul_(0.5).sum()),
    ),
    "branch": Way(
        errors.NoProgram, "choose with torch.where there",
        evaluated(torch.func.vmap(lambda x: torch.cond(x.sum() > 0, torch.sin, torch.cos, (x,)))),
        evaluated(torch.func.vmap(lambda x: torch.where(x.sum() > 0, x.sin(), x.cos()))),
    ),
    "sparse gradients": Way(
        errors.NoProgram, r"nn.Embedding\(sparse=False\)",
        embedding(sparse=True), embedding(sparse=False),
    ),
    "nested tensors": Way(
        errors.NoProgram, "enable_nested_tensor=False", encoder(nested=True), encoder(nested=False)
    ),
    "a loss of several elements": Way(
        errors.NonScalarBackward, r"loss.mean\(\).backward\(\)",
        trained(penalized), trained(lambda net, x: penalized(net, x).mean()),
    ),
    "an iterator that is returned": Way(
        errors.UnsupportedOutput, "return tensors, or any containers",
        evaluated(lambda x: (x * n for n in range(3))),
        evaluated(lambda x: [x * n for n in range(3)]),
    ),
    "a text that grows": Way(
        errors.AttributeReadAndWritten, "keep the state in a tensor",
        held(CountsInText), held(CountsInABuffer),
    ),
    "a pointer": Way(
        errors.MovingValue, r"queue.index_copy_\(1, \(ptr \+",
        queue(sliced=True), queue(sliced=False),
    ),
}  # fmt: skip


def batches(count: int = 8) -> list[torch.Tensor]:
    torch.manual_seed(1)
    return [torch.randn(6, 4) for _ in range(count)]


def run(make: Make, wrap: Callable[[Any], Any]) -> tuple[list[Any], list[Any]]:
    _PARTS.fill_(1.0)
    _GENERATOR.manual_seed(0)
    step, modules = make()
    step = wrap(step)
    torch.manual_seed(2)
    results = [step(x) for x in batches()]
    return results, [dict(module.state_dict()) for module in modules]


@pytest.mark.parametrize("name", WAYS)
def test_what_is_refused_says_the_way_out(name):
    way = WAYS[name]
    if issubclass(way.kind, Warning):
        with pytest.warns(way.kind, match=f"(?s)Fix: .*{way.words}"):
            found = run(way.refused, tg.step)
        assert same(found, run(way.refused, lambda step: step))
        return
    with pytest.raises(way.kind, match=f"(?s)Fix: .*{way.words}"):
        run(way.refused, tg.step)


@pytest.mark.parametrize("name", WAYS)
def test_the_way_out_is_eager(name):
    replays = counters.replays
    found = run(WAYS[name].instead, tg.step)
    assert counters.replays - replays >= 5
    assert same(found, run(WAYS[name].instead, lambda step: step))


def in_eager(step: Any) -> Any:
    made = tg.step(step)
    made.config.set_fallback("eager")
    return made


@pytest.mark.filterwarnings("ignore::torchgraph.errors.EagerWarning")
@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors:UserWarning")
@pytest.mark.parametrize(
    "name", [n for n, w in WAYS.items() if issubclass(w.kind, errors.NoProgram)]
)
def test_the_other_way_out_is_eager(name):
    assert 'set_fallback("eager")' in errors.NoProgram.fix
    assert same(run(WAYS[name].refused, in_eager), run(WAYS[name].refused, lambda step: step))
