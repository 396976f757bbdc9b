"""The output of `debug()` while a Graph is recorded and compiled."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from torch import nn

from .._torch.listening import not_listening
from ..blocks.block import DebugOptions
from ..debug.operators import name_of
from ..debug.recorded_op import RecordedOp, RecordedValue
from ..debug.stages import Stages
from ..debug.tree import CallLines, TreeSource, io_lines, tensor_names
from ..errors import MemoryBudgetWarning, warn
from ..ir import text
from ..ir.program import Program, Role
from ..live.inputs import Call, described
from ..live.step import Leaf
from ..record.tape.tape import Entry, Ref, Tape
from ..replay.outputs import fake_outputs
from ..replay.replay import Replay


class Building:
    """The lines of a step while it runs: each module's at level 1, each op's from level 2 on.

    Args:
        options: those of the module at a path.
        arguments: names of the tensors among the arguments of the call.
    """

    def __init__(
        self,
        stages: Stages,
        modules: Mapping[str, nn.Module],
        options: Callable[[str], DebugOptions],
        arguments: Sequence[str],
    ) -> None:
        self._stages = stages
        self._lines = CallLines(modules)
        self._options = options
        self._arguments = arguments
        self._tape = Tape()
        self._inputs: Iterable[tuple[Leaf, int]] = ()
        self._names: dict[int, str] = {}

    def begins(self, tape: Tape, inputs: Iterable[tuple[Leaf, int]]) -> None:
        """The step begins."""
        self._tape, self._inputs = tape, inputs
        tape.observer = self._op

    def ends(self) -> None:
        """The step has run, or raised: what it held is let go."""
        self._tape.observer = None
        self._tape, self._inputs = Tape(), ()

    def module(self, path: str, tag: str, values: object) -> None:
        """A module is called, or has run."""
        if self._options(path).level() >= 1:
            with not_listening():  # to print is no part of the step, which it would slow down
                for line in self._lines.of(path, tag, described(values)):
                    self._stages.tell(line)

    def _op(self, entry: Entry) -> None:
        """An op has run, and is written down."""
        options = self._options(entry.provenance.module)
        level = options.level()
        number = len(self._tape.entries) - 1
        name = name_of(entry.provenance.module, entry.target, number)
        with not_listening():
            args, kwargs = self._values(entry.args), self._values(entry.kwargs)
            results = self._results(entry.outs, name)
            if level < 2:
                return
            op = RecordedOp(name, entry.target, args, kwargs, results, entry.provenance)
            self._stages.tell(f"{self._stages.head} add op: {op}")
            for line in op.details(options.depth) if level >= 3 else ():
                self._stages.tell(line)

    def _results(self, outs: Any, name: str) -> list[RecordedValue]:
        found = []
        for number, index in enumerate(_flat(outs)):
            self._names.setdefault(index, f"{name}/out_{number}")  # what is written keeps its name
            found.append(self._value(index))
        return found

    def _values(self, given: Any) -> Any:
        """Arguments, with values in place of their numbers on the tape."""
        if isinstance(given, Ref):
            return self._value(given.index)
        if isinstance(given, dict):
            return {key: self._values(item) for key, item in given.items()}
        if isinstance(given, (list, tuple)):
            return type(given)(map(self._values, given))
        return given

    def _value(self, index: int) -> RecordedValue:
        if index not in self._names:  # inputs by reference come as they are met
            given = iter(self._arguments)
            for leaf, at in self._inputs:
                name = next(given, leaf.fqn) if leaf.role is Role.INPUT else leaf.fqn
                self._names.setdefault(at, f"{name}/out")
        kind = "constant" if index in self._tape.constants else "value"
        name = self._names.get(index, f"{kind} {index}")
        found = self._tape.layouts[index]
        if found is None:
            return RecordedValue(name)
        return RecordedValue(
            name, tuple(found.shape), tuple(found.stride), found.dtype, found.device
        )


def _flat(outs: Any) -> Iterator[int]:
    if isinstance(outs, list):
        for item in outs:
            yield from _flat(item)
    elif outs is not None:
        yield outs


def arguments(stages: Stages, name: str, call: Call) -> list[str]:
    """Level 1: the inputs of a Graph. Returned are the names of the tensors among them."""
    leaves = described((call.args, call.kwargs))
    with stages.part("building graph inputs"):
        for line in io_lines("INPUT", name, leaves):
            stages.say(1, line)
    return tensor_names(name, "input", leaves)


def returned(stages: Stages, name: str, values: object) -> None:
    """Level 1: the outputs of a Graph."""
    with stages.part("building graph outputs"):
        for line in io_lines("OUTPUT", name, described((values,))):
            stages.say(1, line)


def program(stages: Stages, name: str, replay: Replay, tree: Callable[[], str]) -> None:
    """Level 1: the tree. Level 2: the programs. Level 3: the Python that runs."""
    if stages.level >= 1:
        stages.say(1, f"{name} with operators:\n{tree()}")
    if stages.level >= 2:
        stages.say(2, f"{name} as captured:\n{text.render(replay.captured.program)}")
        stages.say(2, f"{name} after all passes:\n{text.render(replay.program)}")
    if stages.level >= 3:
        stages.say(3, f"{name} as it runs:\n{replay.executable.source}")


def budget(program: Program) -> None:
    """Warn where activation checkpointing exceeds its memory budget."""
    for record in program.history:
        if record.name == "activation_checkpointing":
            for refusal in record.refusals:
                warn(f"Activation checkpointing: {refusal.reason}.", MemoryBudgetWarning)


def described_by(replay: Replay, source: TreeSource, inputs: Any) -> TreeSource:
    """``source`` with what a program adds to the debug tree."""
    outputs = described((fake_outputs(replay.program, replay.captured.out_tree),))
    return replace(
        source,
        program=replay.program,
        captured=replay.captured.program,
        calls=replay.captured.calls,
        inputs=inputs,
        outputs=outputs,
        seconds=replay.code.times.by_node or None,
        besides=replay.code.times.besides,
    )
