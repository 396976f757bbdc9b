"""A recorded step with one op for each tensor in place of ops over lists, as ``foreach=True`` has.

Of what a step does to lists, nobody can tell what belongs to one parameter.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import accumulate

import torch

from ..._torch import schema_of
from ...library.foreach import items, single
from ...record.tape.tape import Entry, OptimizerStep, Tape, refs

_EXACT = frozenset({torch.float32, torch.float64})
"""In half precision torch rounds a number where the list is, and not where the one tensor is."""


def with_singles(tape: Tape, step: OptimizerStep) -> tuple[Tape, OptimizerStep]:
    """The step with an op for each tensor; both are unchanged where it has no op over lists."""
    parts = [list(_apart(tape, entry)) for entry in tape.entries[step.start : step.end]]
    more = [0, *accumulate(len(part) - 1 for part in parts)]
    if not any(more):
        return tape, step

    def place(old: int) -> int:
        return old + more[min(max(old - step.start, 0), len(parts))]

    own = [entry for part in parts for entry in part]
    entries = [*tape.entries[: step.start], *own, *tape.entries[step.end :]]
    expectations = [found._replace(place=place(found.place)) for found in tape.expectations]
    steps = [s._replace(start=place(s.start), end=place(s.end)) for s in tape.steps]
    whole = replace(tape, entries=entries, expectations=expectations, steps=steps)
    return whole, step._replace(end=place(step.end))


def _apart(tape: Tape, entry: Entry) -> Iterator[Entry]:
    op = single(entry.target)
    if op is None or not _is_exact(tape, entry):
        yield entry
        return
    for number, (args, kwargs) in enumerate(items(op, entry.args, entry.kwargs)):
        outs = args[0].index if schema_of(op).is_mutable else entry.outs[number]
        yield Entry(op, args, kwargs, outs, entry.provenance)


def _is_exact(tape: Tape, entry: Entry) -> bool:
    layouts = (tape.layouts[ref.index] for ref in refs((entry.args, entry.kwargs)))
    tensors = [layout for layout in layouts if layout is not None]
    return all(one.dtype in _EXACT and one.device.type == "cpu" for one in tensors)
