"""Pauses of a step, at which the host checks flags that the device computed.

A step that pauses is a generator. It yields flags on the device, one for each value that Python has
read, and goes on when none of them is set. So it can be run, or captured as CUDA Graphs, in parts.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from types import CodeType
from typing import Any

import torch
from torch import fx

from .. import library
from ..ir import effects, text
from ..ir.nodes import operands
from ..ir.program import Program
from ..ir.rewriter import Rewriter
from ..library import ValueMoved
from ..library.agree import agree
from .expects import guards

Parts = Callable[[Sequence[object]], Generator[torch.Tensor, None, tuple[object, ...]]]
"""From the values of a signature's inputs to results; yields bool flags of shape [compared]."""


def may_pause(node: fx.Node, device: torch.device) -> bool:
    """True for a predicate whose value ``device`` can compare by itself."""
    if node.target is not library.expect:
        return False
    return bool(node.all_input_nodes[0].meta["val"].device.type == device.type)


def with_pauses(program: Program) -> Program:
    """A copy whose predicates are compared on the device; the host looks where it has to.

    It has to before what relies on them, and before all that nobody can take back.
    """
    program = program.copy()
    edit = Rewriter(program, "pauses")
    waiting = guards(program)
    flags: list[fx.Node] = []
    for node in list(program.nodes):
        found = effects.of(node)
        if node.target is library.expect:
            flags.append(edit.call(library.differs, node.args, before=node, like=node))
            edit.erase(node)
        elif flags and (
            node in waiting
            or found.communicates
            or found.opaque
            or node.op == "output"
            or node.target is agree
        ):
            edit.call(library.expect_none, (flags,), before=node, like=flags[-1])
            flags = []
    return program


def is_pause(node: fx.Node) -> bool:
    """True where a lowered program waits for the host."""
    return node.target is library.expect_none


@dataclass(frozen=True)
class Pauses:
    """The pauses of one lowered program, in order."""

    owner: fx.GraphModule
    """Holds the constants that values are compared with."""
    nodes: tuple[fx.Node, ...]
    parts: Parts
    function: Callable[[Sequence[object]], tuple[object, ...]]
    """All parts, one after the other; raises `ValueMoved` where the step paused."""
    code: CodeType
    """The code that was written: of the function, or of its parts."""

    @classmethod
    def of(cls, program: Program, written: Any) -> Pauses:
        """Read off a lowered program; ``written``: its function, or its generator."""
        nodes = tuple(filter(is_pause, program.nodes))
        code = written.__code__
        if not nodes:
            return cls(program.gm, (), functools.partial(_one_part, written), written, code)
        run = functools.partial(_run, program.gm, nodes, written)
        return cls(program.gm, nodes, written, run, code)

    def moved(self, number: int, flags: torch.Tensor) -> ValueMoved | None:
        """The first value of a pause that is another than Python has read; waits for the device."""
        return _moved(self.owner, self.nodes[number], flags)


def _one_part(
    function: Callable[[Sequence[object]], tuple[object, ...]], inputs: Sequence[object]
) -> Generator[torch.Tensor, None, tuple[object, ...]]:
    yield from ()
    return function(inputs)


def _run(
    owner: fx.GraphModule, nodes: Sequence[fx.Node], parts: Parts, inputs: Sequence[object]
) -> tuple[object, ...]:
    step = parts(inputs)
    try:
        for node in nodes:
            moved = _moved(owner, node, next(step))
            if moved is not None:
                step.throw(moved)  # so that the traceback says where
        next(step)
    except StopIteration as end:
        results: tuple[object, ...] = end.value
        return results
    raise AssertionError("a step pauses as often as its program")


def _moved(owner: fx.GraphModule, pause: fx.Node, flags: torch.Tensor) -> ValueMoved | None:
    hits = flags.tolist()
    if True not in hits:
        return None
    node = operands(pause)[hits.index(True)]
    moved = ValueMoved(text.expected(owner, node), "another value")
    moved.node = node
    return moved
