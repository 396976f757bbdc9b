"""The compiled checks themselves: what they compare, what they hold, that nothing breaks them."""

from __future__ import annotations

import gc
import random
import sys
import weakref
from typing import Any

import pytest
import torch

from tests.support import thinned
from torchgraph import _extension
from torchgraph.guards.checks import Members

module = _extension.guards()
if module is None:
    pytest.skip("the guards are not compiled here", allow_module_level=True)


class Thing:
    """Something to hold."""

    def is_there(self) -> bool:
        """Something to call."""
        return True


def made(**added: Any):
    """Checks with one call of a method for each argument."""
    checks = module.Checks()
    for name, arguments in added.items():
        getattr(checks, name)(*arguments)
    return checks


def test_nothing_to_compare_holds():
    assert made().hold() is True
    assert made().no_gradients() is True


@pytest.mark.parametrize("kind", ["members", "slots", "settings"])
def test_a_dict(kind):
    held = {"a": Thing(), "b": None, "c": (1, Thing()), 4: {}}
    checks = made(**{kind: (held, {}, dict(held))})
    assert checks.hold()

    first = held.pop("a")
    assert not checks.hold()
    held["a"] = first
    assert not checks.hold()  # the same entries in another order: others lead the loops over them
    rest = {key: held.pop(key) for key in list(held) if key != "a"}
    held.update(rest)
    assert checks.hold()
    held["b"] = Thing()
    assert not checks.hold()


@pytest.mark.parametrize(
    ("kind", "old", "new", "holds"),
    [
        ("members", 1000, int("1000"), False),
        ("slots", 1000, int("1000"), True),
        ("slots", 1, 2, True),
        ("slots", 1.0, 2.0, True),
        ("slots", 1, 1.0, False),
        ("slots", 1, True, False),
        ("slots", True, False, False),
        ("slots", "abc", "".join(["a", "bc"]), False),
        ("settings", 1.0, 2.0, True),
        ("settings", 1000, int("1000"), True),
        ("settings", 1000, 1001, False),
        ("settings", 1, True, False),
        ("settings", 0, 0.0, False),
        ("settings", "abc", "".join(["a", "bc"]), True),
        ("settings", "abc", "abd", False),
        ("settings", (1, 2.0, ("x", None)), (int("1"), 3.0, ("x", None)), True),
        ("settings", (1, 2.0), (2, 2.0), False),
        ("settings", (1, 2.0), (1, 2), False),
        ("settings", (1, 2.0), (1, 2.0, 3), False),
        ("settings", (1, 2.0), [1, 2.0], False),
        ("settings", (1, {}), (1, {}), False),  # for Python to decide
        ("settings", 10**40, 10**40 + 1, False),
    ],
)
def test_values_that_may_differ(kind, old, new, holds):
    held = {"value": old}
    checks = made(**{kind: (held,)})
    held["value"] = new
    assert checks.hold() is holds


@pytest.mark.parametrize(
    ("old", "new", "holds"),
    [
        (0.5, float("0.5"), True),
        (0.5, 0.25, False),
        (0.0, -0.0, False),
        (float("nan"), float("nan"), True),
        (2, 2.0, False),
        (1, True, False),
        ("abc", "".join(["a", "bc"]), True),
        ((1, 0.0), (1, -0.0), False),
        ((1, 0.5), (1, float("0.5")), True),
        (1j, complex("1j"), False),  # for Python to decide
    ],
)
def test_an_item(old, new, holds):
    held = {"value": old}
    checks = made(item=(held, "value", old))
    held["value"] = new
    assert checks.hold() is holds
    del held["value"]
    assert not checks.hold()


def test_an_absent_item():
    held: dict[str, int] = {}
    checks = made(absent=(held, "value"))
    assert checks.hold()
    held["value"] = 1
    assert not checks.hold()


def test_an_instance():
    thing = Thing()
    thing.a, thing.b, thing.c = {}, {}, 1
    checks = made(instance=(thing, vars(thing), ("a", "b")))
    thing.c = 2
    assert checks.hold()
    thing.b = {}
    assert not checks.hold()
    thing.b = vars(thing)["b"]
    other = made(instance=(thing, vars(thing), ("a", "b")))
    thing.d = 1
    assert not other.hold()
    del thing.d
    assert other.hold()
    thing.__class__ = type("Other", (), {})
    assert not other.hold()


def test_elements_and_attributes():
    things, thing = [Thing(), Thing()], Thing()
    thing.value = 5000
    checks = made(elements=(things,), attribute=(thing, "value", thing.value))
    assert checks.hold()
    things.append(things[0])
    assert not checks.hold()
    things.pop()
    assert checks.hold()
    things.reverse()
    assert not checks.hold()
    things.reverse()
    thing.value = int("5000")
    assert not checks.hold()


def test_hooks_are_looked_at_when_the_number_moves():
    thing, own = Thing(), {"hooks": {}}
    looks = []
    thing.next_id = 1000
    checks = made(hooks=(thing, "next_id", [(own, "hooks")], lambda: looks.append(1) or True))
    assert checks.hold()
    assert looks == []
    thing.next_id = 1001
    assert checks.hold()
    assert checks.hold()
    assert looks == [1]
    own["hooks"] = {1: print}
    assert checks.hold()  # no new number
    thing.next_id = 1002
    assert not checks.hold()
    assert not checks.hold()
    own["hooks"].clear()
    assert checks.hold()
    assert looks == [1, 1]


def test_what_is_called_says_true_or_it_does_not_hold():
    for result, holds in ((True, True), (False, False), (1, False), (None, False)):
        assert made(call=(lambda result=result: result, ())).hold() is holds


def test_exceptions_pass():
    def failing(*_: object):
        raise ZeroDivisionError

    class Failing:
        value = property(failing)

    assert not made(members=({},), call=(bool, ())).hold()
    for checks in (
        made(call=(failing, (1, 2))),
        made(call=(failing, ()), elements=([],)),
    ):
        with pytest.raises(ZeroDivisionError):
            checks.hold()
    with pytest.raises(ZeroDivisionError):
        made(attribute=(Failing(), "value", 1)).hold()
    assert not made(attribute=(Thing(), "value", 1)).hold()  # it is gone
    thing = Thing()
    thing.next_id = 1
    checks = made(hooks=(thing, "next_id", [], failing))
    thing.next_id = 2
    with pytest.raises(ZeroDivisionError):
        checks.hold()


@pytest.mark.parametrize(
    ("method", "arguments"),
    [
        ("members", ([],)),
        ("slots", ({}, None)),
        ("settings", (1,)),
        ("elements", ((),)),
        ("elements", ()),
        ("item", ([], "a", 1)),
        ("absent", ({},)),
        ("instance", (1, [], ())),
        ("instance", (1, {}, [])),
        ("attribute", (1, 2, 3)),
        ("call", (print, [])),
        ("hooks", (Thing, "__name__", [1], print)),
        ("hooks", (Thing, "__name__", [({}, 1)], print)),
        ("hooks", (Thing, "__name__", [({},)], print)),
        ("gradients", (torch.Tensor, "grad", [])),  # its base has the getter
        ("gradients", (torch.Tensor.grad.__objclass__, "nothing", [])),
        ("gradients", (torch.Tensor.grad.__objclass__, "grad", [1])),
        ("gradients", (1, "grad", [])),
        ("layout", (torch.Tensor, (1, 2))),
        ("layout", (1, (0, 0, (0, 0), (0, 0), 0, 0, 0, 0, 0, 0, 0, 0, 0))),
        ("tensors", (print, (torch.ones(1),))),  # no layout yet
        ("leaves", ([torch.ones(1)],)),
    ],
)
def test_wrong_arguments(method, arguments):
    checks = module.Checks()
    with pytest.raises(TypeError):
        getattr(checks, method)(*arguments)


def test_an_instance_without_the_entry():
    with pytest.raises(KeyError):
        made(instance=(1, {}, ("a",)))


def test_gradients():
    getter = torch.Tensor.grad.__objclass__, "grad"
    tensors = [torch.ones(2, requires_grad=True) for _ in range(5)]
    checks = made(gradients=(*getter, tensors))
    assert checks.no_gradients() is True
    tensors[4].grad = torch.ones(2)
    assert checks.no_gradients() is False
    assert checks.hold()


def test_a_dict_that_changes_during_the_check():
    held = {i: Thing() for i in range(100)}
    later = [{i: Thing()} for i in range(100)]

    def change():
        held.clear()
        held.update({i: i for i in range(1000)})
        for one in later:
            one.clear()
        return True

    checks = made(call=(change, ()), members=(held, *later))
    assert checks.hold()  # dicts come first
    assert not checks.hold()


def test_finalizers_that_ask_again_find_nothing_that_holds():
    answers = []

    class Asks:
        def __del__(self):
            answers.append((self.checks.hold(), self.checks.no_gradients()))

    checks = module.Checks()
    asks = Asks()
    asks.checks = checks
    checks.members({"asks": asks}, {"checks": checks})
    del checks, asks
    gc.collect()
    assert answers in ([(True, True)], [(False, False)])  # before it is taken apart, or after


def test_what_is_held_is_let_go():
    things = [Thing() for _ in range(8)]
    gone = [weakref.ref(thing) for thing in things]
    gc.collect()  # what others left would go in the middle
    none, true = sys.getrefcount(None), sys.getrefcount(True)
    own = {"hooks": {}, "checks": None}
    thing = things[0]
    thing.next_id, thing.held = 12345, own
    checks = made(
        members=({"a": things[1]},),
        slots=({"b": things[2]},),
        settings=({"c": things[3]},),
        elements=([things[4]],),
        item=({"d": things[5]}, "d", things[5]),
        attribute=(things[6], "__class__", Thing),
        instance=(thing, vars(thing), ("held",)),
        hooks=(thing, "next_id", [(own, "hooks")], things[7].is_there),
    )
    own["checks"] = checks  # a cycle
    for _ in range(100):
        assert checks.hold()
        thing.next_id += 1
        checks.hold()
    del checks, thing, things, own
    gc.collect()
    assert [one() for one in gone] == [None] * 8
    assert abs(sys.getrefcount(None) - none) < 50 or sys.version_info >= (3, 12)
    assert abs(sys.getrefcount(True) - true) < 50 or sys.version_info >= (3, 12)


def test_checks_leave_reference_counts_as_they_were():
    getter = torch.Tensor.grad.__objclass__, "grad"
    tensor, thing, args = torch.ones(1), Thing(), (Thing(),)
    held = {"key of its own": thing, "number": 12345.0}
    checks = made(
        slots=(held,), item=(held, "number", held["number"]), call=(bool, args),
        attribute=(thing, "__class__", Thing), gradients=(*getter, [tensor]), elements=([thing],),
    )  # fmt: skip
    watched = [tensor, thing, args, held, checks, held["number"], next(iter(held)), None, True]
    if sys.version_info >= (3, 12):  # these live for ever
        watched = watched[:-2]
    before = [sys.getrefcount(one) for one in watched]
    for _ in range(1000):
        assert checks.hold()
        assert checks.no_gradients()
    held["number"] = 5.0
    for _ in range(1000):
        assert not checks.hold()
    held["number"] = watched[5]
    after = [sys.getrefcount(one) for one in watched]
    assert [new - old for old, new in zip(before, after, strict=True) if abs(new - old) > 20] == []


def test_many_are_made_and_dropped():
    things = {str(i): Thing() for i in range(50)}
    values = list(things.values())
    before = [sys.getrefcount(value) for value in values]
    for _ in range(2000):
        checks = made(members=(things, things), elements=(values,))
        assert checks.hold()
        del checks
    assert [sys.getrefcount(value) for value in values] == before


@pytest.mark.parametrize("seed", thinned(range(20), keep=range(6)))
def test_both_forms_agree_on_random_changes(seed):
    draw = random.Random(seed)
    values = [Thing() for _ in range(6)]
    dicts = [
        {key: draw.choice(values) for key in draw.sample("abcdef", draw.randrange(5))}
        for _ in range(40)
    ]
    original = [dict(held) for held in dicts]
    compiled, python = made(members=dicts), Members(dicts)
    for _ in range(200):
        held = draw.choice(dicts)
        match draw.randrange(4):
            case 0 if held:
                held.pop(draw.choice(list(held)))
            case 1:
                held[draw.choice("abcdef")] = draw.choice(values)
            case 2:
                items = list(held.items())
                draw.shuffle(items)
                held.clear()
                held.update(items)
            case _:
                for one, was in zip(dicts, original, strict=True):
                    one.clear()
                    one.update(was)
        as_it_was = [list(one.items()) for one in dicts] == [list(w.items()) for w in original]
        assert compiled.hold() is as_it_was
        assert python.hold() is as_it_was
