"""What two equal calls prove, and what only another batch can: programs are right for both."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from contextlib import nullcontext
from itertools import product
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn, optim

import torchgraph as tg
from tests import support
from tests.cases.forms import Update
from tests.cases.plays import Play
from tests.cases.table import Case, Table
from tests.contract.models import Eval, Function, Train, data, made, squared
from tests.support import thinned_rows
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
        for number in range(6):
            table[:] = float(number)
            x = torch.full((3,), float(number))
            for _ in range(3):
                assert torch.equal(graph(x), x * number)

    with pytest.warns(EagerWarning, match=r"with each new batch(?s:.*)torch\.tensor\(table\)"):
        visit_each_batch_three_times()
    assert len(support.replays(graph)) == 0


# --- what a doubt costs ---------------------------------------------------------------------------


def modes(fresh: bool) -> Play:
    """A buffer for the batches of training, and one for those of evaluation."""
    model, optimizer = made()
    pair = data(2)
    changes = {n: lambda n=n: model.train(n % 2 == 0) for n in range(16)}
    calls = [(pair[n % 2].clone() if fresh else pair[n % 2],) for n in range(16)]
    step = Update(lambda x: squared(model, x), model, optimizer)
    return Play(step, [model, optimizer], changes, calls)


def masks() -> Play:
    """One for each mode."""
    model, pair = nn.Dropout(0.5), (torch.ones(4), torch.zeros(4))
    changes = {n: lambda n=n: model.train(n % 2 == 0) for n in range(24)}
    calls = [(x, mask) for x in data(12) for mask in pair]
    return Play(lambda x, mask: model(x) * mask, [model], changes, calls)


class Branches(nn.Module):
    """Takes another path where its input is large."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.1))
        self.head, self.other = nn.Linear(8, 1), nn.Linear(8, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = self.body(x)
        return self.other(hidden) if bool((x > 9).any()) else self.head(hidden)


def a_late_variant() -> Play:
    """It appears at step 30 of 50."""
    model = Branches()
    optimizer = optim.AdamW(model.parameters(), lr=1e-2)
    calls = [(torch.randn(6, 4),) for _ in range(50)]
    for (x,) in calls[30::3]:
        x[0, 0] = 10.0
    step = Update(lambda x: squared(model, x), model, optimizer)
    return Play(step, [model, optimizer], calls=calls)


doubts = Table("updating")
doubts.rows({"one buffer each": lambda: modes(False), "fresh ones": lambda: modes(True)}, served=12)
# One before the other head has optimizer state, and one of each path since then.
doubts.rows({"a late variant": a_late_variant}, recorded=3, served=44)
doubts.rows({"a fixed mask for each mode": masks}, forms="graph", served=20)


@pytest.mark.parametrize("case", doubts)
def test_a_doubt_is_over_soon(case: Case) -> None:
    case.check()


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


def over_one_array() -> Play:
    """Two arguments at first; then memory of their own."""
    arrays = [np.arange(3, dtype=np.float32) for _ in range(6)]
    calls = [(torch.from_numpy(one), torch.from_numpy(one)) for one in arrays]

    def step(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        x.add_(1)
        return x.clone() if (x > 1e9).any() else x * y

    return Play(step, [arrays], calls=[*calls, *(tuple(data(2)) for _ in range(6))])


def a_tensor_for_each_branch() -> Play:
    """Each variant has names of its own for what it reads by reference."""
    held = [torch.zeros(3), torch.full((3,), 100.0)]

    def step(x: torch.Tensor) -> torch.Tensor:
        one = held[0] if x.sum() > 0 else held[1]
        one.add_(1)
        return x + one

    signs = (1, -1, -1, 1, 1, -1, 1, -1, 1)
    return Play(step, held, calls=[(torch.rand(3) * sign,) for sign in signs])


memory = Table("graph")
memory.rows({"over one array": over_one_array}, says=None)
memory.rows({"a tensor for each branch": a_tensor_for_each_branch}, recorded=2)


@pytest.mark.parametrize("case", memory)
def test_memory_that_is_shared_or_seen_otherwise(case: Case) -> None:
    case.check()


# --- a batch of the first calls that lies elsewhere too, and is read there ------------------------

READS: dict[str, Callable[[Any], torch.Tensor]] = {
    "a global dict": lambda model: HELD["first"],
    "an attribute": lambda model: model.first,
    "an object": lambda model: model.store.first,
    "a view of it": lambda model: HELD["first"][:1],
    "its data": lambda model: HELD["first"].data,
}
ORDERS = {
    "then others": [0, 0, 0, 1, 2, 1, 2, 1, 2],
    "in turn": [0, 0, 1, 1, 0, 0, 1, 1, 2, 0, 1],
    "once more": [0, 0, 0, 1, 0, 1, 2, 2],
}
KINDS: dict[str, Callable[[], list[torch.Tensor]]] = {
    "tensors": lambda: [torch.randn(4, 3) for _ in range(3)],
    "rows of one": lambda: list(torch.randn(12, 3).split(4)),
}


def reading(read: Callable[[Any], torch.Tensor], calls: list[Any], trains: bool) -> Play:
    """A linear layer of a batch, less what is read of it or of another one elsewhere."""
    model, first = nn.Linear(3, 3), calls[0]
    HELD["first"] = model.first = first
    model.store = SimpleNamespace(first=first)
    optimizer = optim.SGD(model.parameters(), lr=0.1)

    def build(x: torch.Tensor) -> torch.Tensor:
        loss = model(x - read(model)).square().mean()
        if trains:
            loss.backward()
        return loss

    step: Any = Update(build, model, optimizer) if trains else build
    return Play(step, [model], calls=[(x,) for x in calls])


@pytest.mark.parametrize(
    ("name", "order", "kind", "trains"),
    thinned_rows(
        product(READS, ORDERS, KINDS, (True, False)),
        lambda *row: (
            row
            in {
                ("a global dict", "then others", "tensors", True),
                ("an attribute", "in turn", "tensors", True),
                ("an object", "once more", "rows of one", True),
                ("a view of it", "in turn", "rows of one", True),
                ("its data", "then others", "tensors", True),
                ("an attribute", "in turn", "tensors", False),
                ("a view of it", "in turn", "rows of one", False),
            }
        ),
    ),
)
def test_a_batch_that_is_held(name: str, order: str, kind: str, trains: bool) -> None:
    def play() -> Play:
        batches = KINDS[kind]()
        return reading(READS[name], [batches[n] for n in ORDERS[order]], trains)

    Case(play, says=None, form="updating" if trains else "graph").check()


@pytest.mark.parametrize(
    ("starts", "read"),
    [
        ([0, 4, 8, 12, 0, 4], lambda rows: rows[:4]),
        ([8, 8, 8, 4, 4, 0], lambda rows: rows),
        ([4, 8, 4, 8, 4, 8], lambda rows: rows[2::5]),
    ],
)
def test_batches_are_rows_of_what_the_step_reads_as_well(starts: list[int], read: Any) -> None:
    """Anchors, prototypes, a memory bank: other rows of the data set, or all of it."""

    def play() -> Play:
        rows = torch.randn(20, 3)
        calls = [rows[start : start + 4] for start in starts * 2]
        return reading(lambda model: read(rows).mean(0), calls, True)

    assert Case(play, says=None, form="updating").check().served > 3


def refilled() -> Play:
    """One buffer for all batches."""
    play = reading(READS["an attribute"], [torch.zeros(4, 3)] * 6, False)
    play.before = {n: lambda: play.calls[0][0].normal_() for n in (3, 4, 5)}
    return play


def other_batches() -> Play:
    """One call more is recorded, the second of those that nobody else reads, and no other."""
    calls = [torch.randn(4, 3) for _ in range(3)]
    order = [calls[n] for n in (0, 0, 0, 0, 1, 2, 1)]
    return reading(lambda model: model.weight[:1], order, False)


held = Table("graph")
held.rows({"refilled": refilled}, served=4)
held.rows({"others": other_batches}, served=4)
held.rows(
    {
        # ``as_strided`` counts from where the memory begins, which is not where the argument does.
        "memory in front of it": lambda: Play(
            lambda x: x + x.as_strided((1, 3), (3, 1), 0),
            calls=[(ROWS[n : n + 1],) for n in (1, 1, 2, 3, 1)],
        )
    },
    says="in front of where the argument begins",
)
ROWS = torch.arange(12.0).reshape(4, 3)


@pytest.mark.parametrize("case", held)
def test_a_batch_that_is_held_says_no_more(case: Case) -> None:
    case.check()


# --- a call is over before anything is learnt from it ---------------------------------------------


def scheduled(model: nn.Module | None = None) -> tuple[Train, Any, nn.Module]:
    model = model or nn.Linear(4, 1)
    optimizer = optim.SGD(model.parameters(), 0.1)
    schedule = optim.lr_scheduler.ExponentialLR(optimizer, 0.5)
    return Train(model, optimizer, schedule), schedule, model


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
    assert schedule.last_epoch == graph._runner.live.progress.step == 12


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
