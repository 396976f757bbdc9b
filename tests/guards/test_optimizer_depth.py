"""What an optimizer's step goes by that lies deeper than its own attributes, and where it moves."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import pytest
import torch
from torch import optim

from tests import support
from tests.guards.test_optimizer_state import Rule, compared, halved
from torchgraph.errors import EagerWarning


class Deep(optim.Optimizer):
    """Goes by what lies below its attributes, its state, its group, and by a global."""

    def __init__(self, parameters: Iterable[torch.Tensor]) -> None:
        super().__init__(parameters, {"lr": 0.1, "rule": Rule(1.0)})
        self.table, self.rule = [1.0, {"rate": 1.0}], Rule(1.0)
        GLOBAL[0] = 1.0

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            rate = group["rule"].rate * self.table[1]["rate"] * self.rule.rate * GLOBAL[0]
            for parameter in group["params"]:
                state = self.state[parameter]
                if not state:
                    state["step"], state["rule"] = 0, Rule(1.0)
                state["step"] += 1
                rate *= state["rule"].rate / state["step"]
                parameter.add_(parameter.grad, alpha=-group["lr"] * rate)


GLOBAL = [1.0]

DEEP: dict[str, Callable[[Any], Any]] = {
    "a dict in a list": lambda optimizer: optimizer.table[1].update(rate=0.1),
    "an object": lambda optimizer: setattr(optimizer.rule, "rate", 0.1),
    "an object of the group": lambda optimizer: setattr(
        optimizer.param_groups[0]["rule"], "rate", 0.1
    ),
    "an object of the state": lambda optimizer: setattr(
        next(iter(optimizer.state.values()))["rule"], "rate", 0.1
    ),
    "a global": lambda optimizer: GLOBAL.__setitem__(0, 0.1),
}


@pytest.mark.parametrize("what", DEEP)
def test_what_lies_deeper_is_noticed(what: str) -> None:
    graph = compared(Deep, DEEP[what], at=5)
    assert len(support.replays(graph)) == 2


class Counter:
    count = 0


class CountsDeep(optim.Optimizer):
    """As `Periodic`, by a counter in an object, a list of the module, or a hook's variable."""

    def __init__(self, parameters: Iterable[torch.Tensor], where: str) -> None:
        super().__init__(parameters, {"lr": 0.1})
        self.counter, self.where, own = Counter(), where, 0

        def hook(*_: Any) -> None:
            nonlocal own
            own += 1
            if own % 5 == 0:
                halved(self, (), {})

        if where == "hook":
            self.register_step_post_hook(hook)

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        count = 1
        if self.where == "object":
            self.counter.count += 1
            count = self.counter.count
        elif self.where == "global":
            COUNTS[id(self)] = COUNTS.get(id(self), 0) + 1
            count = COUNTS[id(self)]
        for parameter in self.param_groups[0]["params"]:
            parameter.add_(parameter.grad, alpha=-0.1)
            if count % 5 == 0:
                parameter.mul_(0.5)


COUNTS: dict[int, int] = {}


@pytest.mark.parametrize("where", ["object", "global", "hook"])
def test_what_the_step_moves_deeper_keeps_it_in_eager(where: str) -> None:
    with pytest.warns(EagerWarning):
        graph = compared(lambda own: CountsDeep(own, where), lambda optimizer: None, at=0)
    assert len(support.replays(graph)) == 0
