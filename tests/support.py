"""Small programs for tests, bitwise comparison, and golden text."""

from __future__ import annotations

import copy
import ctypes
import inspect
import os
from collections.abc import Callable, Collection, Iterable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import fx

from torchgraph import _torch
from torchgraph.counters import counters
from torchgraph.errors import SourceLine
from torchgraph.ir import text
from torchgraph.ir.program import (
    InputSpec,
    OutputKind,
    OutputSpec,
    Phase,
    Program,
    Provenance,
    Role,
    Signature,
    TensorMeta,
)
from torchgraph.ir.rewriter import Rewriter
from torchgraph.options.options import PassOptions
from torchgraph.passes import Pass, run
from torchgraph.replay.replay import Replay

GOLDEN = Path(__file__).parent / "golden"
STRICT = PassOptions(verify="strict")


def build(
    step: Callable[..., Sequence[Any]],
    *examples: torch.Tensor | float,
    updates: Sequence[str] = (),
) -> Program:
    """The program of ``step``, traced on fake copies of ``examples``.

    A number becomes a symbolic scalar. The last results update the inputs named in ``updates``; the
    others go to the user. Every node is said to be on a line of its own of ``model.py``.
    """
    mode = _torch.fake_mode()
    fakes = [_fake(mode, index, example) for index, example in enumerate(examples)]
    with mode:
        gm = _torch.make_fx(step)(*fakes)
    names = list(inspect.signature(step).parameters)
    inputs: list[InputSpec] = []
    for node in gm.graph.nodes:
        if node.op == "placeholder":
            fqn, example = names[len(inputs)], examples[len(inputs)]
            inputs.append(_input(node.name, fqn, example, fqn in updates))
    results = next(iter(reversed(gm.graph.nodes))).args[0]
    kept = len(results) - len(updates)
    outputs = [OutputSpec(OutputKind.USER, str(index)) for index in range(kept)]
    outputs += [OutputSpec(OutputKind.UPDATE, name) for name in updates]
    calls = [node for node in gm.graph.nodes if node.op == "call_function"]
    for number, node in enumerate(calls, start=1):
        line = SourceLine("model.py", number, "forward")
        node.meta["provenance"] = Provenance("net", Phase.FORWARD, (line,))
    return Program(gm, Signature(tuple(inputs), tuple(outputs)))


def _fake(mode: Any, index: int, example: torch.Tensor | float) -> Any:
    if isinstance(example, torch.Tensor):
        return mode.from_tensor(example, static_shapes=True)
    return _torch.host_symbol(mode, index, example)


def _input(name: str, fqn: str, example: torch.Tensor | float, updated: bool) -> InputSpec:
    if not isinstance(example, torch.Tensor):
        return InputSpec(name, Role.SCALAR, fqn, None)
    role = Role.PARAMETER if updated else Role.INPUT
    return InputSpec(name, role, fqn, TensorMeta.of(example))


def find(program: Program, target: Any, index: int = 0) -> fx.Node:
    """The call of ``target`` at that place among its calls."""
    return [node for node in program.nodes if node.target is target][index]


def targets(program: Program) -> list[str]:
    """The targets of the calls in order, without ``aten.`` and ``.default``."""
    calls = (node for node in program.nodes if node.op == "call_function")
    names = (getattr(node.target, "__name__", str(node.target)) for node in calls)
    return [name.removesuffix(".default") for name in names]


def apply(one: Pass, program: Program) -> tuple[Program, int]:
    """The rewritten program and the number of edits, verified strictly."""
    done = run(program, (one,), STRICT)
    return done, done.history[-1].edits


def before_and_after(program: Program, done: Program) -> str:
    """The text of both programs."""
    return f"--- before\n{text.render(program)}--- after\n{text.render(done)}"


def assert_golden(name: str, got: str) -> None:
    """Compare with ``golden/name.txt``; TORCHGRAPH_ACCEPT=1 writes the file instead."""
    path = GOLDEN / f"{name}.txt"
    if os.environ.get("TORCHGRAPH_ACCEPT") == "1":
        path.write_text(got, encoding="utf-8")
    expected = path.read_text(encoding="utf-8") if path.exists() else ""
    assert got == expected, f"{path.name} differs (TORCHGRAPH_ACCEPT=1 accepts):\n{got}"


def assert_unchanged(one: Pass, program: Program) -> None:
    """The pass makes no edit and leaves the same text."""
    done, edits = apply(one, program)
    assert edits == 0
    assert text.render(done) == text.render(program)


def assert_parity(program: Program, done: Program, *examples: torch.Tensor | float) -> None:
    """Both programs give bitwise equal results, strides included, and leave the same RNG state."""
    torch.manual_seed(0)
    expected, state = program.gm(*examples), torch.get_rng_state()
    torch.manual_seed(0)
    got = done.gm(*examples)
    assert torch.equal(state, torch.get_rng_state())
    assert len(got) == len(expected)
    for index, (left, right) in enumerate(zip(expected, got, strict=True)):
        assert same_bits(left, right), f"result {index}: {left} and {right}"
    shared = _sharing(got, examples) - _sharing(expected, examples)
    assert not shared, f"these share memory now: {shared}"


def _sharing(results: Sequence[Any], examples: Sequence[Any]) -> set[tuple[int, int]]:
    """Pairs of positions among results and examples that share storage."""
    storages = [
        _torch.storage_id(value) if isinstance(value, torch.Tensor) else None
        for value in (*results, *examples)
    ]
    return {
        (left, right)
        for right, storage in enumerate(storages)
        for left in range(right)
        if storage is not None and storages[left] == storage
    }


def same_bits(left: Any, right: Any) -> bool:
    """Equal to the last bit: signs of zero and NaN payloads count, and so do strides."""
    if not isinstance(left, torch.Tensor):
        return type(left) is type(right) and left == right
    same = left.dtype == right.dtype and left.shape == right.shape
    return same and left.stride() == right.stride() and _bytes(left) == _bytes(right)


def _bytes(tensor: torch.Tensor) -> bytes:
    tensor = tensor.resolve_conj().resolve_neg().contiguous()
    return ctypes.string_at(tensor.data_ptr(), tensor.nbytes)


def replays(graph: Any) -> list[Replay]:
    """The programs that a Graph holds, bound; the least recently used first."""
    return list(graph._runner.cache)


def replay_of(graph: Any) -> Replay:
    """The program that was made last, bound, whether it has served a call or not."""
    found: Replay = graph._runner.programs.compiler.latest[0]
    return found


def settle(graph: Any, *args: Any, **kwargs: Any) -> Any:
    """Call ``graph`` until a program serves the call: recorded, confirmed, replayed once.

    Each call gets tensors of its own, as from a loader.
    """
    for _ in range(5):
        with_program = counters.replays
        args, kwargs = copy.deepcopy((args, kwargs))
        returned = graph(*args, **kwargs)
        if counters.replays > with_program:
            return returned
    raise AssertionError("no program came to serve these calls")


def confirm(graph: Any, *args: Any, **kwargs: Any) -> Any:
    """Call ``graph`` until a program for such calls is confirmed; it has not served one yet."""
    held = len(replays(graph))
    for _ in range(5):
        args, kwargs = copy.deepcopy((args, kwargs))
        returned = graph(*args, **kwargs)
        if len(replays(graph)) > held:
            return returned
    raise AssertionError("no program was confirmed for these calls")


class Nothing(Pass):
    """A pass that does nothing."""

    name = "nothing"

    def exact(self, program: Program) -> bool:
        return True

    def apply(self, program: Program, edit: Rewriter) -> None:
        pass


def thinned(cases: Iterable[Any], *, keep: Collection[Any]) -> list[Any]:
    """Parameters of a test that fails for one reason in all cases: all but ``keep`` are slow."""
    cases = list(cases)
    assert all(one in cases for one in keep), "a case to keep is none of the cases"
    return [one if one in keep else pytest.param(one, marks=pytest.mark.slow) for one in cases]


def thinned_rows(rows: Iterable[tuple[Any, ...]], keep: Callable[..., bool]) -> list[Any]:
    """Rows of several parameters, of which those that ``keep`` is false for are slow."""
    return [row if keep(*row) else pytest.param(*row, marks=pytest.mark.slow) for row in rows]


def by_name(value: Any) -> str:
    """An id for a parameter: never an address, which differs from run to run."""
    shown = str(value)
    return getattr(value, "__name__", shown) if " at 0x" in shown else shown
