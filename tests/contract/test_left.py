"""What a step leaves in objects, lists, arrays, gradients and flags: replays leave the like."""

from __future__ import annotations

import sys
from collections import defaultdict, deque
from collections.abc import Callable, Iterator
from itertools import product
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from tests.cases.forms import no_looks
from tests.cases.plays import Play, setting
from tests.cases.table import Case, Table
from tests.support import thinned

replayed = Table(says=None, fallback="eager", least=1)
"""Programs serve some of the calls."""
left = Table(says=None, fallback="eager")


def calls(number: int) -> list[tuple[torch.Tensor]]:
    return [(torch.full((2,), float(n)),) for n in range(number)]


def stepping(statement: str, names: dict[str, Any]) -> Any:
    """A step of one statement over global names."""
    code = f"def step(x):\n    global table, items\n    {statement}\n    return x * 2\n"
    exec(compile(code, "<step>", "exec"), names)
    return names["step"]


# --- objects that are put into other places too ---------------------------------------------------

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
ALIKE = (2, 4, 5, 12, 20, 26, 28)
"""Which of them show in other words what others show."""
OFTEN = [one for number, one in enumerate(PUT) if number not in ALIKE]
MADE: dict[str, Callable[[], Any]] = {
    "list": lambda: [0.5],
    "dict": lambda: {"rate": 1},
    "array": lambda: np.ones(2),
    "tensor": lambda: torch.ones(2),
    "object": lambda: SimpleNamespace(rate=1),
}


class World:
    """A step that puts ``cfg.it`` somewhere, and all places that it may lie in."""

    def __init__(self, statement: str, it: Any) -> None:
        self.cfg = SimpleNamespace(it=it)
        self.cfg.held = {"it": self.cfg.it}
        self.words: list[tuple[Any, str]] = [(it, "first")]
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
        given = {"given": lambda: self.cfg.it, "SimpleNamespace": SimpleNamespace}
        self.names = {**self.places, **given, "cfg": self.cfg}
        self.step = stepping(statement, self.names)

    def put(self, value: Any, word: str) -> None:
        """Another ``cfg.it``, or one that was there before."""
        self.cfg.it = self.cfg.held["it"] = value
        self.words.append((value, word))

    def left(self) -> list[str]:
        """Where the objects lie."""
        return list(self._words([self.names[name] for name in self.places], 0))

    def _words(self, value: Any, level: int) -> Iterator[str]:
        if word := next((word for one, word in self.words if one is value), ""):
            yield word
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


def puts(statement: str, kind: str) -> Play:
    world = World(statement, MADE[kind]())
    first, second = world.cfg.it, MADE[kind]()
    changes = {4: lambda: world.put(second, "second"), 6: lambda: world.put(first, "first")}
    return Play(world.step, [lambda: world.left()], changes, calls(9))


@pytest.mark.parametrize(
    "case",
    thinned(
        product(PUT, MADE),
        keep={*((one, "list") for one in OFTEN), *((PUT[0], kind) for kind in MADE)},
    ),
)
def test_it_is_that_very_object_after_each_call(case):
    Case(lambda: puts(*case), says=None, fallback="eager").check()


def appends(value: str) -> Play:
    """Each call makes its own."""
    world = World(f"items.append({value}); groups['a'].append({value})", [])
    items, groups = world.names["items"], world.names["groups"]
    return Play(world.step, [items, groups, lambda: len(set(map(id, items)))], calls=calls(6))


replayed.rows(
    {
        f"appended anew {value}": lambda value=value: appends(value)
        for value in ["[1.0]", "{'n': [1]}", "SimpleNamespace(n=1)", "({1}, 2)"]
    },
    says="",
)


@replayed()
def one_view_in_two_places():
    model, held = nn.Linear(2, 1), SimpleNamespace(one=None, both=None)

    def step(x):
        view = model.weight.detach()
        held.one, held.both = view, [view, view[0]]
        return model(x).sum().detach()

    def is_one():
        memory = held.one is None or held.one.data_ptr() == model.weight.data_ptr()
        return memory and (held.both is None or held.one is held.both[0])

    return Play(step, [is_one], calls=calls(5))


@replayed()
def a_flag_of_a_tensor_from_outside():
    outside = torch.ones(2)

    def step(x):
        outside.requires_grad_(not outside.requires_grad)
        return (x.sum() * outside.sum()).detach()

    return Play(step, [lambda: outside.requires_grad], calls=calls(9))


@replayed()
def a_place_that_the_loop_empties():
    cfg, held = SimpleNamespace(it=torch.ones(1)), SimpleNamespace(a=None, b=None)

    def step(x):
        held.a = SimpleNamespace(items=[cfg.it])
        held.b = {"it": cfg.it}
        return x * 2

    def empty():
        held.a = held.b = None

    def is_it():
        return held.a is None or (held.a.items[0] is cfg.it, held.b["it"] is cfg.it)

    return Play(step, [is_it], {5: empty}, calls(9))


@replayed()
def a_list_of_its_own_though_it_equals_the_last():
    cfg, held, seen = SimpleNamespace(it=[3.0, 1.0]), SimpleNamespace(a=None), []

    def step(x):
        held.a = sorted(cfg.it)
        return x * 2

    keep = dict.fromkeys(range(7), lambda: seen.append(held.a))
    return Play(step, [lambda: len({id(one) for one in [*seen, held.a]})], keep, calls(7))


@left()
def a_module_attribute_of_an_object_that_comes_back():
    first, second = SimpleNamespace(rate=1), SimpleNamespace(rate=1)
    cfg, module = SimpleNamespace(it=first), nn.Module()

    def step(x):
        module.last = cfg.it
        return x * 2

    changes = {5: setting(cfg, "it", second), 8: setting(cfg, "it", first)}
    return Play(step, [lambda: vars(module).get("last") is cfg.it], changes, calls(11))


@left()
def a_list_that_a_step_returns():
    cfg = SimpleNamespace(sizes=[1.0])

    def around(call):
        found = call()
        return found, found["sizes"] is cfg.sizes

    changes = {5: lambda: setattr(cfg, "sizes", [1.0])}
    return Play(
        lambda x: {"sizes": cfg.sizes, "sum": x.sum()}, (), changes, calls(8), around=around
    )


@left()
def names_before_conditional_expressions():
    cfg = SimpleNamespace(a=1.0, b=2.0, flag=True)

    def step(x):
        found = [cfg.a, 3.0 if cfg.flag else 4.0, 5.0 if cfg.flag else 6.0]
        pair = (cfg.b, 3.0 if cfg.flag else 4.0)
        return x * found[0] * found[1] * found[2] * pair[0] * pair[1]

    changes = {4: setting(cfg, "a", 2.0), 5: setting(cfg, "b", 3.0), 6: setting(cfg, "flag", False)}
    return Play(step, before=changes, calls=calls(7))


# --- lists, arrays, gradients ---------------------------------------------------------------------

MOVES = """
log.insert(0, 1.0); del log[2:]
log.append(1.0); log[:] = log[-2:]
log[len(log):] = [1.0]; log[:1] = []
log.append([]); log[-1].append(1.0)
log.append({"n": 1}); log[-1]["m"] = 2
log[::2] = [1.0] * len(log[::2])
if log: log[-1] = 2.0
log.sort(key=str); log.append(1.0)
""".strip().split("\n")


def logs(statement: str) -> Play:
    log: list[Any] = []
    changes = {5: log.clear, 8: lambda: log.append(5)}  # of ``5["m"] = 2`` eager raises TypeError
    return Play(stepping(statement, {"log": log}), [log], changes, calls(10))


left.rows({statement: lambda statement=statement: logs(statement) for statement in MOVES})
BOUNDED = "log.append(1.0); log.pop(0) if len(log) > 3 else None"
left.rows({BOUNDED: lambda: logs(BOUNDED)}, served=0)


@left()
def an_array_that_is_turned_in_place():
    held = SimpleNamespace(rows=np.array([1.0, 2.0]))
    first = held.rows

    def step(x):
        held.rows[:] = held.rows[::-1]
        return x * float(held.rows[0])

    return Play(
        step, [held, first], {5: lambda: setattr(held, "rows", held.rows.copy())}, calls(10)
    )


@replayed()
def a_gradient_that_the_step_assigns():
    outside = torch.ones(2)

    def step(x):
        outside.grad = x.clone()
        return outside + 1

    return Play(step, [lambda: outside.grad], calls=calls(6))


@left()
def a_gradient_that_the_step_drops():
    outside = torch.ones(2)

    def step(x):
        outside.grad = None
        return x + outside

    changes = {n: lambda: setattr(outside, "grad", torch.ones(2)) for n in (5, 6, 7)}
    return Play(step, [lambda: outside.grad], changes, calls(8))


@left()
def a_tensor_that_requires_a_gradient_since():
    outside, held = torch.ones(2), SimpleNamespace(view=None)

    def step(x):
        held.view = outside.detach()
        outside.add_(1)
        return x * 2

    return Play(step, [lambda: outside.tolist()], {5: outside.requires_grad_}, calls(6))


@pytest.mark.parametrize("case", left + replayed)
def test_after_each_call_it_is_as_after_eager(case):
    case.check()


# --- items of items whose keys are computed -------------------------------------------------------

STORES = """
held.rows[held.n % 2][1] += 1
held.rows[held.n % 2][held.n % 2] += 1
held.rows[held.n % 2][1] = held.rows[held.n % 2][1] + 1
held.deep[0][held.n % 2][1] += 1
held.named[f"k{held.n % 2}"]["x"] += 1
held.named.get("k0")["x"] += 1
list(held.rows)[1][0] += 1
max(held.rows)[0] += 1
for _, value in held.named.items(): value["x"] += 1
held.rows[held.n % 2][1:] = [held.n]
""".strip().split("\n")


def stores(statement: str) -> Play:
    held = SimpleNamespace(n=0, rows=[[0, 0], [5, 0]], deep=[[[0, 0], [0, 0]]])
    held.named = {"k0": {"x": 0}, "k1": {"x": 0}}
    names = {"held": held, "layer": nn.Linear(3, 1)}
    code = f"def step(x):\n    {statement}\n    held.n += 1\n    return layer(x).sum()\n"
    exec(compile(code, "<step>", "exec"), names)
    return Play(names["step"], [held], calls=[(torch.ones(1, 3),)] * 8)


@pytest.mark.parametrize("statement", thinned(STORES, keep=STORES[:1] + STORES[3:6] + STORES[7:]))
def test_each_call_stores_it(statement):
    found = Case(lambda: stores(statement), says=None, configure=no_looks).check()
    own_op = "1:]" in statement and (3, 12) <= sys.version_info < (3, 14)  # STORE_SLICE: read whole
    assert bool(found.served) is not own_op
