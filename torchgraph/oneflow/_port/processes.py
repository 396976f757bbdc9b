"""Processes that a script spawns: ``import oneflow`` gives `torchgraph.oneflow` in them, too."""

from __future__ import annotations

from collections.abc import Callable
from multiprocessing import spawn
from typing import Any


class _First:
    """A call that is made where this is unpickled."""

    def __init__(self, begin: Callable[..., object], arguments: tuple[object, ...]) -> None:
        self._begin, self._arguments = begin, arguments

    def __reduce__(self) -> tuple[Callable[..., object], tuple[object, ...]]:
        return self._begin, self._arguments


def begin_with(begin: Callable[..., object], *arguments: object) -> None:
    """Let each process that is spawned, or comes from a fork server, call a function first.

    It is called before the script is imported there, as `multiprocessing` reads the data of the
    preparation before all else. A process that is forked has what its parent has.
    """
    known = spawn.get_preparation_data

    def prepared(name: str) -> dict[str, Any]:
        return {**known(name), __name__: _First(begin, arguments)}

    spawn.get_preparation_data = prepared
