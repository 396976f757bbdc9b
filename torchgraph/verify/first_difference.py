"""The node at which a program begins to differ from what eager has done."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import fx

from ..errors import SourceLine
from ..ir.bits import fingerprint
from ..ir.program import OutputKind, Program, identity
from ..live.inputs import Call
from ..lower.agreements import communicates
from ..random_state import TorchRandomState
from .bound import Bound
from .origin import line_of, op_of
from .run import Stop, walk
from .start import Start


class NodePlace(NamedTuple):
    """A description of a node for a message, and the user's line that it comes from."""

    what: str = ""
    where: SourceLine | None = None
    as_recorded: bool = False
    """True where the passes changed no value: it is not what eager computes any more."""


def place_of(replay: Bound, start: Start, call: Call, value: str) -> NodePlace:
    """The first node whose value the passes changed; else the node that computes ``value``.

    ``value``: an output or a state of the program of ``replay`` that differs from eager's.
    """
    captured, program = replay.captured.program, replay.aten_program
    extended = replay.captured.side_effects.extended(call, start.places)
    told, found = _compared(captured, program, start.inputs(replay, extended))
    as_recorded = told and found is None
    what = "the first node that differs is" if found is not None else "computed by"
    found = found or _computes(program, value)
    if found is None:
        return NodePlace(as_recorded=as_recorded)
    return NodePlace(f"; {what} {found.name} ({op_of(found)})", line_of(found), as_recorded)


def _compared(
    captured: Program, program: Program, values: list[Any]
) -> tuple[bool, fx.Node | None]:
    """Whether two programs can be compared by node, and the first of ``program`` that differs."""
    simple = program.signature.micro_batches == 1 and not communicates(captured)
    if not simple or len(captured.placeholders) != len(program.placeholders):
        return False, None
    gpus = {value.device for value in values if isinstance(value, torch.Tensor) and value.is_cuda}
    before = TorchRandomState(gpus)
    expected: dict[str, bytes] = {}
    changed: list[fx.Node] = []

    def note(node: fx.Node, value: Any) -> Any:
        if node.op == "call_function" and isinstance(value, torch.Tensor):
            expected[node.name] = fingerprint(value)
        return value

    def compare(node: fx.Node, value: Any) -> Any:
        known = expected.get(identity(node)) if node.op == "call_function" else None
        if known is not None and isinstance(value, torch.Tensor) and fingerprint(value) != known:
            changed.append(node)
            raise Stop
        return value

    try:
        with before.kept(), torch.no_grad():
            walk(captured, values, note)
            before.put_back()
            walk(program, values, compare)
    except Exception:  # then the value that differs in the end is named
        return False, None
    return True, next(iter(changed), None)


def _computes(program: Program, value: str) -> fx.Node | None:
    """The node that gives ``value``, called as in `confirm.unlike`."""
    users = 0
    for out, node in program.returns():
        name = out.target
        if out.kind is OutputKind.USER:
            name, users = f"output {users}", users + 1
        if name == value and isinstance(node, fx.Node):
            return node
    return None
