"""What flows between parameters, and what lies in one memory: the update stays eager's."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest
import torch
from torch import nn, optim

import torchgraph as tg
from tests.capture.test_per_kind import Make, batches, deep, program, rows, setup, trained
from tests.parity.test_optimizers import ELEMENTWISE
from torchgraph.ir import text
from torchgraph.ir.each import expanded
from torchgraph.ir.verify import Stage, verify
from torchgraph.testing import assert_parity


class Branches(nn.Module):
    """Whose biases have one gradient: their values are equal."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.first(x) + self.second(x * x)


@pytest.mark.parametrize("name", ["SGD, decay", "SGD, nesterov", "Adam, maximize", "AdamW"])
def test_a_gradient_of_two_rows_is_not_written_over(name: str) -> None:
    trained(lambda: setup(ELEMENTWISE[name], model=Branches))


def _clamped(optimizer: optim.Optimizer, args: Any, kwargs: Any) -> None:
    with torch.no_grad():
        for parameter in optimizer.param_groups[0]["params"]:
            parameter.clamp_(-0.2, 0.2)


def both_step(graph: Any, nets: list[nn.Sequential], optimizer: optim.Optimizer) -> None:
    """One step of the graph, which trains the first net, and eager's of the second: the same."""
    x, y = torch.randn(3, 4), torch.randn(3, 4)
    graph(x, y)
    optimizer.zero_grad()
    nn.functional.mse_loss(nets[1](x), y).backward()
    optimizer.step()
    for left, right in zip(*(net.parameters() for net in nets), strict=True):
        assert torch.equal(left, right)


@pytest.mark.filterwarnings("ignore::torchgraph.errors.EagerWarning")  # a batch in freed memory
@pytest.mark.parametrize("hooked", [False, True])
def test_parameters_that_are_tied_later(hooked: bool) -> None:
    nets, optimizers = [], []
    for _ in range(2):
        torch.manual_seed(0)
        nets.append(deep(3))
        optimizers.append(optim.SGD(nets[-1].parameters(), lr=0.1, momentum=0.9))
        if hooked:
            optimizers[-1].register_step_post_hook(_clamped)
    graph = tg.train_step(nets[0], nn.functional.mse_loss, optimizers[0])
    graph.config.set_backend("aten")
    for number in range(9):
        if number == 5:
            for net in nets:
                net[1].weight.data = net[0].weight.data
        both_step(graph, nets, optimizers[1])


class Named(optim.Optimizer):
    """Slots with the names that a body gives to what is read."""

    def __init__(self, parameters: Iterable[torch.Tensor], lr: float = 0.1) -> None:
        super().__init__(parameters, {"lr": lr})
        for parameter in self.param_groups[0]["params"]:
            for name in ("gradient", "gradient_2", "parameter", "lr"):
                self.state[parameter][name] = torch.zeros_like(parameter)

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for parameter in self.param_groups[0]["params"]:
            state = self.state[parameter]
            state["gradient"].mul_(0.9).add_(parameter.grad)
            state["gradient_2"].add_(state["gradient"], alpha=0.5)
            state["parameter"].copy_(parameter)
            state["lr"].sub_(state["gradient_2"])
            parameter.sub_(state["gradient"], alpha=self.param_groups[0]["lr"])


def test_names_of_slots_are_the_users() -> None:
    graph = trained(lambda: setup(Named))
    assert [len(each.rows) for each in rows(program(graph))] == [6]


class Following(optim.Optimizer):
    """Each parameter goes by the size of the one before it."""

    def __init__(self, parameters: Iterable[torch.Tensor], lr: float = 0.1) -> None:
        super().__init__(parameters, {"lr": lr})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        before = torch.ones(())
        for group in self.param_groups:
            for parameter in group["params"]:
                parameter.add_(parameter.grad / (1 + before), alpha=-group["lr"])
                before = parameter.abs().mean()


class Numbered(optim.Optimizer):
    """The first layers go slower."""

    def __init__(self, parameters: Iterable[torch.Tensor], lr: float = 0.1) -> None:
        super().__init__(parameters, {"lr": lr})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            for number, parameter in enumerate(group["params"]):
                parameter.add_(parameter.grad, alpha=-group["lr"] * 0.5**number)


class Summed(optim.Optimizer):
    """All go by the sum of all gradients, as with clipping inside of a step."""

    def __init__(self, parameters: Iterable[torch.Tensor], lr: float = 0.1) -> None:
        super().__init__(parameters, {"lr": lr})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        every = [p for group in self.param_groups for p in group["params"]]
        total = sum(p.grad.square().sum() for p in every).sqrt()
        for parameter in every:
            parameter.sub_(parameter.grad / total, alpha=self.param_groups[0]["lr"])


class Noisy(optim.Optimizer):
    """Langevin dynamics: the draws are in the order of the parameters."""

    def __init__(self, parameters: Iterable[torch.Tensor], lr: float = 0.1) -> None:
        super().__init__(parameters, {"lr": lr})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for parameter in self.param_groups[0]["params"]:
            parameter.sub_(parameter.grad, alpha=self.param_groups[0]["lr"])
            parameter.add_(torch.randn_like(parameter), alpha=0.01)


class Renewing(optim.Optimizer):
    """Its slot is another tensor after each step."""

    def __init__(self, parameters: Iterable[torch.Tensor], lr: float = 0.1) -> None:
        super().__init__(parameters, {"lr": lr})
        for parameter in self.param_groups[0]["params"]:
            self.state[parameter]["mean"] = torch.zeros_like(parameter)

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for parameter in self.param_groups[0]["params"]:
            state = self.state[parameter]
            state["mean"] = state["mean"] * 0.9 + parameter.grad
            parameter.sub_(state["mean"], alpha=self.param_groups[0]["lr"])


class Counting(optim.Optimizer):
    """Its step counters are Python numbers."""

    def __init__(self, parameters: Iterable[torch.Tensor], lr: float = 0.1) -> None:
        super().__init__(parameters, {"lr": lr})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for parameter in self.param_groups[0]["params"]:
            state = self.state[parameter]
            state["step"] = state.get("step", 0) + 1
            parameter.sub_(parameter.grad, alpha=self.param_groups[0]["lr"] / state["step"])


@pytest.mark.parametrize("make", [Renewing, Counting])
def test_what_a_row_makes_may_be_kept(make: Make) -> None:
    graph = trained(lambda: setup(make))
    assert [len(each.rows) for each in rows(program(graph))] == [6]
    verify(program(graph), Stage.OPTIMIZED, strict=True)
    verify(expanded(program(graph)), Stage.OPTIMIZED, strict=True)
    assert "yield kept_0=" in text.render(program(graph))


@pytest.mark.parametrize("make", [Following, Numbered, Summed, Noisy])
def test_what_flows_between_parameters_stays_as_it_is(make: Make) -> None:
    assert list(rows(program(trained(lambda: setup(make))))) == []


class Turning(optim.Optimizer):
    """Its learning rate is complex."""

    def __init__(self, parameters: Iterable[torch.Tensor], lr: float = 0.1) -> None:
        super().__init__(parameters, {"lr": lr})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for parameter in self.param_groups[0]["params"]:
            rate = self.param_groups[0]["lr"] * (1 + 0.2j)
            parameter.sub_((parameter.grad * rate).real)


def test_a_complex_number_of_one_that_moves() -> None:
    trained(lambda: setup(Turning))


class Rounding(optim.Optimizer):
    """Its counters round where they are: 0.1 to float32, 256 to 0."""

    def __init__(self, parameters: Iterable[torch.Tensor], dtype: torch.dtype) -> None:
        super().__init__(parameters, {"lr": 0.1})
        self._more = torch.tensor(1 if dtype is torch.uint8 else 0.1, dtype=torch.float64)
        for parameter in self.param_groups[0]["params"]:
            first = 250 if dtype is torch.uint8 else 0
            self.state[parameter]["step"] = torch.tensor(first, dtype=dtype)

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for parameter in self.param_groups[0]["params"]:
            count = self.state[parameter]["step"]
            count.add_(self._more.to(torch.int64) if count.dtype is torch.uint8 else self._more)
            early = count.item() < 100 if count.dtype is torch.uint8 else count.item() > 0.60000001
            parameter.sub_(parameter.grad, alpha=0.1 if early else 0.05)


@pytest.mark.parametrize("dtype", [torch.uint8, torch.float32])
def test_counters_that_round(dtype: torch.dtype) -> None:
    assert_parity(lambda: setup(lambda parameters: Rounding(parameters, dtype)), batches(12))


class Entangled(optim.Optimizer):
    """The second item of a list reads what the first has written."""

    def __init__(self, parameters: Iterable[torch.Tensor], lr: float = 0.1) -> None:
        super().__init__(parameters, {"lr": lr})
        self.slots = [torch.ones_like(p) for p in self.param_groups[0]["params"][::2][:2]]
        self.weights = [torch.zeros(()), torch.zeros(())]

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        first, second = self.slots
        torch._foreach_addcmul_([first, second], [second, first], self.weights)
        for parameter, slot in zip(self.param_groups[0]["params"][::2], self.slots, strict=False):
            parameter.sub_(slot * parameter.grad, alpha=0.1)


@pytest.mark.filterwarnings("ignore::torchgraph.errors.EagerWarning")
def test_lists_of_which_an_item_reads_what_another_has_written() -> None:
    nets, optimizers = [deep(2), deep(2)], []
    nets[1].load_state_dict(nets[0].state_dict())
    for net in nets:
        optimizers.append(Entangled(net.parameters()))
    graph = tg.train_step(nets[0], nn.functional.mse_loss, optimizers[0])
    graph.config.set_backend("aten")
    for number in range(8):
        if number == 5:  # until then nothing tells the two orders apart
            for optimizer in optimizers:
                for weight in optimizer.weights:
                    weight.fill_(0.5)
        both_step(graph, nets, optimizers[1])
