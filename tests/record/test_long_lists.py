"""What a step holds may be long: looking at it takes as many looks as there are items, not more."""

import sys
import warnings

import pytest
import torch

import torchgraph as tg
from tests.contract.models import Function
from torchgraph import _extension
from torchgraph.guards import names
from torchgraph.guards.items import Items
from torchgraph.record.ambient import files
from torchgraph.record.reads.frames import Frames
from torchgraph.record.reads.traversal import Traversal
from torchgraph.testing import counters


def table(count):
    return [{"rate": 0.5 + number, "sub": [number, 1.0]} for number in range(count)]


def looped(rows):
    """A step that goes over rows of a table, item by item."""

    def build(x):
        total = 0.0
        for row in rows:
            total += row["rate"]
            if row["sub"][1] > 0.5:
                total += row["sub"][0]
        return x * total

    return build


def test_a_loop_looks_at_each_row_and_not_at_each_row_for_each_row(monkeypatch):
    walked = []
    contents = Traversal._contents
    monkeypatch.setattr(
        Traversal, "_contents", lambda self, *a: walked.append(1) or contents(self, *a)
    )
    found = []
    for count in (20, 80):
        walked.clear()
        Function(looped(table(count)))(torch.ones(2))
        found.append(len(walked))
    assert found[1] < 6 * found[0]  # sixteen times as many, once for each row in each turn


@pytest.mark.parametrize(
    "change",
    [
        lambda rows: rows[3].update(rate=7.0),
        lambda rows: rows[4]["sub"].__setitem__(1, 0.0),
        lambda rows: rows.append({"rate": 1.0, "sub": [2, 0.0]}),
        lambda rows: rows.__setitem__(2, {"rate": 9.0, "sub": [3, 1.0]}),
        lambda rows: rows[1].pop("sub") and rows[1].update(sub=[8.0, 1.0]),
    ],
)
def test_what_changes_in_a_row_counts(change):
    rows = table(8)
    build = looped(rows)
    graph, x = Function(build), torch.ones(2)
    for _ in range(3):
        for _ in range(4):
            assert torch.equal(graph(x), build(x))
        change(rows)


def test_what_a_loop_stores_in_later_rows_is_read_there():
    def step(x, rows):
        total = 0.0
        for number, row in enumerate(rows):
            total += row["sub"][1]
            rows[(number + 1) % 4]["sub"][1] = row["rate"] + total
        return x * total

    mine, theirs = table(4), table(4)
    graph, x = Function(lambda x: step(x, mine)), torch.ones(2)
    for _ in range(6):
        assert torch.equal(graph(x), step(x, theirs))
        assert mine == theirs


def test_how_long_a_list_is_goes_by_no_item_of_its_items():
    rows = table(3)

    def build(x):
        if not rows:
            return x
        return x * len(rows) + (x if rows else 1.0)

    graph, x = Function(build), torch.ones(2)
    with counters.expect(captures=1):
        for number in range(5):
            rows[0]["rate"] = float(number)
            assert torch.equal(graph(x), build(x))
    rows.append(rows[0])
    assert torch.equal(graph(x), build(x))
    rows.clear()
    assert torch.equal(graph(x), build(x))


@pytest.mark.parametrize(
    ("value", "plain"),
    [
        ([{"a": (1, 2.0)}, {"b": {"c"}}], True),
        ({"a": [print, object]}, False),
        ([torch.ones(1)], None),
        ([bytearray(b"a")], None),
        ([type("Own", (list,), {})()], None),
    ],
)
def test_items_that_tell_by_which_objects_they_are(value, plain):
    items = Items.of(value)
    assert plain is (None if items is None else items.plain)
    assert items is None or items.hold()


def test_items_that_move():
    value = [{"a": [1, 2]}, {"b": 3}]
    for change in (
        lambda: value[0]["a"].append(3),
        lambda: value[0]["a"].pop(),
        lambda: value[1].update(b=4),
        lambda: value[1].update(c=4),
        value.reverse,
    ):
        items = Items.of(value)
        assert items.hold()
        change()
        assert not items.hold()


def test_tuples_of_plain_values_are_looked_at_once(monkeypatch):
    held = [(f"{number}.png", number) for number in range(50)]
    looked = []
    look = names.look
    monkeypatch.setattr(names, "look", lambda *a, **k: looked.append(1) or look(*a, **k))
    checks = pytest.importorskip("torchgraph._guards").Checks()
    names.NameChecks(checks)._inside(held, True, 0)
    assert len(looked) == 1
    assert checks.hold()
    held[3] = ("3.png", 4)
    assert not checks.hold()


@pytest.mark.skipif(_extension.guards() is None, reason="needs the compiled guards")
def test_python_tells_nobody_of_an_id(monkeypatch, tmp_path):
    monkeypatch.setattr(sys, "addaudithook", None)
    told, path = [], tmp_path / "file"
    path.touch()
    audit = files._audit
    monkeypatch.setattr(files, "_audit", lambda *a: told.append(a[0]) or audit(*a))

    def build(x):
        sys._getframe()
        with open(path):
            return x * (id(x) > 0)

    Function(build)(torch.ones(2))
    assert "open" in told
    assert all(event.startswith(("open", "os.", "subprocess.", "socket.")) for event in told)
    told.clear()
    path.read_bytes()
    assert told == []  # between recordings nobody listens


def test_a_turn_that_calls_another_function_reads_what_that_gives():
    class Row:
        def __init__(self, rate):
            self.rate, self.number = rate, rate

        def __gt__(self, other):
            return self.number > other.number

    rows = [Row(1.0), Row(2.0), Row(3.0)]
    functions = [lambda rows: rows[0], lambda rows: rows[0], lambda rows: rows[0], max]

    def build(x):
        return x * sum([function(rows).rate for function in functions])

    graph, x = Function(build), torch.ones(2)
    for number in range(6):
        rows[2].rate = 3.0 + number // 4
        assert torch.equal(graph(x), build(x))


def test_a_turn_that_comes_after_a_scheduler_reads_what_that_has_set():
    weight = torch.nn.Parameter(torch.ones(2))
    optimizer = torch.optim.SGD([weight], 0.5)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda n: 1.0 + n)
    rates = scheduler.base_lrs

    def step(x):
        total = 0.0
        for turn in range(4):
            total += rates[0]
            if turn == 2:
                optimizer.step()
                scheduler.step()
                rates[0] = scheduler.get_last_lr()[0]
        return x * total

    expected = []
    for run in (step, tg.step(step)):
        scheduler.base_lrs[0], scheduler.last_epoch = 0.5, 0
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            expected.append([run(torch.ones(2)) for _ in range(4)])
    assert all(map(torch.equal, *expected))


def test_code_that_looking_runs_is_not_looked_at(monkeypatch):
    class Config:
        factor = 2.0

        def __getattribute__(self, name):
            return object.__getattribute__(self, name)

    config, called = Config(), []
    meet = Frames._meet
    monkeypatch.setattr(
        Frames, "_meet", lambda self, frame: called.append(frame.f_code) or meet(self, frame)
    )

    def build(x):
        return x * getattr(config, "factor")  # noqa: B009 -- as a lookup by a computed name

    Function(build)(torch.ones(2))
    assert called.count(Config.__getattribute__.__code__) == 1  # the step's own
