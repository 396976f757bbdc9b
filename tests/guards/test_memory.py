"""What compiled checks read in memory instead of asking: tensors and dicts."""

from __future__ import annotations

from collections import OrderedDict, defaultdict
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from torchgraph import _extension
from torchgraph._torch import fake_mode
from torchgraph.guards import layout as experiments
from torchgraph.guards.layout import layout
from torchgraph.guards.tensors import has_layout

module: Any = _extension.guards()
if module is None:
    pytest.skip("the guards are not compiled here", allow_module_level=True)

TENSOR = torch.Tensor.grad.__objclass__


def read_by(**added: Any) -> Any:
    """Checks that know the layout, with one call of a method for each argument."""
    checks = module.Checks()
    checks.layout(TENSOR, layout())
    for name, arguments in added.items():
        getattr(checks, name)(*arguments)
    return checks


class Asked:
    """Stands for torch's own check: counts how often it is asked."""

    def __init__(self, answer: bool = True) -> None:
        self.answer, self.times = answer, 0

    def __call__(self, *tensors: torch.Tensor) -> bool:
        self.times += 1
        return self.answer


def leaf() -> torch.Tensor:
    return torch.zeros(4, 6, requires_grad=True)


def resolved(change: Callable[[torch.Tensor], object]) -> Callable[[torch.Tensor], object]:
    def under_no_grad(tensor: torch.Tensor) -> None:
        with torch.no_grad():
            change(tensor)

    return under_no_grad


def data(make: Callable[[torch.Tensor], torch.Tensor]) -> Callable[[torch.Tensor], object]:
    return lambda tensor: setattr(tensor, "data", make(tensor.data))


CHANGES: dict[str, Callable[[torch.Tensor], object]] = {
    "shape": data(lambda t: t[:2].clone()),
    "more dimensions": data(lambda t: t[None]),
    "many dimensions": data(lambda t: t[None, None, None, None, None]),
    "strides": data(lambda t: t.t().contiguous().t()),
    "storage offset": resolved(lambda t: t.as_strided_((3, 6), (6, 1), 6)),
    "dtype": data(torch.Tensor.double),
    "conjugate": data(lambda t: t.to(torch.complex64).conj()),
    "requires_grad": lambda t: t.requires_grad_(False),
    "class": lambda t: setattr(t, "__class__", nn.Parameter),
    "exchanged": lambda t: torch.utils.swap_tensors(t, torch.zeros(2)),
}


def test_the_layout_is_known():
    # Where it is not, every check asks torch: right, but several times as slow.
    found = layout()
    assert found is not None
    assert found[:-2] == experiments._layout()[:-2]  # memory may have no bit that is unset


@pytest.mark.parametrize("what", CHANGES)
@pytest.mark.parametrize("position", [0, 39])
def test_a_changed_tensor_is_asked_about(what, position):
    tensors, asked, others = tuple(leaf() for _ in range(40)), Asked(), Asked()
    checks = module.Checks()
    checks.layout(TENSOR, layout())
    for start in range(0, 40, 8):
        part = tensors[start : start + 8]
        checks.tensors(asked if start <= position < start + 8 else others, part)
    assert checks.hold()
    assert asked.times == 0

    CHANGES[what](tensors[position])

    assert checks.hold()
    assert asked.times == 1
    assert checks.hold()  # what was found good is what is expected now
    assert asked.times == 1
    asked.answer = False
    assert checks.hold()
    tensors[position].data = torch.zeros(7)
    assert not checks.hold()
    assert not checks.hold()
    assert others.times == 0


def test_a_buffer_that_came_out_of_a_computation_is_asked_about():
    buffer, asked = leaf().requires_grad_(False), Asked()
    checks = read_by(tensors=(asked, (buffer,)))
    buffer.add_(leaf())  # by its grad_fn alone it requires a gradient now
    assert buffer.requires_grad
    assert checks.hold()
    assert asked.times == 1


def test_views_are_asked_about_each_time():
    base = torch.zeros(4, 6)
    view, asked = base[:2], Asked()
    checks = read_by(tensors=(asked, (view,)))
    for times in (1, 2):
        assert checks.hold()
        assert asked.times == times
    base.add_(leaf())
    assert view.requires_grad  # because of its base, which nothing in it says
    assert checks.hold()
    assert asked.times == 3
    assert not has_layout(view)


def test_new_values_are_nothing_to_ask_about():
    parameter, buffer, asked = leaf(), torch.zeros(3), Asked()
    checks = read_by(tensors=(asked, (parameter, buffer)))
    for _ in range(3):
        buffer.add_(1)
        with torch.no_grad():
            parameter.mul_(2).copy_(torch.ones(4, 6))
        held = [parameter, parameter.detach(), buffer.view(3)]
        assert held
        assert checks.hold()
    assert asked.times == 0


def test_what_always_changes_is_found_in_python_at_last():
    # Each look adds a pattern; checks that are made anew start with none.
    parameter, asked = leaf(), Asked()
    checks = read_by(tensors=(asked, (parameter,)))
    answers = []
    for size in range(200):
        parameter.data = torch.zeros(size)
        answers.append(checks.hold())
    assert answers[:50] == [True] * 50
    assert answers[-1] is False


def test_gradients_in_memory():
    tensors = [leaf() for _ in range(5)] + [torch.zeros(2)]
    checks = read_by(leaves=(tensors,))
    assert checks.no_gradients()
    for tensor in tensors:
        tensor.grad = torch.ones_like(tensor)
        assert not checks.no_gradients()
        tensor.grad = None
        assert checks.no_gradients()
    (leaf() * tensors[0]).sum().backward()
    assert not checks.no_gradients()


def test_gradients_are_known_from_the_comparison():
    tensors, asked = tuple(leaf() for _ in range(5)), Asked()
    checks = read_by(tensors=(asked, tensors), leaves=([*tensors],))
    assert checks.hold()
    assert checks.bare()
    for tensor in tensors:
        for _ in range(3):  # another one after each step
            tensor.grad = torch.ones_like(tensor)
            assert checks.hold()
            assert not checks.bare()
        tensor.grad = None
        assert checks.hold()
        assert checks.bare()
    assert asked.times == 0
    checks.leaves([leaf()])
    assert checks.hold()
    assert not checks.bare()  # that one was not compared


@pytest.mark.parametrize("method", ["tensors", "leaves"])
def test_only_tensors_have_the_layout(method):
    with pytest.raises(TypeError):
        read_by(**{method: (Asked(), (object(),)) if method == "tensors" else ([object()],)})


def test_an_experiment_with_another_outcome(monkeypatch):
    def unclear(*_: object) -> int:
        raise experiments._Unclear

    layout.cache_clear()
    monkeypatch.setattr(experiments, "_place_of", unclear)
    try:
        assert layout() is None
    finally:
        layout.cache_clear()


# --- dicts ---------------------------------------------------------------------------------------


class Thing:
    """Has attributes."""

    def __init__(self) -> None:
        self.a, self.b = object(), object()


def often(change: Callable[[Any], object]) -> Callable[[Any], object]:
    """Python specializes what it does often."""

    def repeated(thing: Any) -> None:
        others = [Thing() for _ in range(100)]
        for other in (*others, thing):
            vars(other)
            change(other)

    return repeated


def store(thing: Any) -> None:
    thing.a = None


def delete(thing: Any) -> None:
    del thing.a


DICT_CHANGES: dict[str, Callable[[dict], object]] = {
    "assignment": lambda d: d.__setitem__("a", None),
    "new key": lambda d: d.__setitem__("c", None),
    "del": lambda d: d.__delitem__("a"),
    "pop": lambda d: d.pop("b"),
    "popitem": lambda d: d.popitem(),
    "clear": lambda d: d.clear(),
    "update": lambda d: d.update(a=None),
    "or": lambda d: d.__ior__({"a": None}),
    "setdefault": lambda d: d.setdefault("c", None),
    "init": lambda d: d.__init__(a=None),
    "exec": lambda d: exec("a = None", d),
}


@pytest.mark.parametrize("what", DICT_CHANGES)
@pytest.mark.parametrize(
    ("kind", "size"),
    [(dict, 2), (dict, 1000), (OrderedDict, 2), (lambda items: defaultdict(list, items), 2)],
)
def test_every_way_to_change_a_dict_is_seen(what, kind, size):
    held = kind({"a": Thing(), **{str(i): Thing() for i in range(size - 2)}, "b": Thing()})
    if what == "exec" and kind is not dict:
        pytest.skip("globals are plain dicts")
    checks = read_by(members=(held,))
    assert checks.hold()
    assert checks.hold()
    DICT_CHANGES[what](held)
    assert not checks.hold()
    assert not checks.hold()


@pytest.mark.parametrize("change", [store, delete, often(store), often(delete)])
def test_every_way_to_change_attributes_is_seen(change):
    thing = Thing()
    for how in ("members", "instance", "item"):
        thing.__init__()
        own = vars(thing)
        arguments = {
            "members": (own,),
            "instance": (thing, own, ("a", "b")),
            "item": (own, "a", thing.a),
        }
        checks = read_by(**{how: arguments[how]})
        assert checks.hold()
        assert checks.hold()
        change(thing)
        assert not checks.hold()


def test_a_dict_that_two_look_at():
    held, other = {"a": Thing()}, {"b": Thing()}
    first, second = read_by(members=(held, other)), read_by(members=(held,))
    was = held["a"]
    for _ in range(3):
        assert first.hold()
        assert second.hold()
        held["a"] = Thing()
        assert not first.hold()
        assert not second.hold()
        held["a"] = was
    other["b"] = Thing()
    assert not first.hold()
    assert second.hold()


def test_an_attribute_and_the_settings_of_one_dict():
    settings = {"lr": 0.5, "name": "adam"}
    checks = read_by(item=(settings, "name", "adam"), settings=(settings,))
    for lr in (0.25, 0.125):
        settings["lr"] = lr
        assert checks.hold()
    settings["name"] = "sgd"
    assert not checks.hold()


# --- in any mode ---------------------------------------------------------------------------------


def test_the_layout_is_found_in_any_mode():
    known = layout()
    assert known is not None
    try:
        for mode in (fake_mode(), torch.inference_mode(), torch.device("meta")):
            layout.cache_clear()
            with mode:
                found = layout()
            assert found is not None
            assert found[:-2] == known[:-2]
    finally:
        layout.cache_clear()


@pytest.mark.parametrize("change", [store, delete])
def test_a_dict_that_an_object_was_given_is_seen(change):
    thing = Thing()
    held = {"a": 1, "b": 2}
    checks = read_by(members=(held,))
    assert checks.hold()
    thing.__dict__ = held
    assert checks.hold()
    change(thing)
    assert not checks.hold()
