"""Puts traced stand-ins where the live tensors and numbers are, for the length of a capture."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from .._torch import FakeTensor
from .step import Leaf, Path, Step


def fake_of(mode: Any, tensor: torch.Tensor) -> torch.Tensor:
    """A fake copy of a tensor: same metadata, leaf, attributes and hooks; no data."""
    fake: torch.Tensor = mode.from_tensor(tensor, static_shapes=True)
    for name, value in vars(tensor).items():
        if name not in vars(fake):
            setattr(fake, name, value)
    for hook in (tensor._backward_hooks or {}).values():
        fake.register_hook(hook)
    for hook in (getattr(tensor, "_post_accumulate_grad_hooks", None) or {}).values():
        fake.register_post_accumulate_grad_hook(hook)
    return fake


def number_tensor(value: float) -> torch.Tensor:
    """The 0-dim CPU tensor that carries a Python number through a trace, without rounding it."""
    return torch.tensor(value, dtype=torch.int64 if isinstance(value, int) else torch.float64)


class StandIns:
    """The stand-in of each leaf, by leaf position; numbers get theirs inside the trace."""

    def __init__(self, step: Step) -> None:
        self._step = step
        self._groups = [[dict(group) for group in opt.param_groups] for opt in step.optimizers]
        self.states: list[defaultdict[Any, Any]] = []
        """The optimizers' states while stand-ins are in place."""
        self._numbers = {
            (id(leaf.root), leaf.path): position
            for position, leaf in enumerate(step.leaves)
            if not isinstance(leaf.value, torch.Tensor)
        }

    @contextmanager
    def in_place(self, standins: list[Any]) -> Iterator[None]:
        """Swap all leaves for ``standins``; everything is as before when the block ends."""
        step = self._step
        saved: list[tuple[Any, dict[str, Any]]] = [
            (held, dict(held))
            for module in step.modules.values()
            for held in (module._parameters, module._buffers, module._modules)
        ]
        optimizers = [(opt, dict(vars(opt)), dict(opt.state)) for opt in step.optimizers]
        try:
            for position, leaf in enumerate(step.leaves):
                if not leaf.in_module:
                    continue
                leaf.root[leaf.path[0]] = standins[position]
            for place in step.places:
                place.root[place.key] = standins[place.leaf]
            self._swap_optimizers(standins)
            yield
        finally:
            for held, before in saved:
                held.clear()
                held.update(before)
            for optimizer, attributes, _ in optimizers:
                vars(optimizer).clear()
                vars(optimizer).update(attributes)
            for optimizer, groups in zip(step.optimizers, self._groups, strict=True):
                for group, before in zip(optimizer.param_groups, groups, strict=True):
                    group.clear()
                    group.update(before)

    def _swap_optimizers(self, standins: list[Any]) -> None:
        step = self._step
        for optimizer in step.optimizers:
            optimizer.state, live = defaultdict(dict), optimizer.state
            for key, slots in live.items():
                self._swap_slots(optimizer, key, slots, standins)
            self.states.append(optimizer.state)
            for group in optimizer.param_groups:
                group["params"] = [standins[step.index[id(p)]] for p in group["params"]]
        for position, leaf in enumerate(step.leaves):
            if ".param_groups." in leaf.fqn and leaf.fqn.startswith("optimizer."):
                assign(leaf.root, leaf.path, standins[position])

    def _swap_slots(self, optimizer: Any, key: Any, slots: Any, standins: list[Any]) -> None:
        if isinstance(key, torch.Tensor):
            if id(key) not in self._step.index:
                return
            key = standins[self._step.index[id(key)]]
        if isinstance(slots, dict):
            optimizer.state[key] = {
                name: self._replace(value, standins, slots, (name,))
                for name, value in slots.items()
            }

    def _replace(self, value: Any, standins: list[Any], root: Any, path: Path) -> Any:
        if isinstance(value, torch.Tensor):
            return standins[self._step.index[id(value)]]
        if isinstance(value, dict):
            return {k: self._replace(v, standins, root, (*path, k)) for k, v in value.items()}
        if isinstance(value, (list, tuple)):
            kind = type(value)
            return kind(self._replace(v, standins, root, (*path, k)) for k, v in enumerate(value))
        number = self._numbers.get((id(root), path))
        return value if number is None else standins[number]


def assign(root: Any, path: Path, value: Any) -> None:
    """Set the value at ``path`` below a dict. Inner containers are rebuilt, not written."""
    root[path[0]] = _rebuilt(root[path[0]], path[1:], value)


def _rebuilt(container: Any, path: Path, value: Any) -> Any:
    if not path:
        return value
    if isinstance(container, dict):
        return {**container, path[0]: _rebuilt(container[path[0]], path[1:], value)}
    items = list(container)
    items[path[0]] = _rebuilt(items[path[0]], path[1:], value)
    return type(container)(items)


def rebound_buffers(step: Step, standins: list[Any]) -> Iterator[tuple[Leaf, Any, Any]]:
    """Buffers that `build` replaced by another tensor: (leaf, stand-in, new value)."""
    for position, leaf in step.tensors():
        if not leaf.in_module:
            continue
        now = leaf.root.get(leaf.path[0])
        if now is not standins[position]:
            yield leaf, standins[position], now


def is_traced(value: Any) -> bool:
    """True for a tensor that belongs to the trace."""
    return isinstance(value, FakeTensor)


def adopted_state(module: nn.Module) -> list[tuple[dict[str, Any], str, torch.Tensor]]:
    """Every (holder, name, tensor) of a module that the Graph does not hold."""
    return [
        (holder, name, tensor)
        for child in module.modules()
        for holder in (child._parameters, child._buffers)
        for name, tensor in holder.items()
        if tensor is not None
    ]
