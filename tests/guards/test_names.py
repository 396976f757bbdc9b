"""Names in the compiled checks: what Python's own look would notice, they notice, too."""

from __future__ import annotations

import enum
import functools
import random
import types
from collections import Counter, OrderedDict, deque
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tests.support import thinned
from torchgraph import _extension
from torchgraph.guards.aspects import LOOKS, Aspect, Same, look
from torchgraph.guards.names import By, Name, NameChecks, Names, follow

module: Any = _extension.guards()
if module is None:
    pytest.skip("the guards are not compiled here", allow_module_level=True)


class Color(enum.Enum):
    """Something that is one of a few."""

    RED = 1
    BLUE = 2


class Base:
    """Holds an attribute for those that come from it."""

    rate = 0.5

    @property
    def size(self) -> int:
        """Computed at each look."""
        return 3


class Config(Base):
    """An object of the user's."""

    def __init__(self, **attributes: Any) -> None:
        vars(self).update(attributes)


def named(
    owner: object, *path: tuple[By, Any], aspect: Aspect = Aspect.CONTENT, deep: bool = True
) -> Name:
    """A name as it is now."""
    value = follow(owner, path)
    found = look(value, deep=deep) if aspect is Aspect.CONTENT else LOOKS[aspect](value)
    return Name("it", Same(owner), path, deep, found, "", None, aspect=aspect)


def own(owner: object, name: str, **how: Any) -> Name:
    """The name of an attribute."""
    return named(owner, (By.OWN, name), **how)


def compiled(*names: Name) -> Any:
    """Checks of the names as things are."""
    checks = module.Checks()
    NameChecks(checks).add(Names(names))
    assert checks.hold()
    return checks


VALUES: dict[str, tuple[Callable[[], Any], Callable[[], Any]]] = {
    "int": (lambda: 1000, lambda: 1001),
    "int, bool": (lambda: 1, lambda: True),
    "int, float": (lambda: 1, lambda: 1.0),
    "float, bool": (lambda: 1.0, lambda: True),
    "zero": (lambda: 0.0, lambda: -0.0),
    "nan": (lambda: float("nan"), lambda: float("inf")),
    "complex": (lambda: 1j, lambda: complex(0.0, -1.0)),
    "text": (lambda: "abc", lambda: "abd"),
    "bytes": (lambda: b"a", lambda: "a"),
    "None": (lambda: None, lambda: 0),
    "enum": (lambda: Color.RED, lambda: Color.BLUE),
    "tuple": (lambda: (1, (2.0, "x")), lambda: (1, (2, "x"))),
    "array": (lambda: np.ones(3), lambda: np.array([1.0, 1.0, 2.0])),
    "array, dtype": (lambda: np.ones(3), lambda: np.ones(3, np.float32)),
    "array, shape": (lambda: np.ones(4), lambda: np.ones((2, 2))),
    "object": (Config, Config),
    "list": (lambda: [1, [2]], lambda: [1, [3]]),
    "slice": (lambda: slice(1, 2), lambda: slice(1, 3)),
    "partial": (lambda: functools.partial(max, 1), lambda: functools.partial(max, 2)),
}


PLACES = ("attribute", "list", "dict", "nested", "deque", "ordered")


@pytest.mark.parametrize("what", VALUES)
@pytest.mark.parametrize("place", thinned(PLACES, keep=["attribute", "nested", "ordered"]))
def test_another_value_is_noticed_anywhere(what, place):
    one, other = (make() for make in VALUES[what])
    made: dict[str, Callable[[Any], tuple[Any, Any]]] = {
        "attribute": lambda v: (v, lambda held, new: setattr(held, "value", new)),
        "list": lambda v: ([0, v], lambda held, new: held.value.__setitem__(1, new)),
        "dict": lambda v: ({"k": v, 1: 0}, lambda held, new: held.value.update(k=new)),
        "nested": lambda v: ({"k": [(1, {"in": v})]}, _deep),
        "deque": lambda v: (deque([v]), lambda held, new: held.value.__setitem__(0, new)),
        "ordered": lambda v: (OrderedDict(a=1, k=v), lambda held, new: held.value.update(k=new)),
    }
    value, change = made[place](one)
    config = Config(value=value)
    name = own(config, "value")
    checks = compiled(name)
    assert checks.hold()
    change(config, other)
    assert not checks.hold()
    assert not name.holds()
    change(config, one)
    assert name.holds()
    assert checks.hold()


def _deep(config: Any, new: object) -> None:
    config.value["k"][0][1]["in"] = new


@pytest.mark.parametrize("value", [1000, 2.5, "abcd", (1, 2.0), -0.0, float("nan"), b"ab"])
def test_an_equal_value_that_is_another_object_is_no_change_or_python_is_asked(value):
    config = Config(value=value)
    name = own(config, "value")
    checks = compiled(name)
    config.value = eval(repr(value), {"nan": float("nan")}) if value == value else float("nan")
    assert name.holds()
    assert checks.hold() or isinstance(value, bytes)


CHANGES: dict[str, tuple[Callable[[], Any], Callable[[Any], object]]] = {
    "list grows": (lambda: [1, 2], lambda v: v.append(3)),
    "list shrinks": (lambda: [1, 2], lambda v: v.pop()),
    "list of another order": (lambda: [1, 2], lambda v: v.reverse()),
    "long list, in the middle": (lambda: list(range(5000)), lambda v: v.__setitem__(2500, -1)),
    "dict grows": (lambda: {"a": 1}, lambda v: v.update(b=1)),
    "dict shrinks": (lambda: {"a": 1, "b": 2}, lambda v: v.pop("a")),
    "dict of another order": (lambda: {"a": 1, "b": 2}, lambda v: v.update(a=v.pop("a"))),
    "key of another type": (lambda: {1: "a"}, lambda v: v.update({True: v.pop(1)})),
    "long dict": (lambda: dict.fromkeys(range(5000), 0), lambda v: v.update({2500: 1})),
    "moved to the end": (lambda: OrderedDict(a=1, b=2), lambda v: v.move_to_end("a")),
    "set grows": (lambda: {1, 2}, lambda v: v.add(3)),
    "set shrinks": (lambda: {1, 2}, lambda v: v.discard(1)),
    "set, another of its size": (lambda: {1, 2}, lambda v: (v.discard(1), v.add(3))),
    "set, equal and of another type": (lambda: {1, 2}, lambda v: (v.discard(1), v.add(1.0))),
    "deque turns": (lambda: deque([1, 2]), lambda v: v.rotate()),
    "counter": (lambda: Counter(a=1), lambda v: v.update(a=1)),
    "array in place": (lambda: np.zeros(3), lambda v: v.fill(1)),
    "bytearray": (lambda: bytearray(3), lambda v: v.__setitem__(0, 1)),
    "deep": (lambda: [[[[1]]]], lambda v: v[0][0][0].append(1)),
    "in a tuple": (lambda: ([1],), lambda v: v[0].append(1)),
    "cached": (lambda: functools.lru_cache(lambda x: x), lambda v: v(1)),
    "not cached": (lambda: functools.lru_cache(maxsize=0)(lambda x: x), lambda v: v(1)),
    "cached in a list": (lambda: [functools.lru_cache(lambda x: x)], lambda v: v[0](1)),
    "attribute of a list": (lambda: type("L", (list,), {})([1]), lambda v: setattr(v, "a", 1)),
}


@pytest.mark.parametrize("what", CHANGES)
def test_a_change_inside_is_noticed(what):
    make, change = CHANGES[what]
    config = Config(value=make())
    name = own(config, "value")
    checks = compiled(name)
    change(config.value)
    assert not checks.hold()
    assert not name.holds()


def test_a_cached_function_is_asked_when_its_cache_has_changed(monkeypatch):
    cached = functools.lru_cache(lambda x: x)
    cached(1)
    config = Config(table={"a": (cached, "text")})
    checks = compiled(own(config, "table"))
    monkeypatch.setattr("torchgraph.guards.names.look", lambda *_, **__: pytest.fail("asked"))
    for _ in range(3):
        cached(1)
        assert checks.hold()
    monkeypatch.undo()
    cached(2)
    assert not checks.hold()


def rebase(cls: Any) -> None:
    cls.__bases__ = (type("Other", (Base,), {"rate": 1.0}),)


OF_A_CLASS: dict[str, Callable[[Any], object]] = {
    "set": lambda cls: setattr(cls.__mro__[1], "rate", 0.25),
    "deleted": lambda cls: delattr(cls.__mro__[1], "rate"),
    "hidden": lambda cls: setattr(cls, "rate", 0.5),
    "of other bases": rebase,
}


@pytest.mark.parametrize("what", OF_A_CLASS)
def test_an_attribute_of_a_class(what):
    between = type("Between", (Base,), {"rate": 0.75})
    cls = type("Mine", (between,), {})
    name = named(cls, (By.CLASS, "rate"))
    size = named(cls, (By.CLASS, "size"))  # a property: it does not run
    checks = compiled(name, size)
    OF_A_CLASS[what](cls)
    assert not checks.hold()


def test_a_property_and_a_method_of_a_class():
    cls: Any = type("Mine", (Base,), {"go": classmethod(lambda cls: 1)})
    for name, other in (("size", property(lambda self: 4)), ("go", classmethod(lambda cls: 2))):
        checks = compiled(named(cls, (By.CLASS, name)))
        setattr(cls, name, other)
        assert not checks.hold()


def test_an_attribute_of_a_module_and_one_that_is_absent():
    space: Any = types.ModuleType("space")
    space.rate = 1
    checks = compiled(own(space, "rate"), own(space, "other"))
    space.more = 1
    assert checks.hold()
    space.other = 1
    assert not checks.hold()
    del space.other
    assert checks.hold()
    del space.rate
    assert not checks.hold()


def test_what_cannot_change_costs_nothing():
    rows = Rows()
    code = compiled.__code__
    NameChecks(rows).add([named(code, (By.SLOT, "co_varnames")), named(dict, (By.CLASS, "get"))])
    assert rows.count == {}


def test_an_object_that_is_gone_is_read_by_nobody():
    class Trainer:
        __slots__ = ("__weakref__", "model")

    trainer = Trainer()
    trainer.model = Config()
    checks = compiled(named(trainer, (By.SLOT, "model")))
    trainer.model = Config()
    assert not checks.hold()
    del trainer
    assert checks.hold()


# --- places that the step moves ------------------------------------------------------------------


@pytest.mark.parametrize("held", ["attribute", "item"])
def test_of_a_place_that_moves_the_type_is_compared(held):
    owner: Any = Config(step=1) if held == "attribute" else {"step": 1}
    place: Any = vars(owner) if held == "attribute" else owner
    by = By.OWN if held == "attribute" else By.ITEM
    name = named(owner, (by, "step"), aspect=Aspect.KIND)
    rows = Rows()
    NameChecks(rows).add([name])
    assert rows.count == {"kind": 1}
    checks = compiled(name)
    for value in (2, 10**30, -1):
        place["step"] = value
        assert checks.hold()
        assert name.holds()
    for value in (1.0, True, None, np.int64(1)):
        place["step"] = value
        assert not checks.hold()
        assert not name.holds()
    del place["step"]
    assert not checks.hold()


# --- how much is compared ------------------------------------------------------------------------


class Rows:
    """Counts what is added to checks, and how large it is."""

    def __init__(self) -> None:
        self.count: Counter[str] = Counter()
        self.size = 0

    def __getattr__(self, name: str) -> Any:
        def add(*arguments: Any) -> None:
            self.count[name] += 1
            whole = name in ("members", "elements", "content")
            self.size += len(arguments[0]) if whole else 1

        return add


def table(entries: int) -> Any:
    """As libraries keep what they can do: names, functions that look once, and texts."""
    return OrderedDict((f"k{i}", (functools.lru_cache(lambda: True), "t")) for i in range(entries))


def test_a_table_costs_as_much_as_it_has_entries():
    rows = []
    for entries in (50, 100, 200):
        rows.append(Rows())
        space = {"TABLE": table(entries)}
        names = [named(space, (By.ITEM, "TABLE"), (By.ITEM, f"k{i}")) for i in range(entries)]
        NameChecks(rows[-1]).add([named(space, (By.ITEM, "TABLE")), *names])
        assert rows[-1].count["call"] == 0  # nothing is looked at in Python
    one, two, four = (sum(each.count.values()) for each in rows)
    assert two - one == (four - two) / 2
    one, two, four = (each.size for each in rows)
    assert two - one == (four - two) / 2


# --- against Python ------------------------------------------------------------------------------


def some(draw: random.Random, level: int = 0) -> Any:
    """Any value, of containers up to a few levels."""
    plain = [0, 1, 1.0, True, False, None, -0.0, 0.0, float("nan"), float("inf"), "a", b"a"]
    plain += [Color.RED, 10**20, 1 + 0j, (), range(3)]
    if level > 2 or draw.random() < 0.4:
        return draw.choice(plain)
    parts = [some(draw, level + 1) for _ in range(draw.randrange(4))]
    keys = draw.sample(["a", "b", 1, 2.5, (1, "x"), None, Color.BLUE], len(parts))
    hashed = [part for part in parts if isinstance(part, (int, str, float, type(None)))]
    makes: list[Callable[[], Any]] = [
        lambda: parts,
        lambda: tuple(parts),
        lambda: dict(zip(keys, parts, strict=True)),
        lambda: OrderedDict(zip(keys, parts, strict=True)),
        lambda: deque(parts),
        lambda: set(hashed),
        lambda: np.array([draw.randrange(3) for _ in parts]),
    ]
    return draw.choice(makes)()


def moved(draw: random.Random, value: Any) -> None:
    """Change something in a value, if it has anything that can be changed."""
    inside = list(value.values()) if isinstance(value, dict) else []
    inside = list(value) if isinstance(value, (list, tuple, deque)) else inside
    if inside and draw.random() < 0.6:
        moved(draw, draw.choice(inside))
    elif isinstance(value, (list, deque)):
        if value and draw.random() < 0.7:
            value[draw.randrange(len(value))] = some(draw, 2)
        else:
            value.append(some(draw, 2))
    elif isinstance(value, dict):
        value[draw.choice(["a", 1, "new"])] = some(draw, 2)
        if isinstance(value, OrderedDict) and draw.random() < 0.5:
            value.move_to_end(next(iter(value)))
    elif isinstance(value, set):
        value.symmetric_difference_update({draw.choice([1, 1.0, "a", 7])})
    elif isinstance(value, np.ndarray) and value.size:
        value[0] = draw.randrange(3)


@pytest.mark.parametrize("seed", thinned(range(20), keep=range(6)))
def test_what_python_notices_is_noticed(seed):
    draw = random.Random(seed)
    owner = Config(**{name: some(draw) for name in "abcd"})
    names = Names([own(owner, name, deep=draw.random() < 0.8) for name in "abcde"])
    checks = compiled(*names)
    for _ in range(100):
        if draw.random() < 0.3:
            setattr(owner, draw.choice("abcde"), some(draw))
        elif draw.random() < 0.2:
            vars(owner).pop(draw.choice("abcde"), None)
        else:
            moved(draw, vars(owner).get(draw.choice("abcde")))
        if names.which():
            assert not checks.hold()
        if names.which() or not checks.hold():
            names = Names([name.now() for name in names])
            checks = compiled(*names)
