"""The two ways to a functional program agree, and views lead to the general one."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import torchgraph.capture.functional.functionalize as way
from tests import support
from torchgraph.ir import text
from torchgraph.ir.each import expanded
from torchgraph.testing import Setup, assert_parity


def mlp() -> Setup:
    model = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.5), nn.ReLU(inplace=True), nn.Linear(8, 2))
    return _setup(model)


def conv() -> Setup:
    model = nn.Sequential(
        nn.Unflatten(1, (1, 2, 2)),
        nn.Conv2d(1, 3, 1),
        nn.BatchNorm2d(3),
        nn.Flatten(),
        nn.Linear(12, 2),
    )
    return _setup(model)


class Rows(nn.Module):
    """Writes into parts of a tensor, and reads views of what it wrote."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.register_buffer("history", torch.zeros(3, 4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.linear(x).clone()
        first = y[0]
        y[1:] *= 2.0
        first += 1.0
        self.history[1].copy_(y[1].detach())
        return y + self.history.sum()


def rows() -> Setup:
    return _setup(Rows())


def _setup(model: nn.Module) -> Setup:
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1, weight_decay=0.01)
    return Setup(model, optimizer, lambda m, x: m(x).square().mean())


def batches() -> list[tuple[torch.Tensor]]:
    return [(torch.randn(3, 4),) for _ in range(6)]  # three of them replayed


@pytest.mark.parametrize("make", [mlp, conv])
def test_both_ways_give_the_same_program(
    make: Callable[[], Setup], monkeypatch: pytest.MonkeyPatch
) -> None:
    direct = assert_parity(make, batches())
    monkeypatch.setattr(way, "functional_form", lambda graph, mode: None)
    traced = assert_parity(make, batches())
    ops = [_ops(graph) for graph in (direct, traced)]
    assert ops[0] == ops[1]


def test_written_views_are_exact(monkeypatch: pytest.MonkeyPatch) -> None:
    traced = _watched(monkeypatch)
    graph = assert_parity(rows, batches())
    assert traced == [False, True, True]  # the update alone; the step with it, and without
    assert len(support.replays(graph)) == 1


def _watched(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Of each graph from here on, whether it has to be traced again."""
    traced: list[bool] = []
    original = way.functional_form

    def watched(graph: Any, mode: Any) -> Any:
        found = original(graph, mode)
        traced.append(found is None)
        return found

    monkeypatch.setattr(way, "functional_form", watched)
    return traced


Change = Callable[[torch.Tensor], torch.Tensor]
_SQUARE, _LONG = (4, 4), (1, 4, 4)
DIFFERENTIABLE: dict[str, tuple[tuple[int, ...], Change]] = {
    "t_": (_SQUARE, lambda y: y.t_()),
    "transpose_": (_SQUARE, lambda y: y.transpose_(0, 1)),
    "swapaxes_": (_LONG, lambda y: y.swapaxes_(1, 2)),
    "swapdims_": (_LONG, lambda y: y.swapdims_(0, -1)),
    "unsqueeze_": (_SQUARE, lambda y: y.unsqueeze_(1)),
    "squeeze_": (_LONG, lambda y: y.squeeze_()),
    "squeeze_.dim": (_LONG, lambda y: y.squeeze_(0)),
    "squeeze_.dims": (_LONG, lambda y: y.squeeze_((0, 1))),
    "as_strided_": (_SQUARE, lambda y: y.as_strided_((4, 3), (1, 4), 1)),
    "detach_": (_SQUARE, lambda y: y.detach_()),
    "several": (_SQUARE, lambda y: y.t_().unsqueeze_(0).transpose_(0, 2).squeeze_(2)),
    "there and back": (_SQUARE, lambda y: y.t_().mul_(y.clone()).t_()),
}
OTHERS: dict[str, tuple[tuple[int, ...], Change]] = {
    "set_": (_SQUARE, lambda y: y.set_()),
    "set_.source_Tensor": (_SQUARE, lambda y: y.set_(y * 3)),
    "set_.source_Tensor_storage_offset": (_SQUARE, lambda y: y.set_(y * 3, 4, (4,), (2,))),
    "set_.source_Storage": (_SQUARE, lambda y: y.set_((y * 3).untyped_storage())),
    "set_.source_Storage_storage_offset": (
        _SQUARE,
        lambda y: y.set_((y * 3).untyped_storage(), 4, (4,), (2,)),
    ),
    "resize_": (_SQUARE, lambda y: y.resize_(2, 5)),
    "resize_as_": (_SQUARE, lambda y: y.resize_as_(y[0])),
    "larger": (_SQUARE, lambda y: y.resize_(6, 4).index_fill_(0, torch.arange(3, 6), 7.0)),
}


def _changed(change: Change, shape: tuple[int, ...], *, writes: bool, detached: bool) -> Any:
    """A loss that reads a tensor as it was and as ``change`` leaves it."""

    def loss(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
        found = model(x)
        y = (found.detach() if detached else found).reshape(shape) * 2
        before = y.detach()
        total = _told_apart(change(y)) + _told_apart(before) + _told_apart(found)
        if writes:
            written = x * 3
            written[0] += 1
            total = total + written.sum()
        return total

    return loss


def _told_apart(value: torch.Tensor) -> torch.Tensor:
    numbers = torch.arange(1.0, value.numel() + 1).reshape(value.shape)
    return (value.cumsum(0) * numbers).square().sum()


def _linear(loss: Any, *, trains: bool, size: int = 4) -> Callable[[], Setup]:
    def make() -> Setup:
        model = nn.Linear(size, size)
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-4) if trains else None
        return Setup(model, optimizer, loss)

    return make


_IN_ALL_WAYS = next(iter(DIFFERENTIABLE)), next(iter(OTHERS))


@pytest.mark.parametrize(
    ("name", "writes", "trains"),
    support.thinned_rows(
        itertools.product([*DIFFERENTIABLE, *OTHERS], [False, True], [False, True]),
        lambda name, writes, trains: (writes and trains) or name in _IN_ALL_WAYS,
    ),
)
def test_a_tensor_object_that_changes_in_place_is_exact(
    name: str, writes: bool, trains: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    shape, change = {**DIFFERENTIABLE, **OTHERS}[name]
    loss = _changed(change, shape, writes=writes, detached=name in OTHERS)
    traced = _watched(monkeypatch)
    assert_parity(_linear(loss, trains=trains), [(torch.randn(4, 4),) for _ in range(5)])
    assert any(traced) or not writes


def test_every_op_that_changes_a_tensor_object_is_tried() -> None:
    tried = {name.partition(".")[0] for name in (*DIFFERENTIABLE, *OTHERS)}
    names = [name for name in dir(torch.Tensor) if name.endswith("_") and name[0] != "_"]
    names = [
        name for name in names if name != "rename_"
    ]  # of named tensors, which 2.13 has no more
    assert tried - {"several", "there and back", "larger"} <= set(names)
    for packet in (getattr(torch.ops.aten, name, None) for name in names):
        for overload in packet.overloads() if packet is not None else ():
            if torch.Tag.inplace_view in getattr(packet, overload).tags:
                assert packet.__name__ in tried


def _spectrum(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
    window = torch.hann_window(8)
    written = x * 3
    written[0] += 1
    spectrum = torch.stft(model(x), 8, 4, window=window, return_complex=True)
    return (torch.istft(spectrum, 8, 4, window=window) * written).square().mean()


@pytest.mark.parametrize("trains", [False, True], ids=["forward", "backward"])
def test_stft_and_its_inverse_are_exact(trains: bool) -> None:
    batches = [(torch.randn(2, 16),) for _ in range(5)]
    assert_parity(_linear(_spectrum, trains=trains, size=16), batches)


def _grown(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
    y = model(x).detach() * 2
    before = y.detach()
    y.resize_(6, 4)
    y[3:] = 7.0
    before[1] = 5.0
    y[0] = 3.0
    return _told_apart(before) + _told_apart(y) + model(x).sum()


def test_memory_that_resize_makes_larger_is_still_shared() -> None:
    assert_parity(_linear(_grown, trains=True), batches())


def _expanded(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
    y = model(x).sum(0).expand(4, 4).t_()
    return _told_apart(y)


def test_an_expanded_tensor_may_be_transposed_in_place() -> None:
    assert_parity(_linear(_expanded, trains=True), batches())


def _ops(graph: Any) -> list[str]:
    program = expanded(graph.program)
    names = [line.split(" = ")[-1].split("(")[0] for line in text.render(program).splitlines()]
    return sorted(name for name in names if name.startswith("aten."))
