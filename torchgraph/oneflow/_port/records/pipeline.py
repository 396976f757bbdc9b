"""Pipeline: the data modules that the ``build`` of one Graph calls, run ahead of each step."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from contextvars import ContextVar
from itertools import count
from threading import Lock
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import torch
from torch import nn

from ...._torch.tensors import version_of
from ..errors import NotPorted, NotPortedName
from .ahead import batches
from .operation import Operation, Stream
from .values import Value


class Ref(NamedTuple):
    """An output of a call of a data module: the call, and which of its outputs."""

    call: int
    output: int


class Link(NamedTuple):
    """A call of a data module in `build`."""

    module: nn.Module
    operation: Operation
    inputs: tuple[Ref | None, ...]


class Pending:
    """Records or images in a ``build``: they go from data module to data module, no further."""

    def __init__(self, ref: Ref) -> None:
        self._ref = ref

    def __getattr__(self, name: str) -> Any:
        raise NotPortedName(
            f"{name!r} of what a reader or a decoder gives is read inside of build, where a batch "
            "is known as a tensor alone.",
            fix="decode to tensors (OFRecordRawDecoder, image.Resize), or read before the call "
            "and pass the batch as an argument.",
        )


class Chain(NamedTuple):
    """What makes the tensors of a step of what was drawn for it."""

    operations: tuple[tuple[Operation, tuple[Ref | None, ...]], ...]

    def run(self, drawn: Sequence[Any]) -> list[torch.Tensor]:
        """All tensors that the operations give, in order."""
        values: dict[Ref, Value] = {}
        for call, ((operation, inputs), one) in enumerate(zip(self.operations, drawn, strict=True)):
            given = [None if ref is None else values[ref] for ref in inputs]
            for output, value in enumerate(operation.run(one, *given)):
                values[Ref(call, output)] = value
        return [value for value in values.values() if isinstance(value, torch.Tensor)]


class Pipeline:
    """What the ``build`` of a Graph reads.

    The first call of a Graph runs its data modules where `build` calls them, and so shows which
    there are. Before each later call all of them have run, and `build` is given their tensors.
    Each Graph reads for itself, from the start: readers shared by Graphs, or called in eager as
    well, do not take batches from each other. So it is in OneFlow.
    """

    def __init__(self) -> None:
        self._links: list[Link] = []
        self._shapes: list[tuple[bool | None, ...]] = []
        """Whether each output of each link is a tensor; None for a None."""
        self._streams: list[Iterator[Any]] = []
        self._batches: Iterator[list[torch.Tensor]] | None = None
        self._ready: list[list[torch.Tensor]] = []
        """Batches that were looked at, and are still to be used."""
        self._build: _Build | None = None
        self._lock = Lock()
        self.refused = ""
        """Why nothing that is not known yet may be read now; empty: it may."""

    def take(self, micro_batches: int = 1) -> list[torch.Tensor] | None:
        """The tensors of the next step, those of several micro-batches one after the other.

        Raises:
            BadRecord: one of the records that the step is to read.
        """
        if not self._links:
            return None
        with self._lock:  # threads may call one Graph
            return self._ready.pop() if self._ready else self._next(micro_batches)

    def _next(self, micro_batches: int) -> list[torch.Tensor]:
        if self._batches is None:
            chain = Chain(tuple((link.operation, link.inputs) for link in self._links))
            self._batches = batches(chain.run, zip(*self._streams, strict=True))
        found = [next(self._batches) for _ in range(micro_batches)]
        if micro_batches == 1:
            return found[0]
        return [torch.cat(parts) for parts in zip(*found, strict=True)]

    def put_back(self, batch: list[torch.Tensor]) -> None:
        """The next step is to use it."""
        self._ready.append(batch)

    @contextmanager
    def refusing(self, why: str) -> Iterator[None]:
        """In the block, steps are taken back: a first call that reads in `build` is refused."""
        before, self.refused = self.refused, why
        try:
            yield
        finally:
            self.refused = before

    @contextmanager
    def building(self, given: Sequence[torch.Tensor] | None) -> Iterator[None]:
        """`build` runs in the block; ``given`` is what `take` gave for it."""
        if self._build is not None:  # a build that calls that of its base class
            yield
            return
        self._build = build = _Build(self, given)
        token = _reading.set(build)
        try:
            yield
            build.end()
        except BaseException:
            if build.adds:  # nothing has happened: the next call is the first one
                self._links, self._shapes, self._streams = [], [], []
            raise
        finally:
            _reading.reset(token)
            self._build = None


class _Build:
    """One run of a `build`: its data modules get what was read for them, or read themselves."""

    def __init__(self, pipeline: Pipeline, given: Sequence[torch.Tensor] | None) -> None:
        self._pipeline = pipeline
        self._given = None if given is None else iter(given)
        self.adds = not pipeline._links
        self._calls = count()
        self._values: dict[Ref, Value] = {}
        self._refs: dict[int, tuple[Ref, int]] = {}
        """By the identity of a tensor, and its version: written to, it is another one."""
        self._kept: list[torch.Tensor] = []
        self._done = 0

    def perform(self, module: nn.Module, operation: Operation, inputs: Sequence[Any]) -> Any:
        if self.adds and self._pipeline.refused:
            raise NotPorted(self._pipeline.refused)
        refs = tuple(map(self._ref, inputs))
        foreign = [
            isinstance(one, torch.Tensor) and ref is None
            for one, ref in zip(inputs, refs, strict=True)
        ]
        if any(foreign):
            return self._outside(operation, inputs, refs)
        if any(one is not None and ref is None for one, ref in zip(inputs, refs, strict=True)):
            raise NotPorted(
                f"{type(module).__name__} is given in build what was read outside of it.",
                fix="call the reader in build as well, or pass tensors as arguments.",
            )
        link, call = Link(module, operation, refs), next(self._calls)
        if self.adds:
            self._pipeline._links.append(link)
            self._pipeline._streams.append(Stream(operation.draws()))
        elif call >= len(self._pipeline._links) or self._pipeline._links[call] != link:
            raise _moved(module)
        self._done = call + 1
        return self._given_for(call) if self._given is not None else self._run(call, link)

    def _outside(self, operation: Operation, inputs: Sequence[Any], refs: Sequence[Any]) -> Any:
        """Tensors that torch has made meanwhile: what is done with them is a part of the step."""
        if any(isinstance(one, Pending) for one in inputs):
            raise NotPorted(
                "A data module is given images of several sizes together with a tensor that "
                "build computes.",
                fix="let CoinFlip or another data module give that tensor, or resize before.",
            )
        return operation.run(None, *inputs)[0]

    def _ref(self, value: Any) -> Ref | None:
        if isinstance(value, Pending):
            return value._ref
        if not isinstance(value, torch.Tensor):
            return None
        ref, version = self._refs.get(id(value), (None, 0))
        return ref if ref is None or version == _version(value) else None

    def _run(self, call: int, link: Link) -> Any:
        """In a thread of its own, so that no step is recorded that decodes images."""
        given = [None if ref is None else self._values[ref] for ref in link.inputs]
        drawn = next(self._pipeline._streams[call])
        with ThreadPoolExecutor(1) as thread:
            outputs = thread.submit(link.operation.run, drawn, *given).result()
        if self.adds:
            self._pipeline._shapes.append(
                tuple(None if one is None else isinstance(one, torch.Tensor) for one in outputs)
            )
        return self._handed([(Ref(call, n), value) for n, value in enumerate(outputs)])

    def _given_for(self, call: int) -> Any:
        assert self._given is not None
        outputs: list[tuple[Ref, Any]] = []
        for number, is_tensor in enumerate(self._pipeline._shapes[call]):
            value = next(self._given) if is_tensor else None if is_tensor is None else ...
            outputs.append((Ref(call, number), value))
        return self._handed(outputs)

    def _handed(self, outputs: Sequence[tuple[Ref, Any]]) -> Any:
        """What `build` gets: tensors, and words for what is none."""
        found: list[Any] = []
        for ref, value in outputs:
            self._values[ref] = value
            if isinstance(value, torch.Tensor):
                self._refs[id(value)] = ref, _version(value)
                self._kept.append(value)
            found.append(
                value if value is None or isinstance(value, torch.Tensor) else Pending(ref)
            )
        return found[0] if len(found) == 1 else tuple(found)

    def end(self) -> None:
        """`build` has returned."""
        if self._done != len(self._pipeline._links):
            raise _moved(self._pipeline._links[self._done].module)


def _version(tensor: torch.Tensor) -> int:
    return 0 if tensor.is_inference() else version_of(tensor)


def _moved(module: nn.Module) -> NotPorted:
    return NotPorted(
        f"build calls other data modules than in its first call, beginning with "
        f"{type(module).__name__}: what a step reads is decided before it.",
        fix="make a Graph for each, as for training and evaluation, or read before the call and "
        "pass the batch as an argument.",
    )


_reading: ContextVar[_Build | None] = ContextVar("_reading", default=None)
_alone: WeakKeyDictionary[nn.Module, Iterator[Any]] = WeakKeyDictionary()
"""What modules draw that are called outside of any Graph."""


def performed(module: nn.Module, operation: Operation, inputs: Sequence[Any]) -> Any:
    """What a data module gives when it is called: at once, or what was read for this step."""
    build = _reading.get()
    if build is not None:
        return build.perform(module, operation, inputs)
    if module not in _alone:
        _alone[module] = Stream(operation.draws())
    outputs = operation.run(next(_alone[module]), *inputs)
    return outputs[0] if len(outputs) == 1 else outputs
