"""Attributes, class attributes, levels of loggers: read by a step, and changed between calls."""

import logging
import math
import weakref
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from torch import nn

from tests.cases.forms import Update
from tests.cases.plays import Play, moves, setting, singles
from tests.cases.table import Case, Table
from tests.contract.loops import sgd
from tests.contract.models import Eval, data
from tests.support import by_name, settle
from torchgraph.errors import AttributeWriteWarning

table = Table("graph")
stepped = Table()


class Pair(NamedTuple):
    """A container that is no plain tuple."""

    left: float
    right: Any


class Reads(nn.Module):
    """Applies a function of itself and of the input."""

    def __init__(self, forward: Any, **attributes: Any) -> None:
        super().__init__()
        self.apply_to = forward
        vars(self).update(attributes)

    def forward(self, x):
        return self.apply_to(self, x)


def module(
    forward: Any, attributes: dict[str, Any] | None = None, number: int = 10, **before: Any
) -> Play:
    """A module is called; ``before5=...`` is done with it before call 5."""
    model = Reads(forward, **(attributes or {}))
    changes = {name: lambda change=change: change(model) for name, change in before.items()}
    return moves(model, lambda: vars(model).get("seen"), number=number, **changes)


def put(name: str, value: Any) -> Any:
    return lambda model: setattr(model, name, value)


# --- values that change ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("relu", "tanh"),
        (None, 1),
        (torch.float32, torch.float64),
        (2, 2.0),
        (1, True),
        (0.0, -0.0),
        (torch.tanh, torch.relu),
        (np.float32(0.0), np.float32(-0.0)),
        (np.int64(2), np.int64(3)),
        (np.arange(3.0), np.ones(3)),
        ({"w": 1.0}, {"w": 2.0}),
        ({"w": 1.0, "v": 1}, {"v": 1, "w": 1.0}),
        ({1}, {2}),
        (Pair(1.0, [2.0]), Pair(1.0, [3.0])),
        (SimpleNamespace(w=1.0), SimpleNamespace(w=2.0)),
        pytest.param([torch.tanh], [torch.relu], id="functions"),
    ],
    ids=by_name,
)
def test_an_attribute_that_build_read_changes(old, new):
    def play():
        return module(
            lambda self, x: x * 2 if repr(self.value) == repr(old) else x * 3,
            {"value": old},
            number=7,
            before4=put("value", new),
            before5=put("value", old),
        )

    Case(play, served=4, recorded=2, form="graph").check()


table.rows(
    {
        f"an_equal_{name}": lambda make=make: Play(
            (model := Reads(lambda self, x: x * len(repr(self.value)), value=make())),
            before={n: lambda: setattr(model, "value", make()) for n in range(8)},
            calls=singles(8),
        )
        for name, make in {
            "array": lambda: np.arange(3.0),
            "dict": lambda: {"w": [1.0], "v": None},
            "named_tuple": lambda: Pair(1.0, [2.0]),
        }.items()
    },
    recorded=1,
    served=6,
)


@table(recorded=3, served=5)
def a_class_attribute():
    class Classy(nn.Module):
        scale = 2

        def forward(self, x):
            return x * self.scale

    model = Classy()
    return moves(
        model,
        number=10,
        before4=setting(model, "scale", 3),
        before5=lambda: delattr(model, "scale"),
        before7=setting(Classy, "scale", 4),
    )


table.rows(
    {
        "a_tensor_that_is_no_buffer": lambda: module(
            lambda self, x: x * self.scale,
            {"scale": torch.full((4,), 2.0)},
            before5=lambda model: model.scale.fill_(3.0),
            before7=lambda model: setattr(model, "scale", torch.full((4,), 4.0)),
        ),
        "read_by_getattr": lambda: module(
            lambda self, x: x * getattr(self, "extra", 2), before5=put("extra", 3)
        ),
        "an_attribute_that_settles": lambda: module(settles, before6=put("table", torch.ones(4))),
    },
)


def settles(self, x):
    if getattr(self, "table", None) is None:
        self.table = torch.arange(4.0)
    return x * self.table


def counts(self, x):
    self.seen += 1
    return x * 2


table.rows(
    {
        "an_attribute_not_read": lambda: module(
            lambda self, x: x + 1, {"label": "one"}, before5=put("label", "two")
        ),
        "a_counter_that_nothing_reads": lambda: module(
            counts, {"seen": 0}, before7=put("seen", 100)
        ),
    },
    recorded=1,
    served=8,
)


def lengthens(self, x):
    self.seen += "1"  # here
    return x * len(self.seen)


def appends(self, x):
    self.seen.append(x)
    return x + len(self.seen)  # there


def collects(calls: int) -> Play:
    model = Reads(appends, seen=[])
    return Play(model, [lambda: model.seen], calls=singles(calls))


table.rows(
    {"a_text_that_moves": lambda: module(lengthens, {"seen": ""})},
    says=r"(?s)seen was '1+' and is '1+'.*test_attr.*# here.*Fix: keep the state in a tensor",
)
table.rows(
    {
        "a_list_that_the_step_makes_of_itself": lambda: module(
            lambda self, x: setattr(self, "seen", [*self.seen, 1]) or x * 2, {"seen": []}
        )
    },
    says=r"seen",
)
table.rows({"a_list_that_grows_in_two_calls": lambda: collects(2)}, served=0)
table.rows({"in_three": lambda: collects(3)}, says=r"was 2 and is 3(?s:.*)# there")
table.rows({"in_eight": lambda: collects(8)}, says=r"was 2 and is 3(?s:.*)# there")


# --- numbers that a training loop sets ------------------------------------------------------------


def annealed(first: int) -> Play:
    """As the weight of a KL term is warmed up: it moves in ten steps, and stays at the end."""

    class Weighted(nn.Linear):
        beta = 0.0

        def forward(self, x):
            return super().forward(x).square().mean() + self.beta * self.weight.square().sum()

    model = Weighted(4, 3)
    optimizer = sgd(model.parameters())

    def build(x):
        loss = model(x)
        loss.backward()
        return loss

    betas = {n: setting(model, "beta", min(1.0, 0.1 * max(0, n - first))) for n in range(40)}
    step = Update(build, model, optimizer)
    return Play(step, [model, optimizer], betas, singles(first + 20))


BETA = r"model\.beta was .* and is .*: pass it as an argument"
table.rows({"annealed": lambda: annealed(0)}, says=BETA, forms="updating", served=7)
table.rows({"annealed_later": lambda: annealed(5)}, says=BETA, forms="updating", served=4 + 7)


def buffer(value: torch.Tensor, read: Any, *changes: float) -> Play:
    model = nn.Linear(4, 3)
    model.register_buffer("held", value)
    before = {n: lambda to=to: model.held.fill_(to) for n, to in enumerate(changes)}
    return Play(lambda x: model(x) * read(model.held.item()), [model], before, singles(9))


def signed(value):
    return math.copysign(2.0, getattr(value, "real", value))


SIGNS = (0.0, 0.0, 0.0, 0.0, -0.0, -0.0, -0.0, 0.0, -0.0)
table.rows(
    {
        "a_sign_of_zero": lambda: buffer(torch.tensor(0.0), signed, *SIGNS),
        "a_sign_of_complex_zero": lambda: buffer(torch.tensor(0j), signed, *SIGNS),
    }
)
table.rows(
    {"nan_is_one_value": lambda: buffer(torch.tensor(math.nan), lambda v: 2 if v > 1 else 3)},
    served=7,
)


# --- loggers --------------------------------------------------------------------------------------

LOG = logging.getLogger("tests.contract.loggers")


def logs(to: int, change: Any) -> Play:
    """Twice as much where the level asks for it."""
    logging.disable(logging.NOTSET)
    logging.root.setLevel(logging.WARNING)
    LOG.setLevel(to)
    return Play(
        lambda x: x * 2 if LOG.isEnabledFor(logging.INFO) else x + 0, (), {4: change}, singles(8)
    )


def told(x):
    LOG.debug("a batch of %d", len(x))
    return x * 2


table.rows(
    {
        "its_own_level": lambda: logs(logging.ERROR, lambda: LOG.setLevel(logging.INFO)),
        "the_level_of_all": lambda: logs(
            logging.NOTSET, lambda: logging.root.setLevel(logging.INFO)
        ),
        "disabled_for_all": lambda: logs(logging.INFO, lambda: logging.disable(logging.INFO)),
    },
    recorded=2,
)
table.rows(
    {
        "another_logger": lambda: moves(
            told, before4=lambda: logging.getLogger("tests.another").setLevel(logging.ERROR)
        )
    },
    recorded=1,
    served=12,
)


@pytest.fixture(autouse=True)
def levels():
    """The levels as they were before."""
    before = LOG.level, logging.root.level
    yield
    LOG.setLevel(before[0])
    logging.root.setLevel(before[1])
    logging.disable(logging.NOTSET)


@pytest.mark.parametrize("case", table)
def test_a_graph_notices(case):
    case.check()


# --- what stands in nobody's way ------------------------------------------------------------------


class Trainer:
    """Its batch lies in an attribute, among others."""

    def __init__(self):
        self.model = nn.Linear(4, 4)
        self.optimizer = sgd(self.model.parameters())
        self.weight, self.logs, self.rows = torch.ones(4, 4), False, []

    def of_two(self, a, b):
        return self.update((self.model(a) * b).square().mean())

    def update(self, loss):
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        return loss.detach()

    def starred(self):
        return self.of_two(*self.batch)

    def looped(self):
        return self.update(sum(self.model(x).mean() for x in self.batch))

    def same_or_not(self):
        a, b = self.batch
        return self.of_two(a, b) * (2.0 if a is b else 1.0)

    def one_line(self):
        if self.logs:
            self.rows.append(sum(float(x.sum()) for x in self.batch))
        return self.of_two(self.one, self.other)

    def feed(self, call: int) -> None:
        self.one, self.other = torch.randn(2, 4), torch.randn(2, 4)
        pairs = {
            9: (self.one, self.one),
            10: (self.weight[:2], self.other),
            11: (self.one, self.model.weight[:2].detach()),
            13: tuple(torch.randn(4, 4).split(2)),
        }
        self.batch, self.logs = pairs.get(call, (self.one, self.other)), call == 12


@pytest.mark.parametrize("name", ["starred", "looped", "same_or_not", "one_line"])
def test_a_batch_in_an_attribute(name):
    def play():
        one = Trainer()
        feeds = {n: lambda n=n: one.feed(n) for n in range(18)}
        return Play(getattr(one, name), [one.model, one.rows], feeds, [()] * 18)

    found = Case(play, says=None).check()
    assert found.served >= 4 or name == "same_or_not"


SCRATCH: dict[str, Any] = {
    "list": (lambda x, own: [x, own["rows"]], lambda net, h: net(h[0]) * sum(h[1])),
    "dict": (lambda x, own: {"x": x, "own": own}, lambda net, h: net(h["x"]) * h["own"]["a"]),
    "itself": (lambda x, own: own, lambda net, h: net(net.x) * h["a"]),
}


def scratch(kind: str) -> Play:
    """What lies in it besides is read, wherever it lies for good."""
    model, optimizer = (net := nn.Linear(4, 1)), sgd(net.parameters())
    model.held, model.own = None, {"a": 1.0, "rows": [1.0, 2.0]}
    hold, compute = SCRATCH[kind]

    def step(x):
        model.x, model.held = x, hold(x, model.own)
        loss = compute(model, model.held).square().mean()
        model.held = model.x = None
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss

    def change():
        model.own["a"] = 3.0
        model.own["rows"].append(4.0)
        model.own["b"] = 0.0

    return moves(step, model, optimizer, before7=change)


class Wrapped(torch.optim.Optimizer):
    """As accelerate's: it has no groups of its own."""

    state = property(lambda self: self.optimizer.state)
    param_groups = property(lambda self: self.optimizer.param_groups)

    def __init__(self, optimizer):
        self.optimizer = optimizer

    def zero_grad(self):
        self.optimizer.zero_grad()

    def step(self, closure=None):
        self.optimizer.step(closure)


def a_wrapped_optimizer_and_a_proxy() -> Play:
    model, strategy = nn.Linear(4, 1), type("Strategy", (), {"scale": 2.0})()
    inner = sgd(model.parameters())
    wrapped, held = Wrapped(inner), SimpleNamespace(strategy=weakref.proxy(strategy))
    kept = [strategy]  # which the proxy does not keep

    def step(x):
        wrapped.zero_grad()
        assert held.strategy is not None
        loss = model(x).square().mean() * held.strategy.scale
        loss.backward()
        wrapped.step()
        return loss

    def decay():
        inner.param_groups[0]["lr"] *= 0.9

    play = moves(step, model, inner, lambda: len(kept), before8=setting(strategy, "scale", 3.0))
    play.before = {**dict.fromkeys(set(range(14)) - {8}, decay), **play.before}
    return play


stepped.rows({f"scratch_as_{kind}": lambda kind=kind: scratch(kind) for kind in SCRATCH}, served=10)
stepped.rows({"wrapped": a_wrapped_optimizer_and_a_proxy}, served=10)


@pytest.mark.parametrize("case", stepped)
def test_a_step_notices(case):
    case.check()


# --- what is written ------------------------------------------------------------------------------


def test_an_attribute_written_is_left_by_recorded_calls_with_one_warning():
    class Caches(nn.Linear):
        def forward(self, x):
            self.last = super().forward(x)  # here
            return self.last * 1

    model = Caches(4, 2)
    model.last = "before"
    graph = Eval(model)
    graph.config.set_look_again("off")  # or it is left by those that are looked at, too
    batches = data(4)
    with pytest.warns(AttributeWriteWarning, match=r"(?s)model\.last.*# here") as found:
        got = [graph(x) for x in batches]
    assert len(found) == 1
    expected = [nn.functional.linear(x, model.weight, model.bias) for x in batches]
    assert all(map(torch.equal, got, expected))
    assert torch.equal(model.last, expected[1])  # the second call is the last that records


def test_a_new_attribute_written_stays():
    model = Reads(lambda self, x: setattr(self, "shape_seen", x.shape[0]) or x + 1)
    graph = Eval(model)
    graph(*data())
    assert model.shape_seen == 5
    settle(graph, *data())
    model.shape_seen = "the user's"
    graph(*data())
    assert model.shape_seen == 5


def test_an_attribute_written_by_a_call_that_fails_is_put_back():
    def writes(self, x):
        self.seen.append(x)
        self.calls, self.new = self.calls + 1, 1
        raise KeyError("mine")

    model = Reads(writes, seen=[], calls=0)
    with pytest.raises(KeyError, match="mine"):
        Eval(model)(*data())
    assert (model.seen, model.calls, hasattr(model, "new")) == ([], 0, False)
