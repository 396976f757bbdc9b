"""Steps of every kind that signals hit, and their twins in eager."""

from __future__ import annotations

import gc
import os
import random
import signal
import sys
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from tests.contract.models import Net, Train, same
from torchgraph._torch import dispatch_modes, function_modes
from torchgraph._torch.listening import is_listening
from torchgraph._torch.patching import patching


class Squared(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> torch.Tensor:
        return 2 * ctx.saved_tensors[0] * gradients[0]


class WithFunction(Net):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return Squared.apply(super().forward(x))  # type: ignore[no-untyped-call]  # torch's


class Checkpointed(Net):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = super().forward(x)
        return checkpoint(lambda value: torch.tanh(value) * value, hidden, use_reentrant=False)


class Hooked(Net):
    def __init__(self) -> None:
        super().__init__()
        self.first.register_forward_hook(lambda module, args, result: result * 1.5)
        self.second.register_full_backward_hook(lambda module, before, after: None)
        self.second.weight.register_hook(lambda gradient: gradient * 0.5)


class Momentum(torch.optim.Optimizer):
    def __init__(self, parameters: Any) -> None:
        super().__init__(parameters, {"lr": 0.1})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            for parameter in group["params"]:
                state = self.state[parameter]
                state["m"] = state.get("m", torch.zeros_like(parameter)) * 0.9 + parameter.grad
                parameter.add_(state["m"], alpha=-group["lr"])


class Loop(NamedTuple):
    """What a step consists of, and the step in eager."""

    model: nn.Module
    optimizer: torch.optim.Optimizer
    scheduler: Any

    def graph(self) -> Train:
        return Train(*self)

    def eager(self, x: torch.Tensor) -> torch.Tensor:
        loss = self.model(x).square().mean()
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        if self.scheduler is not None:
            self.scheduler.step()
        return loss.detach()

    def state(self) -> list[object]:
        """Everything that a whole step moves."""
        slots = [slot for p in self.model.parameters() for slot in self.optimizer.state[p].values()]
        held = [*self.model.state_dict().values(), *slots, torch.get_rng_state()]
        found = [one.clone() if isinstance(one, torch.Tensor) else one for one in held]
        return [*found, [group["lr"] for group in self.optimizer.param_groups]]


def _adam(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.Adam(parameters, 0.01)


KINDS: dict[str, tuple[type[nn.Module], Callable[[Any], torch.optim.Optimizer]]] = {
    "plain": (Net, _adam),
    "function": (WithFunction, _adam),
    "checkpoint": (Checkpointed, _adam),
    "hooks": (Hooked, _adam),
    "user's optimizer": (Net, Momentum),
    "scheduler": (Net, _adam),
}


def made(kind: str) -> Loop:
    torch.manual_seed(0)
    model, optimizer = KINDS[kind]
    model_ = model()
    optimizer_ = optimizer(model_.parameters())
    schedule = torch.optim.lr_scheduler.StepLR(optimizer_, 1, 0.9)
    return Loop(model_, optimizer_, schedule if kind == "scheduler" else None)


def batch(number: int) -> torch.Tensor:
    return torch.randn(3, 4, generator=torch.Generator().manual_seed(number))


def world() -> list[object]:
    """Python's and torch's global state, and what a recording patches."""
    patched = [
        vars(nn.Module).get(name) for name in ("__setattr__", "__getattr__", "__call__", "forward")
    ]
    return [
        sys.gettrace(),
        sys.getprofile(),
        gc.isenabled(),
        list(warnings.filters),
        torch.is_grad_enabled(),
        torch.is_inference_mode_enabled(),
        torch.autograd.is_multithreading_enabled(),
        dispatch_modes(),
        function_modes(),
        [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGALRM)],
        *patched,
        [torch.Tensor.backward, torch.Tensor.grad, torch.cond, torch.rand, torch.manual_seed],
        [random.random, torch.optim.Adam.step, torch.optim.Adam.zero_grad],
        is_listening(),
        patching._thread,
        threading.current_thread(),
    ]


def as_eager_after(loop: Loop, graph: Train, kind: str, seed: int) -> None:
    """The state is that after as many whole steps as the Graph says, and so are later calls."""
    done, found = graph.state_dict()["_train"]["step"], loop.state()
    twin = made(kind)
    torch.manual_seed(seed)
    for number in range(done):
        twin.eager(batch(number))
    assert same(found, twin.state()), f"half a step after {done}"
    for number in range(done, done + 4):
        before = torch.get_rng_state()
        got = graph(batch(number))
        torch.set_rng_state(before)
        assert same(got, twin.eager(batch(number)))
    assert same(loop.state(), twin.state())


class Stop(BaseException):
    """What a handler of the user's raises."""


def stop(*_: object) -> None:
    raise Stop


@contextmanager
def handled(number: int, handler: Callable[..., object] | signal.Handlers) -> Iterator[None]:
    before = signal.signal(number, handler)
    try:
        yield
        assert signal.getsignal(number) == handler
    finally:
        signal.signal(number, before)


def ctrl_c(*_: object) -> None:
    os.kill(os.getpid(), signal.SIGINT)
