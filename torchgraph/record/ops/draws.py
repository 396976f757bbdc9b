"""Random draws: recorded in eager's order, repeated where the step restores a generator state.

`torch.utils.checkpoint` saves the generator states before a region and restores them before
backward recomputes the region, for the same dropout mask. A program has no such state: the draws
after the restore are copies of the earlier ones.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from itertools import product
from types import ModuleType
from typing import Protocol

import torch

from ..._torch import OpOverload, schema_of
from ..._torch.listening import not_listening
from ..._torch.names import patched
from ...errors import RandomStateTouched
from ...ir import effects
from ..tape.tape import Args, Entry, Kwargs, Outs, Ref, Tape
from ..tape.trail import Trail
from .generators import ELSEWHERE, SupportsRefusal
from .threads import OtherThreads

aten = torch.ops.aten


@dataclass(frozen=True)
class _Draw:
    """A recorded draw, with copies of its results where it may be repeated."""

    op: OpOverload
    arguments: object
    """Shapes, dtypes and numbers, which determine the draw."""
    copies: tuple[object, ...]


class DrawWriter(SupportsRefusal, Protocol):
    """The interface of the recorder that draws need."""

    tape: Tape

    def run(self, op: OpOverload, args: Args, kwargs: Kwargs) -> object:
        """Run an op and record it."""

    def unwritten(self, op: OpOverload, args: Args, kwargs: Kwargs) -> object:
        """Run an op unrecorded, with an undo copy of the memory that it writes."""

    def outs(self, out: object) -> Outs:
        """The value numbers of results."""

    def index(self, tensor: torch.Tensor) -> int:
        """The value number of a tensor."""


class Draws:
    """The draws of one step, with a cursor for repeated ones."""

    def __init__(self, trail: Trail, writer: DrawWriter) -> None:
        self._trail = trail
        self._writer = writer
        self._made: list[_Draw] = []
        self._next = 0
        self._handed_out: dict[int, tuple[torch.Tensor, int]] = {}
        """id of a state that the step has read -> (the state, the number of draws before it)."""
        self._state: torch.Tensor | None = None
        """The CPU generator's state after the last draw, to detect other changes."""
        self._others = OtherThreads()
        self._gave_up = False
        self._forked = False
        """True once `build` has used ``torch.random.fork_rng()``."""
        self._seeded = False
        """True once this thread has called ``torch.manual_seed`` or ``torch.seed``."""

    def draw(self, op: OpOverload, args: Args, kwargs: Kwargs) -> object:
        """Run a draw and record it, or a copy of the earlier draw that it repeats.

        Raises:
            RandomStateTouched: another draw follows a state than the first time, or the generator
                was moved behind torch's back.
        """
        self._check_unmoved()
        arguments = _described((args, kwargs))
        again = self._made[self._next] if self._next < len(self._made) else None
        if again is not None and (again.op, again.arguments) != (op, arguments):
            self._refuse(
                f"the step sets the random state back, and then {op} draws other numbers than "
                f"{again.op} did from that state: a static program cannot draw them."
            )
        if self._gave_up:
            return self._writer.unwritten(op, args, kwargs)
        if again is not None:
            out = self._again(again, op, args, kwargs)
        else:
            out = self._writer.run(op, args, kwargs)
            results = out if isinstance(out, (tuple, list)) else (out,)
            copies = tuple(_copy(op, one) for one in results) if self._handed_out else ()
            self._made.append(_Draw(op, arguments, copies))
        self._next += 1
        with not_listening():
            self._state = torch.default_generator.get_state()
        return out

    def _again(self, made: _Draw, op: OpOverload, args: Args, kwargs: Kwargs) -> object:
        if schema_of(op).is_mutable:
            if effects.written(op) != (0,):
                self._writer.give_up(f"{op} is to draw again what it has drawn, in a checkpoint")
            else:
                self._writer.run(aten.copy_.default, (args[0], made.copies[0]), {})
            with not_listening():
                return op(*args, **kwargs)
        with not_listening():
            out = op(*args, **kwargs)
        results = out if isinstance(out, (tuple, list)) else (out,)
        here = self._trail.here()
        for copy, result in zip(made.copies, results, strict=True):
            if not isinstance(result, torch.Tensor) or not isinstance(copy, torch.Tensor):
                continue
            given = Ref(self._writer.index(copy))
            outs = self._writer.outs(result)
            if copy.dtype != result.dtype:
                to: Kwargs = {"dtype": result.dtype}
                entry = Entry(aten._to_copy.default, (given,), to, outs, here)
            else:
                entry = Entry(aten.clone.default, (given,), {}, outs, here)
            self._writer.tape.write(entry)
        return out

    @contextmanager
    def active(self) -> Iterator[None]:
        """Patch the state functions of torch's default generators, in this thread.

        Raises:
            RandomStateTouched: at the end, when the state is not the one after the last draw.
        """
        modules: list[ModuleType] = [torch, torch.random]
        if torch.cuda.is_initialized():
            modules += [torch.cuda, torch.cuda.random]
        here = threading.get_ident()

        def own(
            ours: Callable[..., object], theirs: Callable[..., object]
        ) -> Callable[..., object]:
            def call(*args: object, **kwargs: object) -> object:
                if threading.get_ident() != here:
                    return theirs(*args, **kwargs)
                with not_listening():
                    return ours(theirs, *args, **kwargs)

            return call

        self._state, self._others = torch.default_generator.get_state(), OtherThreads()
        with ExitStack() as stack:
            for module in modules:
                for name, ours in (("get_rng_state", self._get), ("set_rng_state", self._set)):
                    stack.enter_context(patched(module, name, own(ours, getattr(module, name))))
            fork = own(self._fork, torch.random.fork_rng)
            stack.enter_context(patched(torch.random, "fork_rng", fork))
            for module, name in product((torch, torch.random), ("manual_seed", "seed")):
                seeding = own(self._seed, getattr(module, name))
                stack.enter_context(patched(module, name, seeding))
            yield

    @property
    def any(self) -> bool:
        """True once an op has drawn."""
        return bool(self._made)

    def give_up(self) -> None:
        """Stop recording draws."""
        self._gave_up = True

    def finish(self) -> None:
        """End the forward and backward part.

        Raises:
            RandomStateTouched: the generator is not where the last draw has left it.
        """
        if self._gave_up:
            return
        self._check_unmoved(seeded=self._seeded)
        if self._next < len(self._made) and not self._gave_up:
            self._refuse(
                "the step leaves torch's generator in an earlier state: every call would draw the "
                "same numbers."
            )

    def check_after(self, op: OpOverload) -> None:
        """Give the recording up after a user's op that draws without the tag for it."""
        if self._moved() and not self._gave_up:
            self._writer.give_up(
                f"{op} draws random numbers and does not say so: define it with "
                "tags=torch.Tag.nondeterministic_seeded",
                passing=self._others.ran(),
            )

    def _moved(self) -> bool:
        with not_listening():
            now = torch.default_generator.get_state()
            return self._state is not None and not torch.equal(now, self._state)

    def _check_unmoved(self, *, seeded: bool = False) -> None:
        if not self._gave_up and (seeded or self._moved()):
            if self._others.ran() and not self._forked and not self._seeded:
                self._writer.give_up(ELSEWHERE, passing=True)
                return
            self._refuse(
                "the step seeds torch, or sets its generator, or waits for a thread that draws: a "
                "program would draw the same at every step.",
                fix="seed outside of the step, or draw there and pass the result in.",
            )

    def _refuse(self, what: str, fix: str = "") -> None:
        """Refuse the step; a step with ``torch.random.fork_rng()`` goes on in eager."""
        if not self._forked:
            self._writer.refuse(RandomStateTouched(what, where=self._trail.line, fix=fix))
            return
        self._writer.give_up(
            "the step draws, or seeds, in torch.random.fork_rng(), which then sets the generators "
            "back; no program does: draw from a state of torch.get_rng_state(), or before the call"
        )

    def _fork(self, theirs: Callable[..., object], *args: object, **kwargs: object) -> object:
        self._forked = True
        return theirs(*args, **kwargs)

    def _seed(self, theirs: Callable[..., object], *args: object, **kwargs: object) -> object:
        self._seeded = True
        return theirs(*args, **kwargs)

    def _get(
        self, theirs: Callable[..., torch.Tensor], *args: object, **kwargs: object
    ) -> torch.Tensor:
        state = theirs(*args, **kwargs)
        self._handed_out[id(state)] = (state, self._next)
        return state

    def _set(self, theirs: Callable[..., object], new_state: torch.Tensor, *rest: object) -> None:
        found = self._handed_out.get(id(new_state))
        if self._gave_up:
            theirs(new_state, *rest)
            return
        if found is None:
            self._refuse(
                "the step sets a random state that it did not get from torch.get_rng_state()."
            )
        theirs(new_state, *rest)
        if found is None:
            return
        self._next = found[1]
        self._state = torch.default_generator.get_state()


def _copy(op: OpOverload, result: object) -> object:
    """A copy of a draw's result, since build may write it. Draws of 0 and 1 are kept as bools."""
    if not isinstance(result, torch.Tensor):
        return result
    if schema_of(op).name.startswith("aten::bernoulli"):
        return aten._to_copy.default(result, dtype=torch.bool)
    return aten.clone.default(result)


def _described(value: object) -> object:
    if isinstance(value, torch.Tensor):
        return (tuple(value.shape), value.stride(), value.dtype, value.device)
    if isinstance(value, (list, tuple)):
        return tuple(_described(item) for item in value)
    if isinstance(value, dict):
        return tuple((key, _described(item)) for key, item in sorted(value.items()))
    return repr(value)
