"""Hostile steps: each runs in eager, and beside it by ``tg.step`` or as a `Graph`; all must agree.

A case is a function that makes a `Play` anew for each contender. After every call the result, the
arguments, what is watched and the random states are eager's bits, or the call raised the error
that the case names and has changed nothing; with `set_fallback` all calls are then eager's.
"""

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
import pytest
import torch
from torch import nn

import torchgraph as tg
from tests.hostile.plays import Play
from tests.support import same_bits
from torchgraph.counters import counters
from torchgraph.errors import (
    CacheThrashWarning,
    ConfirmWarning,
    EagerWarning,
    GraphWarning,
    NoProgram,
)

Leaves = dict[str, Any]
Form = Callable[..., Callable[..., Any]]
"""Of a play, and of a keyword ``fallback`` where programs serve: what is called for its step."""
WORDS = (EagerWarning, CacheThrashWarning)
PLAIN = (int, float, complex, str, bytes, bool, type(None), type, torch.dtype, enum.Enum)


class Outcome(NamedTuple):
    """One call: all that there was before and after it, and what was raised."""

    before: Leaves
    after: Leaves
    raised: BaseException | None


class Run(NamedTuple):
    """All calls of a play."""

    outcomes: list[Outcome]
    results: list[Leaves]
    """What was returned, as it is at the end."""
    told: list[Warning | str]
    served: int
    """The calls that programs have served."""
    last: bool
    """Whether a program has served the last call."""


class Case(NamedTuple):
    """A play, and what is expected of it."""

    make: Callable[[], Play]
    form: Form
    refused: type[Exception] | None
    tolerance: float = 0.0
    """How far numbers may be from eager's; 0 stands for the same bits."""
    serves: bool = False
    """Whether a program has to serve the last call."""

    def check(self) -> None:
        """Raises AssertionError where this form is neither eager nor refused as it should be."""
        expected = perform(self.make, eager)
        if self.refused:
            check_refusal(expected, perform(self.make, self.form, self.refused), self.refused)
            if issubclass(self.refused, NoProgram):
                check_same(expected, perform(self.make, partial(self.form, fallback="eager")))
            return
        found = perform(self.make, self.form)
        check_same(expected, found, self.tolerance)
        assert found.served or any(isinstance(one, WORDS) for one in found.told), found.told
        assert found.last or not self.serves, found.told


def eager(play: Play) -> Callable[..., Any]:
    """The step itself."""
    return play.step


def step(play: Play, fallback: str = "error") -> Any:
    """By ``tg.step``."""
    made = tg.step(play.step)
    made.config.set_fallback(fallback)
    return made


def compiled(play: Play, fallback: str = "error") -> Any:
    """By ``tg.step``, and by Inductor from the first program on."""
    made = step(play, fallback)
    made.config.set_backend("inductor")
    return made


def graph(play: Play, fallback: str = "error") -> Callable[..., Any]:
    """As the `build` of a Graph that holds the modules."""

    class Hostile(tg.Graph):
        def __init__(self) -> None:
            super().__init__()
            for number, module in enumerate(play.watched):
                if isinstance(module, nn.Module):
                    setattr(self, f"module{number}", module)

        def build(self, *args: Any) -> Any:
            return play.step(*args)

    made = Hostile()
    made.config.set_fallback(fallback)
    return made


def perform(
    make: Callable[[], Play],
    form: Form,
    until: type[Exception] | tuple[()] = (),
) -> Run:
    """Make the play in this form, from the same seeds; until a call raises ``until``."""
    _seed()
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        play, served = make(), counters.replays
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
    return Run(outcomes, kept, words, now - served, now > last)


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
        if type(left.raised) is not type(right.raised):
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


# --- registration ---------------------------------------------------------------------------------


OFTEN = 8


class Cases(list[Any]):
    """Those of an area: parameters of its test.

    A play that runs in both forms seldom fails in one of them alone, and ``tg.step``, which looks
    for all that a step may reach, takes several times as long: the form is slow there but for every
    eighth play. A play of one form, or with a fault in one, always runs in it.
    """

    _both = 0

    def __call__(
        self,
        make: Callable[[], Play] | None = None,
        *,
        refused: type[Exception] | None = None,
        fault: str | dict[str, str] | None = None,
        forms: str = "step graph",
        serves: bool = False,
        slow: bool = False,
        name: str = "",
    ) -> Any:
        """Decorator of the function that makes the play.

        Args:
            refused: the error that the first or the second call raises.
            fault: of torchgraph, known and not yet mended; in all forms, or by form.
            forms: "step", "graph", or both.
            serves: a program has to serve the last call.
            slow: left to `make test-all`; other plays show the same mechanisms in less time.
            name: that of the play, if the function has no good one.
        """
        if make is None:
            given: dict[str, Any] = {"refused": refused, "fault": fault, "forms": forms}
            return partial(self, serves=serves, slow=slow, name=name, **given)
        seldom = not slow and self._is_slow(forms, fault)
        for form in forms.split():
            why = fault.get(form) if isinstance(fault, dict) else fault
            marks = [pytest.mark.xfail(strict=True, reason=why)] if why else []
            if slow or (seldom and form == "step"):
                marks.append(pytest.mark.slow)
            case = Case(make, {"step": step, "graph": graph}[form], refused, serves=serves)
            self.append(pytest.param(case, id=f"{name or make.__name__}-{form}", marks=marks))
        return make

    def rows(self, plays: Mapping[str, Callable[[], Play]], **expected: Any) -> None:
        """Plays by name, each made by one expression; all have the same keywords."""
        for name, make in plays.items():
            self(make, name=name, **expected)

    def _is_slow(self, forms: str, fault: str | dict[str, str] | None) -> bool:
        """Whether the form ``tg.step`` of this play is left to `make test-all`."""
        if fault or len(forms.split()) == 1:
            return False
        self._both += 1
        return self._both % OFTEN != 1
