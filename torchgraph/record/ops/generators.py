"""Random generators that a step may advance: their states, and refusals of those it must not."""

from __future__ import annotations

import random
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import BuiltinMethodType, FrameType, MethodType, ModuleType
from typing import Any, Protocol

import torch

from ..._torch import OpOverload, schema_of
from ..._torch.tensors import address_of
from ...errors import NoProgram, RandomStateTouched, SourceLine
from ...guards.aspects import own
from ...ir import effects
from ...objects import is_a
from ..chains.chains import Line, Root
from ..tape.tape import Args, Kwargs
from .threads import OtherThreads


def own_generators(op: OpOverload, args: Args, kwargs: Kwargs) -> list[object]:
    """The generators among an op's arguments, and the states that it draws from."""
    named = zip((argument.name for argument in schema_of(op).arguments), args, strict=False)
    states = [value for name, value in named if name == DROPOUT_STATE and value is not None]
    found = [value for value in (*args, *kwargs.values()) if isinstance(value, torch.Generator)]
    return [*found, *(states if effects.draws(op, args, kwargs) else ())]


def holds_state(argument: Any) -> bool:
    """True for an argument of a schema that is a generator, or a state of one."""
    return argument.name == DROPOUT_STATE or "Generator" in str(argument.type)


def without_default(args: Args, kwargs: Kwargs) -> tuple[Args, Kwargs]:
    """The arguments of an op, with None for a default generator."""
    own: tuple[Any, ...] = (torch.default_generator, *torch.cuda.default_generators)
    defaults = set(map(address_of, own))  # each look has an object of its own

    def known(value: object) -> object:
        is_default = isinstance(value, torch.Generator) and address_of(value) in defaults
        return None if is_default else value

    return tuple(map(known, args)), {name: known(value) for name, value in kwargs.items()}


ELSEWHERE = (
    "a random generator moved while the step ran: other threads that draw, or seed, keep it from "
    "being recorded. Give them a generator of their own, or draw before the call"
)
"""Why a call was not recorded."""


DROPOUT_STATE = "dropout_state"
"""cuDNN's own, of the dropout between the layers of an RNN: a tensor that each draw writes."""


class SupportsRefusal(Protocol):
    """An object that can give the recording up."""

    def give_up(self, why: str, *, passing: bool = False) -> None:
        """Note that no program can hold the step."""

    def refuse(self, error: NoProgram) -> None:
        """Note that no program can hold the step, or raise ``error``."""


class DrawingLine:
    """The first line of the user's that draws from Python's or NumPy's generator."""

    def __init__(self) -> None:
        self.found: SourceLine | None = None
        self._before = _python_state()

    def after(self, frame: FrameType, number: int, line: Line) -> None:
        """Check the generators after a line."""
        if self.found is not None or not _may_draw(frame, line):
            return
        if _python_state() != self._before:
            self.found = SourceLine(frame.f_code.co_filename, number, frame.f_code.co_name)


def _may_draw(frame: FrameType, line: Line) -> bool:
    roots = {chain.name for chain, _ in line.chains if chain.root is Root.GLOBAL}
    return any(_is_of_random(frame.f_globals.get(root)) for root in roots)


def _is_of_random(value: object) -> bool:
    if is_a(value, ModuleType):
        return own(value).get("__name__") in ("random", "numpy", "numpy.random")
    owner = value.__self__ if is_a(value, BuiltinMethodType) or is_a(value, MethodType) else None
    module = str(type(owner).__module__)
    return module.startswith(("random", "numpy.random"))


def _python_state() -> tuple[object, ...]:
    """The states of Python's and NumPy's generators, without arrays: comparable with ``==``."""
    numpy = sys.modules.get("numpy")
    return random.getstate(), _comparable(numpy.random.get_state() if numpy is not None else None)


@contextmanager
def without_python_draws(drawing: DrawingLine, recorder: SupportsRefusal) -> Iterator[None]:
    """Refuse a block that advances Python's or NumPy's generator.

    Where none of its lines did, another thread may have: then the step is only not recorded.
    """
    before, others = _python_state(), OtherThreads()
    yield
    if _python_state() != before:
        if drawing.found is None and others.ran():
            recorder.give_up(ELSEWHERE, passing=True)
            return
        error = RandomStateTouched(
            "The step draws from Python's random or numpy.random: a program would draw the same at "
            "every call.",
            where=drawing.found,
            fix="draw before the call and pass the result in, or use torch.rand.",
        )
        recorder.refuse(error)


def _comparable(state: object) -> object:
    if not isinstance(state, tuple):  # of another bit generator than the usual one
        return repr(state)
    return [part.tobytes() if hasattr(part, "tobytes") else part for part in state]
