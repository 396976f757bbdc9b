"""The node at which a program begins to differ from what eager has done."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch import fx

from ..errors import SourceLine
from ..ir import effects
from ..ir.bits import fingerprint
from ..ir.program import OutputKind, Program, Role, identity
from ..live.inputs import Call
from ..live.random_state import TorchRandomState
from .audit import line_of, op_of
from .bound import Bound
from .confirm import Start


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
    try:
        found = _changed(captured, program, _values(replay, start, call))
    except _Untold:
        found, as_recorded = None, False
    else:
        as_recorded = found is None
    what = "the first node that differs is" if found is not None else "computed by"
    found = found or _computes(program, value)
    if found is None:
        return NodePlace(as_recorded=as_recorded)
    return NodePlace(f"; {what} {found.name} ({op_of(found)})", line_of(found), as_recorded)


def _values(replay: Bound, start: Start, call: Call) -> list[Any]:
    """The inputs of the captured program, which is functional: it writes none of them."""
    given = iter(replay.captured.side_effects.extended(call, start.places).tensors)
    return [
        start.tensors.get(leaf.fqn, next(given))
        if leaf.role is Role.INPUT
        else start.value_of(leaf)
        for leaf in replay.leaves
    ]


class _Untold(Exception):
    """Two programs cannot be compared node by node."""


def _changed(captured: Program, program: Program, values: list[Any]) -> fx.Node | None:
    """The first node of ``program`` with another value than its counterpart in ``captured``.

    Raises:
        _Untold: the two cannot be compared.
    """
    simple = program.signature.micro_batches == 1 and not any(
        effects.of(node).communicates for node in captured.nodes
    )
    same_inputs = len(list(captured.placeholders)) == len(list(program.placeholders))
    if not (simple and same_inputs):
        raise _Untold
    gpus = {value.device for value in values if isinstance(value, torch.Tensor) and value.is_cuda}
    before = TorchRandomState(gpus)
    try:
        expected: dict[str, bytes] = {}
        _Prints(captured, expected).follow(values)
        before.put_back()
        return _Compares(program, expected).follow(values)
    except Exception as error:  # then the value that differs in the end is named
        raise _Untold from error
    finally:
        before.put_back()


class _Prints(fx.Interpreter):
    """Runs a program, and takes the fingerprint of each tensor."""

    def __init__(self, program: Program, prints: dict[str, bytes]) -> None:
        super().__init__(program.gm)
        self._prints = prints

    def follow(self, values: list[Any]) -> None:
        """Run the program on these inputs."""
        with torch.no_grad():
            self.run(*values, enable_io_processing=False)

    def run_node(self, n: fx.Node) -> Any:
        """The value of a node."""
        value = super().run_node(n)
        if n.op == "call_function" and isinstance(value, torch.Tensor):
            self._prints[n.name] = fingerprint(value)
        return value


class _Found(Exception):
    """Ends a run at the first node that differs."""


class _Compares(fx.Interpreter):
    """Runs a program up to the first node whose value differs from its counterpart's."""

    def __init__(self, program: Program, expected: Mapping[str, bytes]) -> None:
        super().__init__(program.gm)
        self._expected = expected
        self._first: fx.Node | None = None

    def follow(self, values: list[Any]) -> fx.Node | None:
        """The first node that differs; None where none does."""
        try:
            with torch.no_grad():
                self.run(*values, enable_io_processing=False)
        except _Found:
            pass
        return self._first

    def run_node(self, n: fx.Node) -> Any:
        """The value of a node. Raises _Found at the first that differs."""
        value = super().run_node(n)
        known = self._expected.get(identity(n)) if n.op == "call_function" else None
        if known is not None and isinstance(value, torch.Tensor) and fingerprint(value) != known:
            self._first = n
            raise _Found
        return value


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
