"""Random draws in `build`: in eager's order, and again where `build` goes back to a saved state.

`torch.utils.checkpoint` saves the state of the generators before a region and sets it again before
backward repeats the region, so that dropout has the same mask. A program has no such state: to get
one is to remember how many draws there were, and to set it is to give the later draws once more.
"""

from __future__ import annotations

import random
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any
from unittest import mock

import torch

from .._torch import OpOverload, disable_modes
from ..errors import RandomStateTouched
from .trail import Trail

aten = torch.ops.aten


@dataclass(frozen=True)
class _Draw:
    """A draw that was recorded, with copies of its results where it may be repeated."""

    func: OpOverload
    arguments: Any
    """Shapes, dtypes and numbers: what decides how many numbers are drawn, and which."""
    results: tuple[Any, ...]
    single: bool


class RandomDraws:
    """The draws of one `build`, and which of them is the next."""

    def __init__(self, trail: Trail) -> None:
        self._trail = trail
        self._made: list[_Draw] = []
        self._next = 0
        self._states: dict[int, tuple[torch.Tensor, int]] = {}
        """id of a state that was handed out -> (the state, how many draws came before)."""

    def draw(
        self, func: OpOverload, args: Any, kwargs: Any, record: Callable[[Any, Any, Any], Any]
    ) -> Any:
        """What ``func`` gives: recorded by ``record``, or that of the draw which this one repeats.

        Raises:
            RandomStateTouched: another draw follows a state than the first time.
        """
        arguments = _described((args, kwargs))
        if self._next < len(self._made):
            made = self._made[self._next]
            if (made.func, made.arguments) != (func, arguments):
                raise RandomStateTouched(
                    f"build sets the random state back, and then {func} draws other numbers than "
                    f"{made.func} did from that state: a static program cannot draw them.",
                    where=self._trail.line,
                )
            self._next += 1
            return _repeated(made, args)
        out = record(func, args, kwargs)
        results = out if isinstance(out, (tuple, list)) else (out,)
        copies = tuple(_copy(func, result) for result in results) if self._states else ()
        self._made.append(_Draw(func, arguments, copies, results is not out))
        self._next += 1
        _advance()
        return out

    @contextmanager
    def active(self) -> Iterator[None]:
        """States of torch's default generators are places in the order of draws, to this thread.

        Raises:
            RandomStateTouched: at the end, when the state is not the one after the last draw.
        """
        modules = [torch, torch.random]
        if torch.cuda.is_initialized():
            modules += [torch.cuda, torch.cuda.random]
        here = threading.get_ident()

        def own(ours: Callable[..., Any], theirs: Callable[..., Any]) -> Callable[..., Any]:
            def call(*args: Any, **kwargs: Any) -> Any:
                chosen = ours if threading.get_ident() == here else theirs
                return chosen(*args, **kwargs)

            return call

        with ExitStack() as stack:
            for module in modules:
                for name, ours in (("get_rng_state", self._get), ("set_rng_state", self._set)):
                    patched = own(ours, getattr(module, name))
                    stack.enter_context(mock.patch.object(module, name, patched))
            with self._moving():
                yield
        if self._next < len(self._made):
            raise RandomStateTouched(
                "build leaves torch's generator in an earlier state: every call would draw the "
                "same numbers."
            )

    @contextmanager
    def _moving(self) -> Iterator[None]:
        """The generator moves with each draw: one that is set back behind our back is elsewhere.

        It is left there, for `python_random_unchanged` to find. Else it is as before afterwards.
        """
        generator = torch.default_generator
        start = generator.get_state()
        try:
            yield
        except BaseException:
            generator.set_state(start)
            raise
        now = generator.get_state()
        generator.set_state(start)
        for _ in self._made:
            _advance()
        with disable_modes():
            right = torch.equal(now, generator.get_state())
        generator.set_state(start if right else now)

    def _get(self, device: Any = None) -> torch.Tensor:
        with disable_modes():
            state = torch.empty(0, dtype=torch.uint8)
        self._states[id(state)] = (state, self._next)
        return state

    def _set(self, new_state: torch.Tensor, device: Any = None) -> None:
        found = self._states.get(id(new_state))
        if found is None:
            raise RandomStateTouched(
                "build sets a random state that it did not get from torch.get_rng_state().",
                where=self._trail.line,
            )
        self._next = found[1]


def _advance() -> None:
    """A real draw, of which nothing is used."""
    with disable_modes():
        torch.rand((), device="cpu")


def _copy(func: OpOverload, result: Any) -> Any:
    """A draw's result as it is now: `build` may change it. Draws of 0 and 1 are kept as bools."""
    if not isinstance(result, torch.Tensor):
        return result
    if func._schema.name.startswith("aten::bernoulli"):
        return aten._to_copy.default(result, dtype=torch.bool)
    return aten.clone.default(result)


def _repeated(made: _Draw, args: Any) -> Any:
    if made.func._schema.is_mutable:
        return aten.copy_.default(args[0], made.results[0])
    bools = made.func._schema.name.startswith("aten::bernoulli")
    results = tuple(
        aten._to_copy.default(result, dtype=args[0].dtype)
        if bools
        else (aten.clone.default(result) if isinstance(result, torch.Tensor) else result)
        for result in made.results
    )
    return results[0] if made.single else results


def _described(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return (tuple(value.shape), value.stride(), value.dtype, value.device)
    if isinstance(value, (list, tuple)):
        return tuple(_described(item) for item in value)
    if isinstance(value, dict):
        return tuple((key, _described(item)) for key, item in sorted(value.items()))
    return repr(value)


@contextmanager
def python_random_unchanged(line: Callable[[], Any]) -> Iterator[None]:
    """Refuse a block that moves a random generator of Python's, numpy's or torch's own."""
    numpy = sys.modules.get("numpy")

    python, eager = random.getstate(), torch.get_rng_state()
    array = numpy.random.get_state() if numpy is not None else None
    yield
    moved = random.getstate() != python or not torch.equal(torch.get_rng_state(), eager)
    if numpy is not None:
        moved = moved or repr(numpy.random.get_state()) != repr(array)
    if moved:
        random.setstate(python)
        torch.set_rng_state(eager)
        if numpy is not None:
            numpy.random.set_state(array)
        raise RandomStateTouched(
            "build seeds torch, or draws from Python's random or numpy.random: the draw would be "
            "the same at every step.",
            fix="draw outside of build and pass the result in, or use torch.rand.",
        )
