"""Calls of a play, performed in eager or in another form, and what differs between the two."""

from __future__ import annotations

import enum
import math
import random
import warnings
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from types import FunctionType
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import nn

from tests.cases.plays import Play
from tests.support import same_bits
from torchgraph.counters import counters
from torchgraph.errors import ConfirmWarning, GraphWarning

Leaves = dict[str, Any]
PLAIN = (int, float, complex, str, bytes, bool, type(None), type, torch.dtype, enum.Enum)


class Outcome(NamedTuple):
    """One call: all that there was before and after it, and what was raised."""

    before: Leaves
    after: Leaves
    raised: BaseException | None


class Run(NamedTuple):
    """All calls of a play in one form."""

    called: Callable[..., Any]
    """The step in this form."""
    outcomes: list[Outcome]
    results: list[Leaves]
    """What was returned, as it is at the end."""
    told: list[Warning | str]
    served: int
    """The calls that programs have served."""
    last: bool
    """Whether a program has served the last call."""
    recorded: int
    """The programs that were captured."""


def perform(
    make: Callable[[], Play],
    form: Callable[[Play], Callable[..., Any]],
    until: type[Exception] | tuple[()] = (),
) -> Run:
    """Make the play in this form, from the same seeds; until a call raises ``until``."""
    _seed()
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        play, served, captures = make(), counters.replays, counters.captures
        called, outcomes, results, last = form(play), [], [], served
        for number, args in enumerate(play.calls):
            play.before.get(number, lambda: None)()
            before, result, raised = world(play, args), None, None
            last = counters.replays
            try:
                result = play.around(partial(called, *args))
            except (Exception, KeyboardInterrupt) as error:
                raised = error
            results.append(result)
            after = {**world(play, args), **dict(leaves(result, "result", grads=False))}
            outcomes.append(Outcome(before, after, raised))
            if until and isinstance(raised, until):
                break
    kept = [dict(leaves(result, "result", grads=False)) for result in results]
    words, now = [one.message for one in told], counters.replays
    recorded = counters.captures - captures
    return Run(called, outcomes, kept, words, now - served, now > last, recorded)


def _seed() -> None:
    random.seed(0)
    np.random.seed(0)
    torch.manual_seed(0)


def world(play: Play, args: Any) -> Leaves:
    """A copy of what a call may change."""
    numpy: Any = np.random.get_state()
    states = {"torch": torch.get_rng_state(), "random": random.getstate()}
    states["numpy"] = numpy[1].tobytes()
    return dict(leaves({"watched": play.watched, "arguments": args, **states}))


def leaves(value: Any, path: str = "", grads: bool = True) -> Iterator[tuple[str, Any]]:
    """What there is in it, by path: copies of tensors and gradients, plain values, types."""
    if isinstance(value, torch.Generator):
        value = value.get_state()
    if isinstance(value, torch.Tensor):
        yield f"{path}:", type(value).__name__
        plain = value.detach().to_dense() if value.is_sparse else value.detach()
        yield path, plain.as_subclass(torch.Tensor).clone()
        if grads and value.is_leaf and value.requires_grad:
            yield from leaves((True, value.grad), f"{path}.grad")
        return
    parts = None if isinstance(value, PLAIN) else _parts(value)
    yield path, value if parts is None else type(value).__name__
    for key, part in (parts or {}).items():
        yield from leaves(part, f"{path}.{key}", grads)


def _parts(value: Any) -> dict[Any, Any] | None:
    if isinstance(value, nn.Module):
        modes = {f"{name} training": one.training for name, one in value.named_modules()}
        return {**dict(value.named_parameters()), **dict(value.named_buffers()), **modes}
    if isinstance(value, torch.optim.Optimizer):
        held = [one for group in value.param_groups for one in group["params"]]
        return {
            "groups": value.param_groups,
            "state": [dict(value.state[one]) for one in held if one in value.state],
        }
    if hasattr(value, "state_dict"):
        return dict(value.state_dict())
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, (list, tuple, deque)) and len(value) < 600:
        return dict(enumerate(value))
    if isinstance(value, (set, frozenset)):
        return dict(enumerate(sorted(value, key=repr)))
    if isinstance(value, np.ndarray):
        return {"items": value.tobytes()}
    if isinstance(value, FunctionType):
        return {"()": value()} if not value.__code__.co_argcount else {}
    slots = getattr(type(value), "__slots__", ())
    return {**{name: getattr(value, name) for name in slots}, **getattr(value, "__dict__", {})}


def check_same(expected: Run, found: Run, tolerance: float = 0.0) -> None:
    """Every call leaves what eager leaves, and says nothing that eager does not say."""
    for number, (left, right) in enumerate(zip(expected.outcomes, found.outcomes, strict=True)):
        if _error(left) != _error(right):
            text = f"call {number} raised {right.raised!r}, not {left.raised!r}"
            raise AssertionError(text) from right.raised
        for when, one, other in zip(("before", "after"), left[:2], right[:2], strict=True):
            why = _difference(one, other, tolerance)
            assert not why, f"{when} call {number}: {why}"
    for number, now in enumerate(found.results):
        then = {key: found.outcomes[number].after[key] for key in now}
        if why := _difference(expected.results[number], now, tolerance):
            assert not _difference(then, now), f"the result of call {number} was changed: {why}"
    said = {str(one) for one in expected.told}
    strange = [one for one in found.told if not isinstance(one, GraphWarning)]
    assert not [one for one in strange if str(one) not in said]
    assert not [one for one in found.told if isinstance(one, ConfirmWarning)]


def _error(outcome: Outcome) -> tuple[type, str]:
    return type(outcome.raised), str(outcome.raised)


def check_refusal(expected: Run, found: Run, refused: type[Exception]) -> None:
    """Call 0 or 1 raises and changes nothing; the one before it is eager's."""
    last = len(found.outcomes) - 1
    before, after, raised = found.outcomes[last]
    assert isinstance(raised, refused), f"never raised {refused.__name__}"
    assert last < 2, f"call {last} raised {raised!r}"
    after.pop("result")
    assert not (why := _difference(before, after)), f"call {last} was refused, and changed {why}"
    if last:
        assert not (why := _difference(expected.outcomes[0].after, found.outcomes[0].after)), why


def _same(one: Any, other: Any, tolerance: float) -> bool:
    if type(one) is not type(other):
        return False
    if tolerance and isinstance(one, torch.Tensor) and one.shape == other.shape:
        return torch.allclose(one, other, rtol=tolerance, atol=tolerance, equal_nan=True)
    if tolerance and isinstance(one, float):
        return math.isclose(one, other, rel_tol=tolerance) or repr(one) == repr(other)
    return same_bits(one, other) or repr(one) == repr(other) == "nan"


def _difference(left: Leaves, right: Leaves, tolerance: float = 0.0) -> str:
    """The first path where they are not the same, and both values; empty if there is none."""
    for path in [*left, *(path for path in right if path not in left)]:
        one, other = (side.get(path, "nothing") for side in (left, right))
        if not _same(one, other, tolerance):
            return f"{path}: eager has {one}, this {other}"
    return ""
