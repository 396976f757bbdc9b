"""What an optimizer's step goes by besides its states: hooks, attributes, objects in groups."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn, optim
from torch.optim.optimizer import register_optimizer_step_post_hook

import torchgraph as tg
from tests import support
from torchgraph import _extension
from torchgraph.errors import ConfirmWarning, EagerWarning, SharedMemory
from torchgraph.verify.start import OnCopies


class Rule:
    """In a param group: what it holds is anybody's."""

    def __init__(self, rate: float) -> None:
        self.rate = rate


class Own(optim.Optimizer):
    """Goes by attributes of its own and by an object of its group."""

    def __init__(self, parameters: Iterable[torch.Tensor]) -> None:
        super().__init__(parameters, {"lr": 0.1, "rule": Rule(1.0)})
        self.rate, self.flag, self.table = 1.0, False, {"decay": 0.5}
        self.factor = torch.tensor(1.0)

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            rate = group["lr"] * self.rate * group["rule"].rate * self.table["decay"]
            for parameter in group["params"]:
                parameter.add_(parameter.grad * self.factor, alpha=rate if self.flag else -rate)


class Periodic(optim.Optimizer):
    """Halves the weights in each fifth step, as its own counter says."""

    def __init__(self, parameters: Iterable[torch.Tensor]) -> None:
        super().__init__(parameters, {"lr": 0.1})
        self.count = 0

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        self.count += 1
        for parameter in self.param_groups[0]["params"]:
            parameter.add_(parameter.grad, alpha=-0.1)
            if self.count % 5 == 0:
                parameter.mul_(0.5)


def halved(optimizer: optim.Optimizer, args: Any, kwargs: Any) -> None:
    with torch.no_grad():
        for parameter in optimizer.param_groups[0]["params"]:
            parameter.mul_(0.5)


def _replaced_step(optimizer: Any) -> None:
    optimizer.step = lambda closure=None: halved(optimizer, (), {})


def _another_rule(optimizer: Any) -> None:
    optimizer.param_groups[0]["rule"] = Rule(0.1)


CHANGES: dict[str, Callable[[Any], Any]] = {
    "a number": lambda optimizer: setattr(optimizer, "rate", 0.1),
    "a flag": lambda optimizer: setattr(optimizer, "flag", True),
    "in a dict": lambda optimizer: optimizer.table.update(decay=0.1),
    "a tensor": lambda optimizer: setattr(optimizer, "factor", torch.tensor(0.1)),
    "a tensor in place": lambda optimizer: optimizer.factor.fill_(0.1),
    "an object of the group": _another_rule,
    "a post hook": lambda optimizer: optimizer.register_step_post_hook(halved),
    "a pre hook": lambda optimizer: optimizer.register_step_pre_hook(halved),
    "the step": _replaced_step,
    "the class": lambda optimizer: setattr(optimizer, "__class__", type("Other", (Own,), {})),
}


def compared(make: Callable[..., optim.Optimizer], change: Callable[[Any], Any], at: int) -> Any:
    """Eager's weights after each of ten calls, or a failed assertion."""
    torch.manual_seed(0)
    nets = [nn.Linear(4, 2), nn.Linear(4, 2)]
    nets[1].load_state_dict(nets[0].state_dict())
    optimizers = [make(net.parameters()) for net in nets]
    graph = tg.train_step(nets[0], nn.functional.mse_loss, optimizers[0])
    graph.config.set_backend("aten")
    for number in range(10):
        if number == at:
            for optimizer in optimizers:
                change(optimizer)
        x, y = torch.randn(3, 4), torch.randn(3, 2)
        graph(x, y)
        optimizers[1].zero_grad()
        nn.functional.mse_loss(nets[1](x), y).backward()
        optimizers[1].step()
        for left, right in zip(*(net.parameters() for net in nets), strict=True):
            assert torch.equal(left, right), f"call {number}"
    return graph


@pytest.mark.parametrize("what", CHANGES)
def test_what_changes_between_calls_is_noticed(what: str) -> None:
    graph = compared(Own, CHANGES[what], at=5)
    assert len(support.replays(graph)) >= 1


class Halves(optim.SGD):
    def step(self, closure: Any = None) -> None:  # type: ignore[override]  # overloads
        super().step()
        halved(self, (), {})


def _another_class(optimizer: Any) -> None:
    optimizer.__class__ = Halves


def _another_step_of_the_class(optimizer: Any) -> None:
    type(optimizer).step = Halves.step


PLAIN: dict[str, Callable[[Any], Any]] = {
    "the class": _another_class,
    "the step of the class": _another_step_of_the_class,
    "the step": _replaced_step,
    "a post hook": lambda optimizer: optimizer.register_step_post_hook(halved),
    "a pre hook": lambda optimizer: optimizer.register_step_pre_hook(halved),
}


@pytest.mark.parametrize("form", ["compiled", "python"])
@pytest.mark.parametrize("what", PLAIN)
def test_of_an_optimizer_without_attributes_of_its_own(
    what: str, form: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if form == "python":
        monkeypatch.setattr(_extension, "guards", lambda: None)
    plain = type("Plain", (Halves,), {"step": optim.SGD.step})
    compared(lambda parameters: plain(parameters, lr=0.1), PLAIN[what], at=5)


def test_a_hook_that_is_removed() -> None:
    handles: list[Any] = []

    def make(parameters: Iterable[torch.Tensor]) -> optim.Optimizer:
        made = optim.Adam(parameters, lr=0.1)
        handles.append(made.register_step_post_hook(halved))
        return made

    compared(make, lambda optimizer: handles.pop().remove(), at=6)


def test_a_hook_of_all_optimizers() -> None:
    handles: list[Any] = []

    def register(optimizer: Any) -> None:
        if not handles:
            handles.append(register_optimizer_step_post_hook(halved))

    try:
        compared(optim.Adam, register, at=5)
    finally:
        handles.pop().remove()


def test_an_attribute_that_the_step_moves_keeps_it_in_eager() -> None:
    with pytest.warns(EagerWarning, match=r"Periodic\.count moves in the optimizer's own step"):
        graph = compared(Periodic, lambda optimizer: None, at=0)
    assert len(support.replays(graph)) == 0


def test_schedulers_and_scalers_that_mark_an_optimizer_are_no_change() -> None:
    net = nn.Linear(4, 2)
    optimizer = optim.AdamW(net.parameters(), lr=0.1)
    scheduler = optim.lr_scheduler.ExponentialLR(optimizer, 0.9)
    graph = tg.train_step(net, nn.functional.mse_loss, optimizer, scheduler)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for _ in range(8):
            graph(torch.randn(3, 4), torch.randn(3, 2))
    assert graph.report().programs.hits == 6


@pytest.mark.parametrize("kind", [np.float32, np.float64])
def test_numbers_of_numpy(kind: Any) -> None:
    def change(optimizer: Any) -> None:
        optimizer.param_groups[0]["lr"] = kind(0.05)

    compared(optim.Adam, change, at=5)


def test_a_weight_decay_of_numpy() -> None:
    net = nn.Linear(4, 2)
    optimizer = optim.AdamW(net.parameters())
    graph = tg.train_step(net, nn.functional.mse_loss, optimizer)
    for decay in np.linspace(0.04, 0.4, 8):
        optimizer.param_groups[0]["weight_decay"] = decay  # Adam asks whether it is 0
        graph(torch.randn(3, 4), torch.randn(3, 2))
    assert graph.report().programs.hits == 6


def test_an_object_that_is_another_at_each_call() -> None:
    net = nn.Linear(4, 2)
    optimizer = Own(net.parameters())
    graph = tg.train_step(net, nn.functional.mse_loss, optimizer)
    graph.config.set_cache_size(2)
    said = []
    for _ in range(16):
        optimizer.param_groups[0]["rule"] = Rule(1.0)
        with warnings.catch_warnings(record=True) as found:
            warnings.simplefilter("always")
            graph(torch.randn(3, 4), torch.randn(3, 2))
        said += [str(one.message) for one in found if one.category is EagerWarning]
    assert len(said) == 1
    assert "group['rule'] is another Rule than before" in said[0]
    assert graph.report().calls.eager


class Rooted(optim.Optimizer):
    """Multiplies by a number of NumPy's."""

    def __init__(self, parameters: Iterable[torch.Tensor]) -> None:
        super().__init__(parameters, {"lr": 0.1})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for parameter in self.param_groups[0]["params"]:
            parameter.add_(parameter.grad * np.sqrt(0.5), alpha=-self.param_groups[0]["lr"])


def test_a_constant_of_numpy() -> None:
    assert len(support.replays(compared(Rooted, lambda optimizer: None, at=0))) == 1


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_a_step_that_raises_leaves_no_gradients(error: type[BaseException]) -> None:
    net = nn.Linear(4, 2)
    optimizer = optim.SGD(net.parameters(), lr=0.1)

    def interrupted(*args: Any) -> None:
        raise error

    handle = optimizer.register_step_pre_hook(interrupted)
    graph = tg.train_step(net, nn.functional.mse_loss, optimizer)
    with pytest.raises(error):
        graph(torch.randn(3, 4), torch.randn(3, 2))
    handle.remove()
    assert all(parameter.grad is None for parameter in net.parameters())


def test_slots_that_read_alike() -> None:
    class Slots(optim.Optimizer):
        def __init__(self, parameters: Iterable[torch.Tensor]) -> None:
            super().__init__(parameters, {"lr": 0.1})

        @torch.no_grad()
        def step(self, closure: Any = None) -> None:
            for parameter in self.param_groups[0]["params"]:
                state = self.state[parameter]
                for name in (0, "0"):
                    state.setdefault(name, torch.zeros_like(parameter)).add_(parameter.grad)
                parameter.sub_(state[0] + state["0"], alpha=0.1)

    assert len(support.replays(compared(Slots, lambda optimizer: None, at=0))) == 1


class Keeping(optim.Optimizer):
    """Has a slot that its step reads and does not write."""

    def __init__(self, parameters: Iterable[torch.Tensor]) -> None:
        super().__init__(parameters, {"lr": 0.1})
        for parameter in self.param_groups[0]["params"]:
            self.state[parameter]["scale"] = torch.ones_like(parameter)

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for parameter in self.param_groups[0]["params"]:
            parameter.sub_(parameter.grad * self.state[parameter]["scale"], alpha=0.1)


def test_a_program_that_writes_what_it_does_not_say(monkeypatch: pytest.MonkeyPatch) -> None:
    """The confirming run is over copies of all slots: the step goes on with the user's own."""
    original = OnCopies.of

    def faulty(*args: Any, **kwargs: Any) -> OnCopies:
        copies = original(*args, **kwargs)
        for name, leaf in copies.leaves.items():
            if name.endswith("weight.scale"):
                leaf.value.add_(1.0)
        return copies

    monkeypatch.setattr(OnCopies, "of", faulty)
    with pytest.warns(ConfirmWarning, match="is not confirmed"):
        compared(Keeping, lambda optimizer: None, at=0)


def test_a_confirming_run_that_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    """Eager has made the step by then: it stands, and the next ones are eager's."""

    def failing(*_: Any) -> Any:
        raise ArithmeticError("planted")

    monkeypatch.setattr(OnCopies, "of", failing)
    with pytest.warns(ConfirmWarning, match="it fails with ArithmeticError: planted"):
        compared(optim.Adam, lambda optimizer: None, at=0)


def test_a_refused_step_has_a_tree() -> None:
    """A slot and a view of it: no program may hold both."""

    class Viewed(optim.Optimizer):
        def __init__(self, parameters: Iterable[torch.Tensor]) -> None:
            super().__init__(parameters, {"lr": 0.1})
            for parameter in self.param_groups[0]["params"]:
                mean = torch.zeros_like(parameter)
                self.state[parameter].update(mean=mean, flat=mean.view(-1))

        @torch.no_grad()
        def step(self, closure: Any = None) -> None:
            for parameter in self.param_groups[0]["params"]:
                self.state[parameter]["mean"].add_(parameter.grad)
                parameter.sub_(self.state[parameter]["flat"].view_as(parameter), alpha=0.1)

    net = nn.Linear(4, 2)
    graph = tg.train_step(net, nn.functional.mse_loss, Viewed(net.parameters()))
    x, y = torch.randn(3, 4), torch.randn(3, 2)
    graph(x, y)  # what eager has made stands; the next call says why there is no program
    with pytest.raises(SharedMemory):
        graph(x, y)
    assert "MODULE:model:Linear" in repr(graph)
