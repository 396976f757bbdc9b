"""A run with symbolic numbers, which may have to be undone: what it changes is kept, and done once.

Before a line goes by an iterator the run ends; what is printed is held back until it is through.
What code in C writes elsewhere (files, queues) is not known here, and is done twice.
"""

from __future__ import annotations

import io
import random
import sys
from collections import deque
from collections.abc import Callable
from typing import Any

import torch

from ...guards.aspects import is_generator, state_of
from ...live.snapshot import contents_of, refill
from ..chains.referents import is_iterator
from ..tape import number

HELD = (dict, list, set, deque)
_MANY = 1 << 16
"""Limit of the size of a container that is copied: a larger one stays as the run left it."""


class Ended(BaseException):
    """The run is ended, to be made again with plain numbers; it says why."""


class Attempt:
    """A run with symbolic numbers.

    Args:
        name: of what runs, in words.
        outer: the attempt around it.
    """

    def __init__(self, name: str, outer: Attempt | None = None) -> None:
        self._name, self._outer = name, outer
        self._containers: dict[int, tuple[Any, list[Any]]] = {}
        self._generators: dict[int, tuple[Any, object]] = {}
        self._grad_mode = torch.is_grad_enabled()
        self._printed: list[tuple[Any, str]] = []
        """(file, text) of what is held back."""

    def keep(self, tensor: torch.Tensor) -> None:
        """Keep the memory of ``tensor`` before its first write in an update."""

    def holders(self) -> list[object]:
        """The containers in which it holds what may hold symbolic numbers."""
        return [self._containers, *(self._outer.holders() if self._outer else ())]

    def put_back(self) -> None:
        """Restore the state, with plain numbers."""
        for held, before in self._containers.values():
            refill(held, before)
        for generator, state in self._generators.values():
            _set_state(generator, state)
        torch.set_grad_enabled(self._grad_mode)
        self._printed.clear()

    def keep_object(self, value: object) -> None:
        """Keep what a container or an object holds, before it is changed."""
        held = value if isinstance(value, HELD) else getattr(value, "__dict__", None)
        if isinstance(held, HELD) and id(held) not in self._containers and len(held) <= _MANY:
            self._containers[id(held)] = (held, _plain_contents(held))
        if self._outer is not None:
            self._outer.keep_object(value)

    def meets(self, value: object) -> None:
        """Handle a value from before the run, before a line uses it."""
        if is_generator(value):
            self._keep_generator(value)
        elif is_iterator(value) and not _is_written(value):
            raise Ended(
                f"{self._name} goes by an iterator ({type(value).__name__}), which gives nothing "
                "twice: its numbers stay plain"
            )

    def hold_back(self, prints: Callable[..., object], *values: object, **given: Any) -> None:
        """Hold back what ``print`` writes."""
        text = io.StringIO()
        file = given.pop("file", None) or sys.stdout
        prints(*values, **{**given, "flush": False}, file=text)
        self._printed.append((file, text.getvalue()))

    def flush(self) -> None:
        """Print what was held back, if the attempt around it does not hold it back."""
        if self._outer is not None:
            self._outer._printed += self._printed
        else:
            for file, text in self._printed:
                file.write(text)
        self._printed.clear()

    def _keep_generator(self, value: object) -> None:
        self._generators.setdefault(id(value), (value, state_of(value)))
        if self._outer is not None:
            self._outer._keep_generator(value)


def _plain_contents(held: Any) -> list[Any]:
    """What a container holds, with plain numbers: a copy would keep symbolic ones alive."""
    is_dict = isinstance(held, dict)
    return [(one[0], _plain(one[1])) if is_dict else _plain(one) for one in contents_of(held)]


def _plain(value: object) -> object:
    items = value if isinstance(value, tuple) else (value,)
    moves = any(number.node_of(item) is not None for item in items)
    return number.bare(value) if moves else value


def _is_written(value: object) -> bool:
    return isinstance(value, io.IOBase) and not value.closed and value.writable()


def _set_state(generator: Any, state: Any) -> None:
    if isinstance(generator, random.Random):
        generator.setstate(state)
    elif hasattr(generator, "bit_generator"):
        generator.bit_generator.state = state
    else:
        generator.set_state(state)
