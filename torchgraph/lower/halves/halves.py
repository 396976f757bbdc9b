"""A program as two: the host's, which computes numbers, and the device's, which takes them.

The host's half runs in Python before the other: it reads learning rates, counts steps, and returns
the numbers that the device needs. These lie in one float64 vector on the device, of which an op
takes an element. So the device's half holds no number that moves and may be replayed; the optimizer
keeps its counters where eager has them. Under a grad scaler the host counts when the device has
said whether the step was skipped.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch

from ...ir.each import expanded
from ...ir.program import OutputKind, OutputSpec, Program, Signature
from ..lowered import Composite
from ..numbers import numbers
from ..pauses import with_pauses
from ..write.executable import Executable
from .halving import Halving


class Numbers(NamedTuple):
    """The results of the host's half."""

    kept: tuple[Any, ...]
    """Its share of the outputs."""
    numbers: list[float]
    """The numbers that the device's half takes."""
    late: tuple[Any, ...]
    """New values of states that are not written yet."""


@dataclass(frozen=True)
class Late:
    """A state that the host writes when the step is over, unless it was skipped."""

    position: int
    """The place of the state among the inputs of the whole."""
    skipped_by: int
    """The place among the device's outputs of the flag that leaves the state as it is."""


@dataclass(frozen=True)
class Halves(Composite):
    """Two executables behind the interface of one."""

    host: Executable
    """Returns its share of the outputs, then the numbers of the device's half."""
    device: Executable
    """Takes the inputs of the whole, then the vector of numbers."""
    signature: Signature
    """The signature of the whole step."""
    program: Program
    """The whole, not halved."""
    on: torch.device
    count: int
    """The number of numbers that the device's half takes."""
    written: tuple[int, ...]
    """The positions of the tensors that the host's half writes."""
    late: tuple[Late, ...] = ()
    """States that the host's half computes without writing them; its last results."""

    @classmethod
    def of(cls, halved: Halved, host: Executable, device: Executable) -> Halves:
        """Pair the two lowered halves of ``halved``."""
        flags = {o.target: i for i, o in enumerate(device.outputs) if o.kind is OutputKind.SKIP}
        positions = {spec.fqn: i for i, spec in enumerate(halved.program.signature.inputs)}
        late = tuple(Late(positions[state], flags[optimizer]) for state, optimizer in halved.late)
        return cls(
            host,
            device,
            halved.program.signature,
            halved.program,
            halved.on,
            halved.numbers,
            _written(halved.host.signature),
            late,
        )

    @property
    def outputs(self) -> tuple[OutputSpec, ...]:
        """The outputs of both functions: the host's, then the device's."""
        kept = tuple(o for o in self.host.outputs if o.kind is not OutputKind.NUMBER)
        return (*kept, *self.device.outputs)

    @property
    def executables(self) -> tuple[Executable, Executable]:
        """The host's half, then the device's."""
        return (self.host, self.device)

    @property
    def copied(self) -> tuple[int, ...]:
        """The input positions that the device's half copies; the host's writes are undone here."""
        return self.device.copied

    def wrote(self, error: BaseException) -> bool:
        """True when the device's half had begun to write what nobody puts back."""
        return self.device.wrote(error)

    def numbers(self, values: Sequence[Any]) -> Numbers:
        """Run the host's half."""
        results = self.host.function(values)
        late = len(results) - len(self.late)
        kept = late - self.count
        return Numbers(results[:kept], list(map(float, results[kept:late])), results[late:])

    def count_steps(self, values: Sequence[Any], found: Numbers, results: Sequence[Any]) -> None:
        """Write what waits for the flags, which are among the ``results`` of the device's half."""
        flags: dict[int, bool] = {}
        for late, new in zip(self.late, found.late, strict=True):
            place = late.skipped_by
            if place not in flags:
                flags[place] = bool(results[place])
            if not flags[place]:
                values[late.position].copy_(new)

    def function(self, values: Sequence[Any]) -> tuple[Any, ...]:
        """Run one step without replaying any part of it."""

        def device_half(found: list[float]) -> tuple[Any, ...]:
            return self.device.function([*values, numbers.vector(found, self.on)])

        return self.run(values, device_half)

    def run(
        self, values: Sequence[Any], device_half: Callable[[list[float]], Sequence[Any]]
    ) -> tuple[Any, ...]:
        """Run the host's half, then ``device_half`` with the numbers it computed."""
        with self.undone(values, unless=self.device.wrote):
            found = self.numbers(values)
            results = device_half(found.numbers)
            self.count_steps(values, found, results)
            return (*found.kept, *results)

    @contextmanager
    def undone(
        self, values: Sequence[Any], unless: Callable[[BaseException], bool]
    ) -> Iterator[None]:
        """Restore the states that the host's half wrote when the block fails.

        Not where ``unless(error)`` says that the device's half had begun to write.
        """
        written = [values[i] for i in self.written]
        before = [tensor.clone() for tensor in written]
        try:
            yield
        except Exception as error:  # whatever it is, the host's counts must not stay
            if not unless(error):
                for tensor, old in zip(written, before, strict=True):
                    tensor.copy_(old)
            raise


class Halved(NamedTuple):
    """A program in two, both functional."""

    program: Program
    """The whole."""
    host: Program
    device: Program
    on: torch.device
    numbers: int
    """The number of numbers that the device's half takes."""
    late: list[tuple[str, str]]
    """(state, optimizer) of what the host writes when the step is over."""


def halve(program: Program, device: torch.device) -> Halved:
    """Halve a program in which `scan` found nothing."""
    program = with_pauses(expanded(program))  # the host computes the numbers of each parameter
    split = Halving(program, device)
    host, rest = split.run()
    return Halved(program, host, rest, device, split.count, split.late)


def _written(signature: Signature) -> tuple[int, ...]:
    updates = signature.written
    specs = enumerate(signature.inputs)
    return tuple(i for i, spec in specs if spec.fqn in updates and spec.meta is not None)
