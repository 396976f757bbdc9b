"""What a run has left after each call, and whether two runs left the same.

Printed in front of a program that differs: it needs nothing but torch and torchgraph.
"""

from __future__ import annotations

import traceback
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn

import torchgraph as tg
from torchgraph.counters import counters

Seen = dict[str, Any]


def leaves(value: Any, path: str) -> Iterator[tuple[str, Any]]:
    """The tensors and plain values inside of ``value``, each with the way to it."""
    if isinstance(value, torch.Tensor):
        yield f"{path} layout", (value.dtype, tuple(value.shape), value.stride())
        yield path, value.detach().clone()
    elif isinstance(value, nn.Module):
        for name, tensor in [*value.named_parameters(), *value.named_buffers()]:
            yield from leaves(tensor, f"{path}.{name}")
            yield f"{path}.{name}.requires_grad", tensor.requires_grad
            yield from leaves(tensor.grad, f"{path}.{name}.grad")
        yield f"{path}.training", [module.training for module in value.modules()]
    elif hasattr(value, "state_dict"):
        yield from leaves(value.state_dict(), path)
    elif isinstance(value, dict):
        yield f"{path}.keys()", list(value)
        for key, item in value.items():
            yield from leaves(item, f"{path}[{key!r}]")
    elif isinstance(value, (list, tuple)):
        yield f"{path} is", (type(value).__name__, len(value))
        for index, item in enumerate(value):
            yield from leaves(item, f"{path}[{index}]")
    else:
        yield path, value


def bits(tensor: torch.Tensor) -> torch.Tensor:
    """Its bytes, where every NaN is the same one."""
    if tensor.is_complex():
        tensor = torch.view_as_real(tensor.resolve_conj().resolve_neg())
    if tensor.is_floating_point():
        tensor = torch.where(tensor.isnan(), float("nan"), tensor)
    return tensor.contiguous().flatten().view(torch.uint8)


def same(left: Any, right: Any, tolerance: float) -> bool:
    if not isinstance(left, torch.Tensor) or not isinstance(right, torch.Tensor):
        close = tolerance and isinstance(left, float) and isinstance(right, float)
        return abs(left - right) <= tolerance if close else repr(left) == repr(right)
    if left.shape != right.shape or left.dtype != right.dtype:
        return False
    if tolerance and left.dtype.is_floating_point:
        return left.allclose(right, rtol=tolerance, atol=tolerance, equal_nan=True)
    return bits(left).equal(bits(right))


class SpotChecks:
    """The calls of one run: what was there after each, and the exception that ended it."""

    def __init__(self) -> None:
        self.calls: list[Seen] = []
        self.error: Exception | None = None
        self.warnings: list[str] = []

    def __call__(self, **things: Any) -> None:
        things["random"] = torch.get_rng_state()
        self.calls.append(dict(pair for name, it in things.items() for pair in leaves(it, name)))


def looked(run: Callable[[bool, SpotChecks], None], graphed: bool) -> SpotChecks:
    looks = SpotChecks()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        torch.manual_seed(0)
        try:
            run(graphed, looks)
        except Exception as error:  # whatever eager raises too is right
            looks.error = error
    looks.warnings = [f"{w.category.__name__}: {w.message}" for w in caught]
    return looks


def difference(eager: SpotChecks, ours: SpotChecks, tolerance: float) -> str:
    """The first thing that is another one; empty if there is none."""
    for call, (left, right) in enumerate(zip(eager.calls, ours.calls, strict=False)):
        for path in {**left, **right}:
            a, b = left.get(path, "nothing"), right.get(path, "nothing")
            if not same(a, b, tolerance):
                return f"call {call}: {path}\n  eager: {a}\n  graph: {b}"
    return ""


def calls_before(looks: SpotChecks) -> int:
    """How many calls the step that raised has had before; it may have come later than others."""
    assert looks.error is not None
    for frame, _ in traceback.walk_tb(looks.error.__traceback__):
        graph = frame.f_locals.get("self")
        if isinstance(graph, tg.Graph):
            fallback = graph._runner.recordings.fallback
            eager: int = sum(one.count for one in fallback.eager)
            return fallback.recorded + eager + graph._runner.cache.served
    return len(looks.calls)


def verdict(run: Callable[[bool, SpotChecks], None], tolerance: float = 0.0) -> str:
    """``same``, or a word for the kind of fault and what it is; ``refused`` is no fault."""
    eager = looked(run, graphed=False)
    before = counters.replays
    ours = looked(run, graphed=True)
    replays = counters.replays - before
    if found := difference(eager, ours, tolerance):
        return f"different: {found}"
    if type(eager.error) is not type(ours.error):
        late = 3 if isinstance(ours.error, tg.errors.NotSupported) else 2  # docs/training.md
        refused = isinstance(ours.error, tg.errors.GraphError) and calls_before(ours) < late
        kind = "refused" if refused else "raised"
        return f"{kind}: {type(ours.error).__name__} at call {len(ours.calls)}: {ours.error}"
    if confirm := [text for text in ours.warnings if text.startswith("ConfirmWarning")]:
        return f"unconfirmed: {confirm[0]}"
    if kept := [text for text in ours.warnings if text.startswith("EagerWarning")]:
        return f"same, in eager: {kept[0]}"
    if not replays:
        return f"same, never replayed: {eager.error}"
    return f"same, raised: {eager.error}" if eager.error else f"same: {replays} replays"
