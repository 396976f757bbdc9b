"""Optimizers and schedulers of the user's: what they keep may grow, come late, or have any form."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn, optim
from torch.optim import lr_scheduler

import torchgraph as tg
from tests.attack.test_damaged_states import same_bits
from tests.support import thinned_rows
from torchgraph.errors import StateDictMismatch


class Remembers(lr_scheduler.LRScheduler):
    """A list that grows, a flag that comes late, a word that is None at first."""

    def __init__(self, optimizer: optim.Optimizer) -> None:
        self.history: list[int] = []
        self.phase: str | None = None
        super().__init__(optimizer)

    def get_lr(self) -> list[float]:
        self.history.append(self.last_epoch)
        if self.last_epoch > 1:
            self.seen, self.phase = True, "warm"
        return [base * 0.9**self.last_epoch for base in self.base_lrs]


class Factor:
    """Called by LambdaLR, and remembers it."""

    def __init__(self) -> None:
        self.seen: list[int] = []

    def __call__(self, epoch: int) -> float:
        self.seen.append(epoch)
        return 0.9**epoch


class Plain(optim.Optimizer):
    """Gradient descent; `also` is what others do besides."""

    def __init__(self, parameters: Any, **settings: Any) -> None:
        super().__init__(parameters, {"lr": 0.1, **settings})

    def also(self, group: dict[str, Any], parameter: torch.Tensor, slots: dict[Any, Any]) -> None:
        """Nothing."""

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            for parameter in group["params"]:
                slots = self.state[parameter]
                slots["n"] = slots.get("n", 0) + 1
                self.also(group, parameter, slots)
                parameter.sub_(parameter.grad, alpha=group["lr"])


class LateSlot(Plain):
    def also(self, group, parameter, slots):
        if slots["n"] > 2:
            slots.setdefault("slow", torch.zeros_like(parameter)).add_(parameter.grad)


class KeepsAside(Plain):
    def also(self, group, parameter, slots):
        kept = self.state["all"]
        kept["n"] = kept.get("n", 0) + 1


class Buffers(Plain):
    def __init__(self, parameters: Any) -> None:
        super().__init__(parameters, buffer=[[None, None] for _ in range(3)], history=[])

    def also(self, group, parameter, slots):
        group["buffer"][slots["n"] % 3] = [slots["n"], 0.5]
        group["history"] = [*group["history"], slots["n"]]


class LateSettings(Plain):
    def __init__(self, parameters: Any) -> None:
        super().__init__(parameters, scale=None)

    def also(self, group, parameter, slots):
        group["scale"] = torch.ones(3)
        group["info"] = {"steps": slots["n"]}


class OwnForm(Plain):
    """As wrappers write it: no 'state', no 'param_groups'."""

    def state_dict(self):
        return {"inner": super().state_dict(), "k": 5}

    def load_state_dict(self, state):
        super().load_state_dict(state["inner"])


def none(optimizer: optim.Optimizer) -> None:
    """No schedule."""


def in_a_sequence(optimizer: optim.Optimizer) -> Any:
    parts = [lr_scheduler.LambdaLR(optimizer, Factor()), Remembers(optimizer)]
    return lr_scheduler.SequentialLR(optimizer, parts, [3])


def sgd(parameters: Any) -> Any:
    return optim.SGD(parameters, 0.1)


KINDS: dict[str, tuple[Callable[[Any], Any], Callable[[Any], Any]]] = {
    "scheduler": (sgd, Remembers),
    "lambda": (sgd, lambda o: lr_scheduler.LambdaLR(o, Factor())),
    "multiplicative": (sgd, lambda o: lr_scheduler.MultiplicativeLR(o, Factor())),
    "sequence": (sgd, in_a_sequence),
    "late slot": (LateSlot, none),
    "kept aside": (KeepsAside, none),
    "buffers": (Buffers, none),
    "late settings": (LateSettings, none),
    "own form": (OwnForm, none),
    "lbfgs": (lambda p: optim.LBFGS(p, max_iter=3), none),
    "wolfe": (lambda p: optim.LBFGS(p, max_iter=3, line_search_fn="strong_wolfe"), none),
}


def made(optimizer: Any, schedule: Any) -> Any:
    torch.manual_seed(0)
    model = nn.Linear(3, 2)
    trained = optimizer(model.parameters())
    graph = tg.train_step(model, nn.functional.mse_loss, trained, schedule(trained))
    graph.config.set_fallback("eager")
    return graph


def steps(graph: Any, count: int) -> list[torch.Tensor]:
    torch.manual_seed(1)
    return [graph(torch.randn(4, 3), torch.randn(4, 2)) for _ in range(count)]


pytestmark = [
    pytest.mark.filterwarnings("ignore::torchgraph.errors.GraphWarning"),
    pytest.mark.filterwarnings("ignore:The epoch parameter in"),
]


@pytest.mark.parametrize(
    ("saved", "trained", "kind"),
    thinned_rows(
        ((*times, kind) for times in [(0, 4), (1, 4), (5, 0)] for kind in KINDS),
        lambda saved, trained, kind: saved == 1 or kind == next(iter(KINDS)),
    ),
)
def test_a_state_of_any_time_loads_at_any_time(kind, saved, trained):
    source, target = made(*KINDS[kind]), made(*KINDS[kind])
    steps(source, saved)
    state = copy.deepcopy(source.state_dict())
    expected = steps(source, 3)
    steps(target, trained)

    target.load_state_dict(state)

    assert same_bits(steps(target, 3), expected)


@pytest.mark.parametrize("path", ["base_lrs", "last_epoch", "_last_lr"])
def test_what_torchs_part_keeps_is_looked_at(path):
    graph = made(sgd, Remembers)
    state = copy.deepcopy(graph.state_dict())
    state["_train"]["schedulers"][0][path] = "x"
    with pytest.raises(StateDictMismatch, match=path):
        graph.load_state_dict(state)


@pytest.mark.parametrize(
    ("kind", "place", "wrong"),
    [
        ("late slot", ("state", 0, "n"), "x"),
        ("late slot", ("state", 0, "n"), [1]),
        ("late slot", ("state", 0, "slow"), torch.ones(7)),
        ("late slot", ("param_groups", 0, "lr"), None),
        ("kept aside", ("state", 3), {}),
        ("buffers", ("param_groups", 0, "buffer"), 1.0),
        ("own form", ("k",), "x"),
        ("own form", ("inner",), None),
    ],
)
def test_things_of_another_kind_are_refused(kind, place, wrong):
    graph = made(*KINDS[kind])
    steps(graph, 4)
    good = copy.deepcopy(graph.state_dict())
    state = copy.deepcopy(good)
    found = state["_train"]["optimizers"][0]
    for key in place[:-1]:
        found = found[key]
    found[place[-1]] = wrong
    with pytest.raises(StateDictMismatch):
        graph.load_state_dict(state)
    assert same_bits(graph.state_dict(), good)


SLOTS = [
    *("ro", "al", "old_dirs", "old_stps", "d", "t", "prev_flat_grad", "H_diag", "prev_loss"),
    *("n_iter", "func_evals"),
]
WRONG = ["x", [], [1.0], [None] * 3, [torch.ones(2, 2)], {}, True, torch.ones(2), torch.ones(8, 8)]


@pytest.mark.parametrize("key", SLOTS)
@pytest.mark.parametrize("trained", [0, 3])
def test_damaged_slots_of_lbfgs_are_refused(key, trained):
    source = made(*KINDS["lbfgs"])
    steps(source, 3)
    good = copy.deepcopy(source.state_dict())
    graph = made(*KINDS["lbfgs"])
    steps(graph, trained)
    for wrong in [None, *WRONG]:
        state = copy.deepcopy(good)
        state["_train"]["optimizers"][0]["state"][0][key] = wrong
        with pytest.raises(StateDictMismatch, match=key):
            graph.load_state_dict(state)
    graph.load_state_dict(good)
    state = copy.deepcopy(good)
    state["_train"]["optimizers"][0]["state"][0]["more"] = 1
    with pytest.raises(StateDictMismatch, match="more: unexpected"):
        source.load_state_dict(state)
    if key != "al":  # LBFGS makes it anew
        del good["_train"]["optimizers"][0]["state"][0][key]
        with pytest.raises(StateDictMismatch, match=f"{key}: missing"):
            source.load_state_dict(good)


FLAGS = {
    "Lion": (lambda p: tg.optim.Lion(p, lr=0.1), ("maximize", "foreach")),
    "LAMB": (lambda p: tg.optim.LAMB(p, lr=0.1), ("maximize", "do_bias_correction", "foreach")),
    "Adafactor": (lambda p: optim.Adafactor(p, lr=0.1), ("maximize",)),
}


@pytest.mark.parametrize("name", FLAGS)
def test_a_flag_that_the_next_step_needs_is_missed_before_the_first_one(name):
    optimizer, flags = FLAGS[name]
    for flag in flags:
        graph = made(optimizer, none)
        state = copy.deepcopy(graph.state_dict())
        del state["_train"]["optimizers"][0]["param_groups"][0][flag]
        with pytest.raises(StateDictMismatch, match=flag):
            graph.load_state_dict(state)
        assert torch.isfinite(torch.stack(steps(graph, 2))).all()
