"""Objects that a step puts into other places too: replays leave them where eager leaves them."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable, Iterator
from itertools import product
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from tests.contract.loops import falls_back
from tests.support import thinned
from torchgraph.errors import AttributeWriteWarning
from torchgraph.testing import counters

PUT = """
here.last = cfg.it
here.last = cfg.held["it"]
here.last = cfg.held.get("it")
here.last = next(iter(cfg.held.values()))
here.last, here.other = cfg.it, cfg.held
here.last = cfg.it if here is not None else cfg.held
here.last = (cfg.it, here.last[0] if here.last else None)
here.last = given()
here.last = SimpleNamespace(it=cfg.it, sum=x.sum())
here.last = {"before": (here.last or {}).get("now"), "now": cfg.it}
here.last = max([cfg.it, cfg.held], key=lambda one: one is cfg.it)
here.last = [cfg.it]; here.other = here.last
here.last = {"it": cfg.it, "sum": x.sum().detach()}
setattr(here, "last", getattr(cfg, "it"))
vars(here).update(last=cfg.it)
Class.last = cfg.it
module.last = {"it": cfg.it, "sum": x.sum().detach()}
table["it"] = table["other"] = [cfg.it]
table |= {"it": cfg.it}; table = {**table}
table.update(it=cfg.it)
table.setdefault("it", cfg.it)
table[len(table) % 3] = [cfg.it]
items[0] = cfg.it
items[0], items[-1] = items[-1], cfg.it
items.insert(0, cfg.it)
items.append((cfg.it, 2)); del items[:-3]
items[:] = [cfg.it]
items.append(cfg.it)
items += [cfg.it]
items[1].append(cfg.it)
[items.append(cfg.it) for _ in range(2)]
queue.append(cfg.it)
bounded.append(((cfg.it, 1), 2))
groups["it"].append(cfg.it)
""".strip().split("\n")
MADE: dict[str, Callable[[], Any]] = {
    "list": lambda: [0.5],
    "dict": lambda: {"rate": 1},
    "array": lambda: np.ones(2),
    "tensor": lambda: torch.ones(2),
    "object": lambda: SimpleNamespace(rate=1),
}


class World:
    """A step that puts ``cfg.it`` somewhere, and all places that it may lie in."""

    def __init__(self, statement: str, make: Callable[[], Any]) -> None:
        self.cfg = SimpleNamespace(it=make())
        self.cfg.held = {"it": self.cfg.it}
        self.seen: dict[int, str] = {}
        self._all: list[Any] = []
        self.places: dict[str, Any] = {
            "here": SimpleNamespace(last=None, other=None),
            "Class": type("Class", (), {"last": None}),
            "module": nn.Module(),
            "table": {},
            "items": [0, [], 2],
            "queue": deque([1]),
            "bounded": deque([1, 2], maxlen=3),
            "groups": defaultdict(list),
        }
        names = {
            **self.places,
            "cfg": self.cfg,
            "given": lambda: self.cfg.it,
            "SimpleNamespace": SimpleNamespace,
        }
        code = f"def step(x):\n    global table, items\n    {statement}\n    return x * 2\n"
        exec(compile(code, "<step>", "exec"), names)
        self.names, self.step = names, names["step"]
        self.name("first")

    def name(self, word: str) -> None:
        """What ``cfg.it`` is now."""
        self.seen[id(self.cfg.it)] = word
        self._all.append(self.cfg.it)

    def put(self, value: Any) -> None:
        """Another ``cfg.it``."""
        self.cfg.it = self.cfg.held["it"] = value

    def left(self) -> list[str]:
        """Where the objects lie."""
        return list(self._words([self.names[name] for name in self.places], 0))

    def _words(self, value: Any, level: int) -> Iterator[str]:
        if id(value) in self.seen:
            yield self.seen[id(value)]
            return
        held = vars(value) if isinstance(value, (type, nn.Module, SimpleNamespace)) else value
        if isinstance(held, (list, tuple, deque)):
            yield f"{type(value).__name__} of {len(held)}"
            for item in held:
                yield from self._words(item, level + 1)
        elif hasattr(held, "items") and level < 5:
            yield ", ".join(map(str, held))
            for item in list(held.values()):
                yield from self._words(item, level + 1)


def after_each_call(statement: str, kind: str, wrap: Callable[[Any], Any]) -> list[Any]:
    world = World(statement, MADE[kind])
    step = wrap(world.step)
    first, found = world.cfg.it, []
    for number in range(11):
        if number == 5:
            world.put(MADE[kind]())
            world.name("second")
        if number == 8:
            world.put(first)
        step(torch.full((2,), float(number)))
        found.append(world.left())
    return found


@pytest.mark.filterwarnings("ignore::torchgraph.errors.GraphWarning")
@pytest.mark.parametrize(
    "case",
    thinned(
        product(PUT, MADE),
        keep={*((one, "list") for one in PUT), *((PUT[0], kind) for kind in MADE)}
        | {*((PUT[-1], kind) for kind in MADE)},
    ),
)
def test_it_is_that_very_object_after_each_call(case):
    statement, kind = case
    expected = after_each_call(statement, kind, lambda step: step)
    assert after_each_call(statement, kind, falls_back) == expected


@pytest.mark.parametrize("value", ["[1.0]", "{'n': [1]}", "SimpleNamespace(n=1)", "({1}, 2)"])
def test_what_is_appended_anew_is_there_after_replays(value, recwarn):
    world = World(f"items.append({value}); groups['a'].append({value})", list)
    step = falls_back(world.step)
    before = counters.replays
    for _ in range(6):
        step(torch.ones(2))
    assert counters.replays > before
    *_, last = items = world.names["items"]
    assert len(items) == 9
    assert len(world.names["groups"]["a"]) == 6
    assert len(set(map(id, items[3:]))) == 6  # each call makes its own
    assert last == eval(value, world.names)
    assert not [one for one in recwarn if isinstance(one.message, AttributeWriteWarning)]


def test_one_view_in_two_places_is_one_object():
    model, held = nn.Linear(3, 1), SimpleNamespace(one=None, both=None)

    def build(x):
        view = model.weight.detach()
        held.one, held.both = view, [view, view[0]]
        return model(x).sum().detach()

    step = falls_back(build)
    before = counters.replays
    for _ in range(5):
        step(torch.ones(1, 3))
        assert held.one is held.both[0]
        assert held.one.data_ptr() == model.weight.data_ptr()
    assert counters.replays > before


def test_a_flag_that_a_step_turns_of_a_tensor_from_outside_is_turned_by_replays():
    outside = torch.ones(2)

    def build(x):
        outside.requires_grad_(not outside.requires_grad)
        return (x.sum() * outside.sum()).detach()

    step = falls_back(build)
    before = counters.replays
    for number in range(9):
        assert step(torch.ones(3)) == 6
        assert outside.requires_grad is (number % 2 == 0)
    assert counters.replays > before


def test_a_list_that_a_step_returns_is_the_one_that_is_there():
    cfg = SimpleNamespace(sizes=[1.0])
    step = falls_back(lambda x: {"sizes": cfg.sizes, "sum": x.sum()})
    for number in range(8):
        if number == 5:
            cfg.sizes = [1.0]
        assert step(torch.ones(2))["sizes"] is cfg.sizes


def test_names_before_conditional_expressions_are_read():
    cfg = SimpleNamespace(a=1.0, b=2.0, flag=True)

    def build(x):
        found = [cfg.a, 3.0 if cfg.flag else 4.0, 5.0 if cfg.flag else 6.0]
        pair = (cfg.b, 3.0 if cfg.flag else 4.0)
        return x * found[0] * found[1] * found[2] * pair[0] * pair[1]

    step = falls_back(build)
    for a, b, flag in [(1, 2, True)] * 4 + [(2, 2, True), (2, 3, True), (2, 3, False)]:
        cfg.a, cfg.b, cfg.flag = float(a), float(b), flag
        assert torch.equal(step(torch.ones(2)), build(torch.ones(2)))
