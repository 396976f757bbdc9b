"""Batches that are made ahead of the steps that take them, in processes or threads."""

from __future__ import annotations

import os
import sys
import warnings
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import islice
from time import perf_counter
from typing import Any, NamedTuple
from weakref import finalize

import torch
from torch.utils.data import DataLoader, Dataset

from ....errors import GraphError, InvalidOption
from .operation import Stream

Tensors = list[torch.Tensor]
_EACH = 2
"""Batches that each worker is ahead."""
_QUICK = 0.01
"""Seconds in which a batch is made sooner than it comes from another process, or nearly so."""
_chosen: int | None = None


def set_workers(count: int | None) -> None:
    """How many processes decode for each Graph that reads records; 0: threads of this process.

    None, which it is at the beginning: the call itself where a batch takes less than 10 ms, else
    half of the cores, from one to four. What is read is the same. Processes are forked, which
    scripts without ``if __name__ == "__main__"`` bear; where there is no fork (macOS, Windows)
    threads do it. Graphs that have begun to read keep theirs.

    Raises:
        InvalidOption: it is no count.
    """
    global _chosen
    if count is not None and (type(count) is not int or count < 0):
        raise InvalidOption(f"set_workers takes a number from 0 on or None, not {count!r}.")
    _chosen = count


class _Failed(NamedTuple):
    """What takes the place of a batch that cannot be made: it is raised in its turn."""

    kind: type[GraphError]
    what: str
    fix: str

    @classmethod
    def by(cls, error: Exception) -> _Failed:
        """In parts, which any process can make an error of."""
        if isinstance(error, GraphError):
            return cls(type(error), error.what, error.way_out)
        what = f"A batch of records cannot be made: {type(error).__name__}: {error}."
        return cls(GraphError, what, "call the reader and the decoders outside of the Graph.")


class _Made(Dataset[Any]):
    """A data set whose keys are what was drawn."""

    def __init__(self, make: Callable[[Any], Tensors]) -> None:
        self._make = make

    def __getitem__(self, drawn: Any) -> Tensors | _Failed:
        if isinstance(drawn, _Failed):
            return drawn
        try:
            return self._make(drawn)
        except Exception as error:  # of a worker: it is raised where the batch would come
            return _Failed.by(error)


class _Draws:
    """The keys: one after the other, in this process; an error is the last one."""

    def __init__(self, draws: Iterator[Any]) -> None:
        self._draws = draws

    def __iter__(self) -> Iterator[Any]:
        try:
            yield from self._draws
        except Exception as error:  # likewise
            yield _Failed.by(error)


def batches(make: Callable[[Any], Tensors], draws: Iterator[Any]) -> Iterator[Tensors]:
    """``make(drawn)`` for each of ``draws``, in their order, some of them ahead.

    Workers end with the iterator. An error comes where its batch would, and again after it.
    """
    made, keys = _Made(make), iter(_Draws(draws))
    found = _by_time(made, keys) if _chosen is None else _by_workers(made, keys)
    return Stream(_InTurn(found))


def _by_workers(made: _Made, keys: Iterator[Any]) -> Iterator[Tensors | _Failed]:
    forks = sys.platform == "linux" and _chosen != 0
    return _in_processes(made, keys) if forks else _in_threads(made, keys)


def _by_time(made: _Made, keys: Iterator[Any]) -> Iterator[Tensors | _Failed]:
    """In the call where that is quick, by workers otherwise."""
    took = []
    for drawn in islice(keys, 2):
        begun = perf_counter()
        found = made[drawn]
        took.append(perf_counter() - begun)
        yield found
    if took and min(took) < _QUICK:
        yield from map(made.__getitem__, keys)
    else:
        yield from _by_workers(made, keys)


class _InTurn(Iterator[Tensors]):
    """What workers make. They end with this, in order also where a collection finds it."""

    def __init__(self, found: Iterator[Tensors | _Failed]) -> None:
        self._held, self._process = [found], os.getpid()
        finalize(self, _end, self._held, self._process)

    def __next__(self) -> Tensors:
        if os.getpid() != self._process:  # it would take batches of the other process
            raise GraphError(
                "This process was forked from one whose Graph reads records, and has no workers.",
                fix="make a Graph in this process.",
            )
        if not self._held:
            raise StopIteration
        found = next(self._held[0])
        if isinstance(found, _Failed):
            self._held.clear()
            raise found.kind(found.what, fix=found.fix)
        return found


def _end(held: list[Any], process: int) -> None:
    if os.getpid() == process:  # a fork has no workers to end, but could tell those to
        held.clear()


def _in_processes(made: _Made, keys: Iterator[Any]) -> Iterator[Tensors | _Failed]:
    count = _chosen or max(1, min(4, (os.cpu_count() or 1) // 2))
    loader: DataLoader[Any] = DataLoader(
        made,
        batch_size=None,
        sampler=keys,
        num_workers=count,
        collate_fn=_as_it_is,
        multiprocessing_context="fork",
        prefetch_factor=_EACH,
        generator=torch.Generator(),  # else it draws from the generator of the step
    )
    with warnings.catch_warnings():
        # Python warns of a fork beside threads; the workers touch nothing that those hold.
        warnings.simplefilter("ignore", DeprecationWarning)
        return iter(loader)


def _as_it_is(batch: Any) -> Any:
    return batch


def _in_threads(made: _Made, keys: Iterator[Any]) -> Iterator[Tensors | _Failed]:
    count = _chosen or 2
    with ThreadPoolExecutor(count, thread_name_prefix="torchgraph-records") as pool:
        ahead: deque[Future[Any]] = deque()
        for drawn in keys:
            ahead.append(pool.submit(made.__getitem__, drawn))
            if len(ahead) > count * _EACH:
                yield ahead.popleft().result()
        while ahead:
            yield ahead.popleft().result()
