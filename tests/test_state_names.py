"""The names of states: values that print as text, and no text that somebody cuts."""

import ast
import copy
import pickle
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.test_house import offenders, tree
from torchgraph.ir import names

WEIGHT = names.parameter("model", "weight")
NAMES = {
    "model.weight": WEIGHT,
    "w": names.parameter("", "w"),
    "model.norm.count": names.buffer("model.norm", "count"),
    "optimizer.0.state.model.weight.exp_avg": names.slot(0, WEIGHT, "exp_avg"),
    "optimizer.1.state.step.0": names.slot(1, "step", 0),
    "optimizer.0.param_groups.2.betas.1": names.setting(0, 2, "betas").below(1),
    "optimizer.0.param_groups.2": names.group(0, 2),
    "optimizer.3": names.optimizer(3),
    "_train.scaler.scale": names.scaler("scale"),
}


@pytest.mark.parametrize("text", NAMES)
def test_a_name_prints_as_a_text_and_equals_itself_alone(text):
    name = NAMES[text]
    assert (str(name), f"{name}", repr(name)) == (text, text, repr(text))
    assert name != text
    assert text not in NAMES.values()
    assert {name: 1}.get(text) is None
    path, _, last = text.rpartition(".")
    taken = names.parameter(path, last)
    assert str(taken) == text
    assert (taken == name) is (name.kind is names.NameKind.PARAMETER)


@pytest.mark.parametrize("name", NAMES.values())
def test_a_name_stays_and_travels(name):
    for other in (copy.deepcopy(name), pickle.loads(pickle.dumps(name))):
        assert other == name
        assert hash(other) == hash(name)
        assert (other != name) is False
    with pytest.raises(AttributeError, match="is a name"):
        name.key = ("other",)


def test_names_of_equal_text_are_two():
    slots = [
        names.slot(0, WEIGHT, "a.b"),
        names.slot(0, WEIGHT, "a").below("b"),
        names.slot(0, names.parameter("model.weight", "a"), "b"),
        names.slot(0, "model.weight", "a.b"),
        names.parameter("optimizer.0.state.model.weight.a", "b"),
        names.buffer("optimizer.0.state.model.weight.a", "b"),
    ]
    assert len(set(slots)) == len(slots)
    assert len(set(map(str, slots))) == 1


def test_a_name_says_whose_it_is():
    slot, setting = names.slot(1, WEIGHT, "exp_avg"), names.setting(1, 0, "betas", 0)
    assert names.parameter_of(slot) == WEIGHT
    assert names.module_of(slot) == names.module_of(WEIGHT) == "model"
    assert names.optimizer_of(slot) == names.optimizer_of(setting) == names.optimizer(1)
    assert (names.last_of(slot), names.key_of(setting)) == ("exp_avg", ("betas", "0"))
    assert [names.is_setting(setting, 1, index) for index in (0, 1)] == [True, False]
    for text in ("optimizer.0.state.model.weight.exp_avg", names.parameter("optimizer.0", "lr")):
        assert names.optimizer_of(text) == names.parameter_of(text) == names.last_of(text) == ""


CUTS = {
    "endswith", "partition", "removeprefix", "removesuffix", "rpartition", "rsplit", "split",
    "startswith",
}  # fmt: skip
OF_STATES = {"fqn", "derived_from", "alias_of"}


def cuts(path: Path) -> Iterator[str]:
    for node in ast.walk(tree(path)):
        cut = node.value if isinstance(node, ast.Attribute) and node.attr in CUTS else None
        if getattr(cut, "attr", getattr(cut, "id", "")) in OF_STATES:
            yield f"line {cut.lineno}"


def test_nobody_cuts_the_name_of_a_state():
    assert offenders(cuts) == {}
