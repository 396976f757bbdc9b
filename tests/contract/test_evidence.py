"""What two equal calls prove, and what only another batch can: programs are right for both."""

from __future__ import annotations

import signal
import warnings
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn, optim

import torchgraph as tg
from tests import support
from tests.contract.models import Eval, Function, Train, data, made, same
from torchgraph.calls import recordings
from torchgraph.errors import EagerWarning
from torchgraph.live.inputs import Inputs
from torchgraph.testing import counters
from torchgraph.verify.batch import Batch, MemoryLocation


def served(graph: Any, *args: Any) -> bool:
    """Call ``graph``; True when a program served the call."""
    before = counters.replays
    graph(*args)
    return counters.replays > before


# --- which batches are the same -------------------------------------------------------------------


def batch_of(x: torch.Tensor) -> tuple[Batch, Any]:
    call = Inputs(lambda x: x).bind((x,), {})
    return Batch.of(call), call


LARGE = torch.arange(6000.0).reshape(3, 2000)
OTHERS: dict[str, Callable[[torch.Tensor], Any]] = {
    "rows in another order": lambda x: x.copy_(x.flip(0).clone()),
    "elements in another order": lambda x: x.copy_(x.flip(1).clone()),
    "one value": lambda x: x[1, 6].add_(1),
    "the sign of a zero": lambda x: x[0, 0].fill_(-0.0),
    "by NumPy": lambda x: np.copyto(x.numpy(), x.numpy() + 1),
    "by data": lambda x: x.data.mul_(2),
}


@pytest.mark.parametrize("name", OTHERS)
@pytest.mark.parametrize("x", [torch.arange(14.0).reshape(2, 7), LARGE])
@pytest.mark.parametrize("moved", [False, True])
def test_another_batch_is_noticed(x: torch.Tensor, name: str, moved: bool) -> None:
    x = x.clone()
    batch, call = batch_of(x)
    assert batch.equals(call)
    other = x.clone() if moved else x
    assert batch.equals(batch_of(other)[1])
    OTHERS[name](other)
    assert not batch.equals(batch_of(other)[1])


def test_a_batch_of_nans_is_the_same_batch() -> None:
    x = torch.tensor([1.0, torch.nan])
    assert batch_of(x)[0].equals(batch_of(x.clone())[1])


def test_an_address_that_is_used_again_is_another_place() -> None:
    memory = bytearray(64)
    first = torch.frombuffer(memory, dtype=torch.float32)
    place, address = MemoryLocation.of(first), first.data_ptr()
    assert place.holds(first)
    assert not place.holds(first[1:])
    del first
    second = torch.frombuffer(memory, dtype=torch.float32)
    assert second.data_ptr() == address
    assert not place.holds(second)


TABLE: list[float] = []


@pytest.mark.parametrize("change", [lambda x: x * 2, lambda x: x.flip(0), lambda x: x + torch.nan])
def test_a_constant_of_the_batch(change: Callable[[torch.Tensor], torch.Tensor]) -> None:
    graph = Function(lambda x: torch.nan_to_num(x) * torch.tensor(TABLE)[:, None])
    x = torch.arange(14.0).reshape(2, 7)
    for batch in [x] * 3 + [change(x)] * 3:
        TABLE[:] = [float(row.nan_to_num().sum()) + 1 for row in batch]
        with torch.no_grad():
            expected = torch.nan_to_num(batch) * torch.tensor(TABLE)[:, None]
            assert torch.equal(graph(batch.clone()), expected)


def test_a_constant_of_each_batch_ends_in_eager() -> None:
    table = np.zeros(5_000_000, dtype=np.float32)  # too large to be compared at each call
    graph = Function(lambda x: x * torch.tensor(table)[:3])

    def visit_each_batch_three_times() -> None:
        for number in range(12):
            table[:] = float(number)
            x = torch.full((3,), float(number))
            for _ in range(3):
                assert torch.equal(graph(x), x * number)

    with pytest.warns(EagerWarning, match=r"with each new batch(?s:.*)torch\.tensor\(table\)"):
        visit_each_batch_three_times()
    assert len(support.replays(graph)) == 0


# --- what a doubt costs ---------------------------------------------------------------------------


@pytest.mark.parametrize("fresh", [False, True])
def test_train_and_eval_with_a_buffer_each(fresh: bool) -> None:
    model, optimizer = made()
    graph = Train(model, optimizer)
    pair = data(2)
    found = []
    for _ in range(8):
        for x, training in zip(pair, (True, False), strict=True):
            model.train(training)
            found.append(served(graph, x.clone() if fresh else x))
    assert all(found[-8:])


def test_a_fixed_mask_for_each_mode() -> None:
    model = nn.Dropout(0.5)
    graph = Function(lambda x, mask: model(x) * mask, model=model)
    masks = torch.ones(4), torch.zeros(4)
    found = []
    for x in data(12):
        for mask, training in zip(masks, (True, False), strict=True):
            model.train(training)
            found.append(served(graph, x, mask))
    assert all(found[-12:])


def test_one_batch_for_ever_is_not_read_in_each_call(monkeypatch: pytest.MonkeyPatch) -> None:
    graph = Function(lambda x: x[:2] * torch.tensor([2.0, 3.0]))
    x = torch.zeros(1 << 16)
    for _ in range(3):
        graph(x)
    read = []
    fingerprint = recordings.Batch.of.__globals__["fingerprint"]

    def counted(tensor: torch.Tensor) -> bytes:
        read.append(tensor.numel())
        return bytes(fingerprint(tensor))

    monkeypatch.setitem(recordings.Batch.of.__globals__, "fingerprint", counted)
    for _ in range(5):
        assert served(graph, x)
    assert not read


# --- memory ---------------------------------------------------------------------------------------

HELD = {"first": torch.zeros(4)}


@pytest.mark.parametrize("where", ["parameter", "buffer", "attribute", "global"])
def test_an_argument_that_is_written_in_the_memory_of_what_is_read(where: str) -> None:
    module = nn.Module()
    module.register_parameter("parameter", nn.Parameter(torch.arange(4.0)))
    module.register_buffer("buffer", torch.arange(4.0))
    module.attribute = torch.arange(4.0)
    HELD["first"] = torch.arange(4.0)

    def read() -> torch.Tensor:
        return HELD["first"] if where == "global" else getattr(module, where)

    def step(x: torch.Tensor) -> torch.Tensor:
        x.mul_(2)
        return x + 1 if (x > 1e9).any() else x + read()

    graph = Function(step, module=module)
    with torch.no_grad():
        for x in data(4):
            graph(x)
        twin = read().detach().clone()
        twin.mul_(2)
        state = where in ("parameter", "buffer")
        with pytest.warns(EagerWarning, match="in the memory of") if state else nullcontext():
            assert torch.equal(graph(read().data), twin + twin)
        assert torch.equal(read(), twin)


def test_two_arguments_over_one_numpy_array() -> None:
    def step(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        x.add_(1)
        return x.clone() if (x > 1e9).any() else x * y

    graph = Function(step)
    with torch.no_grad():
        for _ in range(6):
            mine, twin = (np.arange(3, dtype=np.float32) for _ in range(2))
            got = graph(torch.from_numpy(mine), torch.from_numpy(mine))
            expected = step(torch.from_numpy(twin), torch.from_numpy(twin))
            assert torch.equal(got, expected)
            assert np.array_equal(mine, twin)
        for _ in range(6):
            pair = data(2)
            twins = [x.clone() for x in pair]
            assert torch.equal(graph(*pair), step(*twins))


@pytest.mark.parametrize("kinds", ["ccccpp", "pppcpcc"])
@pytest.mark.parametrize("step", [lambda x: x * (1 + 2j), lambda x: (x * x).imag])
def test_conjugated_and_plain_arguments(step: Callable[..., Any], kinds: str) -> None:
    graph = Function(step)
    for kind in kinds:
        x = torch.randn(3, dtype=torch.complex64)
        x = x.conj() if kind == "c" else x
        assert support.same_bits(graph(x), step(x))


def test_two_branches_with_a_tensor_each() -> None:
    """Each variant has names of its own for what it reads by reference."""
    mine, twins = ([torch.zeros(3), torch.full((3,), 100.0)] for _ in range(2))

    def step(x: torch.Tensor, held: list[torch.Tensor]) -> torch.Tensor:
        one = held[0] if x.sum() > 0 else held[1]
        one.add_(1)
        return x + one

    graph = Function(lambda x: step(x, mine))
    for sign in (1, -1, -1, 1, 1, -1, 1, -1, 1):
        x = torch.rand(3) * sign
        assert torch.equal(graph(x), step(x, twins))
        assert same(mine, twins)
    assert len(support.replays(graph)) == 2


# --- a call is over before anything is learnt from it ---------------------------------------------


def scheduled(model: nn.Module | None = None) -> tuple[Train, Any, nn.Module]:
    model = model or nn.Linear(4, 1)
    optimizer = optim.SGD(model.parameters(), 0.1)
    schedule = optim.lr_scheduler.ExponentialLR(optimizer, 0.5)
    return Train(model, optimizer, schedule), schedule, model


@pytest.mark.usefixtures("interruptible")
def test_ctrl_c_while_a_program_is_confirmed(monkeypatch: pytest.MonkeyPatch) -> None:
    graph, schedule, model = scheduled()
    graph(*data())
    unlike = recordings.unlike

    def interrupted(*args: Any) -> str:
        signal.raise_signal(signal.SIGINT)
        return unlike(*args)

    before = model.weight.detach().clone()
    with monkeypatch.context() as patch:
        patch.setattr(recordings, "unlike", interrupted)
        with pytest.raises(KeyboardInterrupt):
            graph(*data())
    assert not torch.equal(before, model.weight)
    assert schedule.last_epoch == 2
    assert graph._runner.step.progress.step == 2
    support.settle(graph, *data())


def test_a_warning_that_is_an_error() -> None:
    """A number that is another one in each step: the call that gives up has stepped as well."""

    class Monitored(nn.Linear):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return super().forward(x) * (1 + 0 * len(str(x.sum().item())))

    graph, schedule, _ = scheduled(Monitored(4, 1))
    raised = 0
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for x in data(12):
            try:
                graph(x)
            except EagerWarning:
                raised += 1
    assert raised == 1
    assert schedule.last_epoch == graph._runner.step.progress.step == 12


# --- beside the calls -----------------------------------------------------------------------------


def test_check_takes_the_program_for_the_values() -> None:
    graph = Function(lambda x: x * 2 if (x > 0).all() else x * 3)
    for x in (torch.ones(4), -torch.ones(4)):
        support.settle(graph, x)
    for x in (torch.ones(4), -torch.ones(4)):
        assert graph.check(x) is None
        assert "Peak" in str(graph.report(memory=[x]))


class Scaled(tg.Graph):
    """By what a global holds."""

    def __init__(self, read: Callable[[], Any]) -> None:
        super().__init__()
        self.read = read
        self.config.set_shape_buckets(0, [4])

    def build(self, x: torch.Tensor) -> torch.Tensor:
        return x * 10 - self.read()


def test_a_bucket_is_filled_exactly_by_a_batch_that_is_held() -> None:
    HELD["first"] = torch.randn(4, 3)
    graph = Scaled(lambda: HELD["first"][0])
    other = torch.randn(4, 3)
    for x in (HELD["first"], HELD["first"], other, other, *data(2), other[:3], HELD["first"]):
        x = x[:, :3]
        assert torch.equal(graph(x), x * 10 - HELD["first"][0])


def test_a_number_that_moves_in_a_bucket() -> None:
    graph = Scaled(lambda: TABLE[0])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", EagerWarning)
        for number in range(6):
            TABLE[:] = [float(number)]
            x = torch.randn(3, 3)
            assert torch.equal(graph(x), x * 10 - number)


def test_evaluation_of_one_batch_between_training_batches() -> None:
    """Two Graphs of one model: neither keeps the other from its programs."""
    model, optimizer = made()
    train, evaluate = Train(model, optimizer), Eval(model)
    held = data()[0]
    found = []
    for x in data(8):
        train(x)
        found.append(served(evaluate, held))
    assert all(found[2:])
