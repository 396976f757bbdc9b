"""Description of an exported step as JSON in its file: how to call it, and its states."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from ...ir.program import OutputKind, TensorMeta
from ..calling import Argument, Result
from ..exported import Exportable, State

FILE = "torchgraph.json"
"""What it is called in a package, and its key in the metadata of other files."""
_FOLDER = "torchgraph"
"""The folder of a package for bytes: torch reads all that is in ``extra`` as text."""
TABLE = f"{_FOLDER}/states.tsv"
"""Where a package has the `table` of its states."""


def described(one: Exportable, name: str, held: Sequence[str]) -> dict[str, Any]:
    """The description of a step that is exported.

    Args:
        name: of the Graph's class.
        held: conditions on numbers under which it is the step that was written.
    """
    metas = {str(spec.fqn): spec.meta for spec in one.program.signature.inputs}
    returns = [(out, value) for out, value in one.program.returns() if out.kind is OutputKind.USER]
    users = [(out, TensorMeta.of(value.meta["val"])) for out, value in returns]
    calling = one.calling
    training = any(state.written for state in one.states)
    return {
        "format": 1,
        "torch": torch.__version__,
        "graph": name,
        "arguments": [
            _argument(leaf.path, metas[leaf.path])
            if isinstance(leaf, Argument) and leaf.path in metas
            else {"constant": leaf}
            for leaf in calling.arguments
        ],
        "results": [
            {"name": users[leaf.number][0].target, **_tensor(users[leaf.number][1])}
            if isinstance(leaf, Result)
            else ({"name": leaf.path} if isinstance(leaf, Argument) else {"constant": leaf})
            for leaf in calling.results
        ],
        "states": [_state(state) for state in one.states],
        "holds_while": list(held),
        "schedulers": "not in the program: write the learning rate into its state before a call"
        if training
        else "",
    }


def as_text(description: Mapping[str, Any]) -> str:
    """The description as indented JSON."""
    return json.dumps(description, indent=1)


def table(states: Sequence[State]) -> str:
    """One line for each state, tab-separated: name, role, dtype, shape, strides, file.

    For readers without a parser of JSON. The files hold the values as they lie in memory, in
    row-major order.
    """
    lines = []
    for number, state in enumerate(states):
        dtype = str(state.value.dtype).removeprefix("torch.")
        shape, strides = (
            ",".join(map(str, each)) for each in (state.value.shape, state.value.stride())
        )
        file = record(number)
        lines.append("\t".join([state.name, state.role.value, dtype, shape, strides, file]))
    return "".join(f"{line}\n" for line in lines)


def record(number: int) -> str:
    """The path of the value of a state in a package."""
    return f"{_FOLDER}/states/{number}.bin"


def bytes_of(state: State) -> bytes:
    """The value of a state in row-major order, little-endian."""
    value = state.value.detach().cpu().contiguous()
    if value.is_complex():
        value = torch.view_as_real(value.resolve_conj())
    return bytes(value.flatten().view(torch.uint8).numpy()) if value.numel() else b""


def _state(state: State) -> dict[str, Any]:
    return {
        "name": state.name,
        "role": state.role.value,
        **_tensor(state.value),
        "written": state.written,
    }


def _argument(path: str, meta: Any) -> dict[str, Any]:
    return {"name": path, **_tensor(meta), "strides": list(meta.stride)}


def _tensor(meta: Any) -> dict[str, Any]:
    return {"dtype": str(meta.dtype).removeprefix("torch."), "shape": list(meta.shape)}
