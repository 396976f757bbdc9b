"""Both sides of a comparison under a grad scaler: a Graph, and the loop that one writes without."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn, optim

import torchgraph as tg

SHAPES = {"Mlp": (6,), "ConvNet": (2, 6, 6)}


def scaler(**options: Any) -> torch.amp.GradScaler:
    """One that grows soon. 3000 is no power of two: products with its inverse are rounded."""
    return torch.amp.GradScaler("cpu", **{"init_scale": 3000.0, "growth_interval": 3, **options})


def weighted_loss(model: nn.Module, x: torch.Tensor, y: torch.Tensor, weight: torch.Tensor) -> Any:
    """Infinite where a weight is."""
    return (nn.functional.cross_entropy(model(x), y, reduction="none") * weight).mean()


def batches(model: type[nn.Module], count: int, infinite: Any = ()) -> list[Any]:
    """``count`` batches of 8; the loss of those numbered in ``infinite`` is infinite."""
    torch.manual_seed(3)
    found = []
    for number in range(count):
        weight = torch.full((8,), torch.inf if number in infinite else 1.0)
        x = torch.randn(8, *SHAPES[model.__name__])
        found.append((x, torch.randint(0, 3, (8,)), weight))
    return found


class Train(tg.Graph):
    """One step under a scaler."""

    def __init__(
        self,
        model: nn.Module,
        optimizer: optim.Optimizer,
        grad_scaler: Any,
        lr_sch: Any = None,
        k: int = 1,
        amp: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.model = model
        self.add_optimizer(optimizer, lr_sch=lr_sch)
        self.set_grad_scaler(grad_scaler)
        self.config.set_gradient_accumulation_steps(k)
        if amp is not None:
            self.config.enable_amp(dtype=amp)

    def build(self, x: torch.Tensor, y: torch.Tensor, weight: torch.Tensor) -> Any:
        loss = weighted_loss(self.model, x, y, weight)
        loss.backward()
        return loss

    def fuse(self) -> None:
        """Switch on everything that updates with fewer calls."""
        self.config.allow_fuse_model_update_ops()
        self.config.enable_multi_tensor_update()
        self.config.enable_fused_model_update_cast()


class Eager:
    """The same step as one writes it."""

    def __init__(
        self,
        model: nn.Module,
        optimizer: optim.Optimizer,
        grad_scaler: torch.amp.GradScaler,
        lr_sch: Any = None,
        k: int = 1,
        amp: torch.dtype | None = None,
    ) -> None:
        self.model, self.optimizer, self.scaler = model, optimizer, grad_scaler
        self.lr_sch, self.k, self.amp = lr_sch, k, amp
        self.clip: Callable[[], Any] | None = None

    def __call__(self, x: torch.Tensor, y: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        losses = []
        for part in zip(x.chunk(self.k), y.chunk(self.k), weight.chunk(self.k), strict=True):
            with torch.autocast("cpu", self.amp) if self.amp else nullcontext():
                loss = weighted_loss(self.model, *part)
            self.scaler.scale(loss if self.k == 1 else loss / self.k).backward()
            losses.append(loss.detach())
        self._clip()
        self.scaler.step(self.optimizer)
        skipped = found_inf(self.scaler, self.optimizer)
        self.scaler.update()
        self.optimizer.zero_grad()
        if self.lr_sch is not None and not skipped:
            self.lr_sch.step()
        return losses[0] if self.k == 1 else torch.stack(losses)

    def _clip(self) -> None:
        clipped = [g for g in self.optimizer.param_groups if "clip_grad_max_norm" in g]
        if clipped or self.clip is not None:
            self.scaler.unscale_(self.optimizer)
        for group in clipped:
            nn.utils.clip_grad_norm_(group["params"], group["clip_grad_max_norm"])
        if self.clip is not None:
            self.clip()


def found_inf(grad_scaler: torch.amp.GradScaler, optimizer: optim.Optimizer) -> bool:
    """True when the scaler did not let that optimizer step; ask before ``update()``."""
    found = grad_scaler._per_optimizer_states[id(optimizer)]["found_inf_per_device"]
    return any(value.item() for value in found.values())


@dataclass
class Side:
    """One of the two."""

    step: Any
    model: nn.Module
    optimizer: optim.Optimizer
    scaler: torch.amp.GradScaler
    lr_sch: Any


def sides(model: type[nn.Module], make: Callable[[Any], optim.Optimizer], **options: Any) -> Any:
    """(a Graph's side, eager's side), from the same weights."""
    torch.manual_seed(0)
    weights = model().state_dict()
    found = []
    for kind in (Train, Eager):
        own = model()
        own.load_state_dict(weights)
        optimizer, held = make(own.parameters()), scaler()
        lr_sch = optim.lr_scheduler.StepLR(optimizer, 2, gamma=0.5)
        found.append(
            Side(kind(own, optimizer, held, lr_sch, **options), own, optimizer, held, lr_sch)
        )
    return tuple(found)


def assert_same(mine: Side, other: Side, *, slots: bool = True, rtol: float = 0.0) -> None:
    """Parameters, buffers, slots, learning rates, scale: to the last bit without an ``rtol``.

    ``slots=False``: those that are there are compared, eager may have more.
    """
    _same("", mine.model.state_dict(), other.model.state_dict(), rtol)
    state, expected = mine.optimizer.state_dict(), other.optimizer.state_dict()
    if not slots:
        expected["state"] = {key: expected["state"][key] for key in state["state"]}
    _same("", state, expected, rtol)
    assert mine.scaler.state_dict() == other.scaler.state_dict()
    assert mine.lr_sch.last_epoch == other.lr_sch.last_epoch


def _same(path: str, got: Any, expected: Any, rtol: float = 0.0) -> None:
    if isinstance(expected, dict):
        assert list(got) == list(expected), path
        for key, value in expected.items():
            _same(f"{path}.{key}", got[key], value, rtol)
    elif isinstance(expected, (list, tuple)):
        assert len(got) == len(expected), path
        for number, value in enumerate(expected):
            _same(f"{path}.{number}", got[number], value, rtol)
    elif isinstance(expected, torch.Tensor):
        torch.testing.assert_close(
            got, expected, rtol=rtol, atol=rtol, equal_nan=True, msg=lambda text: f"{path}: {text}"
        )
    else:
        assert got == expected, path


def follow(
    mine: Side, other: Side, data: list[Any], *, slots: bool = True, rtol: float = 0.0
) -> None:
    """Run both, and compare after each step."""
    for number, batch in enumerate(data):
        torch.manual_seed(number)
        got = mine.step(*batch)
        torch.manual_seed(number)
        expected = other.step(*batch)
        torch.testing.assert_close(got, expected, rtol=rtol, atol=rtol, equal_nan=True)
        assert_same(mine, other, slots=slots, rtol=rtol)
