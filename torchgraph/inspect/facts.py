"""The data of a report."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from torch import fx

from ..calls.fallback import EagerCalls
from ..errors import SourceLine
from ..guards import ValueGuard
from ..ir import effects, text
from ..ir.each import calls
from ..ir.names import NameKind, key_of, kind_of, last_of, optimizer_of
from ..ir.ops import base_name
from ..ir.program import Phase, Program, Role, provenance
from ..live.inputs import leaves
from ..options.checking import shown
from ..replay.cuda.graphs import cuda_graphs
from ..replay.replay import Replay
from . import baked
from .baked import Baked

_PLAIN = (bool, int, float, str, type(None))

_SIGNS = {
    "add": "+",
    "sub": "-",
    "mul": "*",
    "truediv": "/",
    "div": "/",
    "floordiv": "//",
    "mod": "%",
    "pow": "**",
    "eq": "==",
    "ne": "!=",
    "lt": "<",
    "le": "<=",
    "gt": ">",
    "ge": ">=",
    "and_": "and",
    "or_": "or",
}
_TRANSPARENT = frozenset({"_local_scalar_dense", "lift_fresh_copy", "detach"})
"""The same number, read from a tensor or put into one."""
_LONGEST = 120
_AFTER_THE_FIRST_RUN = ("compiling with Inductor",)


@dataclass(frozen=True)
class StageTime:
    """A stage of the compilation and how long it took; parts follow the stage that they are in."""

    name: str
    seconds: float


@dataclass(frozen=True)
class CallCounts:
    """Numbers of calls of the Graph, by how they ran."""

    programs: int = 0
    """That programs served; those that were looked at are among them."""
    recorded: int = 0
    """In eager, to be recorded or to confirm a program."""
    eager: tuple[EagerCalls, ...] = ()
    """In eager for another reason, by signature and reason."""
    looked: int = 0
    """Calls by programs that ran in eager to be compared with a program; see `set_look_again`."""
    untold: str = ""
    """Why the last of them told nothing about the program; empty where it did."""


@dataclass(frozen=True)
class Steps:
    """Seconds of the last steps on the host; a GPU may still be computing after them."""

    count: int
    """How many; the first run of a program is not among them."""
    median: float
    fastest: float
    slowest: float

    @classmethod
    def of(cls, seconds: Sequence[float]) -> Steps:
        """The times of some steps, at least one."""
        return cls(len(seconds), statistics.median(seconds), min(seconds), max(seconds))


@dataclass(frozen=True)
class PhaseCount:
    """The op nodes of a phase: as captured, after all passes, and those that write in place."""

    phase: Phase
    captured: int
    after_passes: int
    in_place: int
    """Nodes of the lowered program that write into one of their arguments."""


@dataclass(frozen=True)
class Guard:
    """A value that must stay as it is for the program to serve a call."""

    name: str
    """``model.bn.eps`` or ``optimizer.0.param_groups.0.amsgrad``."""
    value: str


@dataclass(frozen=True)
class Predicate:
    """A value that Python read: a call that finds another one needs another program."""

    expected: str
    """``True``, ``the shape [3, 1]``."""
    line: SourceLine | None
    """The user's line that read it."""
    count: int = 1


@dataclass(frozen=True)
class Branch:
    """A branch that Python took on an optimizer's numbers; the other one needs a new program."""

    condition: str
    """Over names of states; ``*`` stands for any parameter."""
    taken: str
    """The value of the condition at capture."""
    count: int
    """How many parameters it was decided for."""
    line: SourceLine | None = None
    """The user's line, in an optimizer that the user wrote."""


@dataclass(frozen=True)
class CachedProgram:
    """A program in the cache."""

    signature: str
    """The inputs of the calls that it serves."""
    nodes: int
    runs: int
    reported: bool
    """True for the program that the report is about."""
    inductor_since: int | None = None
    """How many of its runs were on aten, before Inductor's code; None when all are."""
    nbytes: int = 0
    """What it holds between calls: its constants, and casts of weights. States are the user's."""
    peak: int | None = None
    """What a run allocates at its most, without what kernels take; None where it is not known."""
    told: str = ""
    """What tells it from others that serve such inputs: ``True at model.py:12 if x.any():``."""


@dataclass(frozen=True)
class Programs:
    """The cache: what it holds, how often it served, and why it did not."""

    held: tuple[CachedProgram, ...]
    size: int
    """How many it may hold."""
    hits: int
    captures: int
    reasons: tuple[str, ...]
    """Why programs were captured although others had the same signature, latest last."""


@dataclass(frozen=True)
class ProgramMemory:
    """Bytes of the inputs and constants of a program, by kind, without temporaries."""

    parameters: int = 0
    buffers: int = 0
    slots: int = 0
    """Optimizer state, that which the first step creates included."""
    constants: int = 0
    inputs: int = 0
    """Arguments of one call, and tensors from outside build."""
    derived: int = 0
    """Casts of parameters that are kept between calls."""

    @property
    def total(self) -> int:
        """The sum over all kinds."""
        state = self.parameters + self.buffers + self.slots + self.derived
        return state + self.constants + self.inputs


def backend(replay: Replay) -> str:
    """The backend that runs the program, and the reason where Inductor has failed."""
    if replay.inductor_since is not None:
        return "inductor"
    if replay.inductor_failed:
        return f"aten (inductor failed: {replay.inductor_failed.splitlines()[0]})"
    return "aten"


def backend_plan(replay: Replay) -> str:
    """When Inductor's code runs and why, and what runs slower than it could until then."""
    plan, lines = replay.backend_plan, replay.captured.compiled
    if replay.inductor_since is not None or not lines:
        return plan
    until = " until then" if replay.runs_on == "aten until then" else ""
    said = (
        f"what torch.compile has compiled (at {lines[0].place}) runs op by op{until}: "
        'config.set_backend("inductor") compiles all of the program, at once'
    )
    return f"{plan}; {said}" if plan else said


def nodes(
    captured: Program, program: Program, lowered: Iterable[Program]
) -> tuple[PhaseCount, ...]:
    """The node counts of each phase."""
    written = [
        provenance(node).phase
        for part in lowered
        for node, _ in calls(part)
        if effects.of(node).mutates
    ]
    return tuple(
        PhaseCount(phase, captured.count(phase), program.count(phase), written.count(phase))
        for phase in Phase
    )


def branches(guard: ValueGuard | None) -> tuple[Branch, ...]:
    """The branches of a value guard, those of the same form once."""
    if guard is None:
        return ()
    found = Counter(
        (_shortened(text), repr(value), line)
        for text, value, line in decisions(guard, map(_general, guard.fqns))
    )
    return tuple(Branch(text, taken, n, line) for (text, taken, line), n in found.items())


def decisions(
    guard: ValueGuard, names: Iterable[str]
) -> Iterator[tuple[str, object, SourceLine | None]]:
    """(expression, value, line) of each branch. ``names``: of the guard's inputs, in order."""
    graph = guard.gm.graph
    known = dict(zip(graph.find_nodes(op="placeholder"), names, strict=True))
    results: Any = graph.output_node().args[0]
    for node, value in zip(results, guard.expected, strict=True):
        yield _formula(node, known), value, provenance(node).line


def _general(fqn: str) -> str:
    """``optimizer.0.state.*.step``: the name with its parameter replaced by a star."""
    of_all = kind_of(fqn) is NameKind.SLOT
    return f"{optimizer_of(fqn)}.state.*.{last_of(fqn)}" if of_all else fqn


def free_to_move(program: Program) -> tuple[str, ...]:
    """The names of the hyper-parameters, each once: ``betas`` for betas.0 and betas.1."""
    fqns = [spec.fqn for spec in program.signature.roles(Role.SCALAR)]
    settings = [key_of(fqn)[0] for fqn in fqns if kind_of(fqn) is NameKind.SETTING]
    counts = any(kind_of(fqn) is NameKind.SLOT for fqn in fqns)
    return (*dict.fromkeys(settings), *(["step counts"] if counts else []))


def _formula(value: object, names: dict[fx.Node, str]) -> str:
    """A node as a Python expression over its inputs."""
    if not isinstance(value, fx.Node):
        return repr(value)
    if value in names:
        return names[value]
    parts = [_formula(arg, names) for arg in value.args]
    name = base_name(value.target)
    if name in _TRANSPARENT:
        return parts[0]
    if name in _SIGNS and len(parts) == 2:
        left, right = (f"({part})" if " " in part else part for part in parts)
        return f"{left} {_SIGNS[name]} {right}"
    return f"{name}({', '.join(parts)})"


def _shortened(text: str) -> str:
    half = _LONGEST // 2
    return text if len(text) <= _LONGEST else f"{text[:half]} ... {text[-half:]}"


def stages(seconds: Mapping[str, float], replay: Replay) -> tuple[StageTime, ...]:
    """The timed stages until the end of the first run, and Inductor's part of them."""
    found = {**seconds}
    later = {name: found.pop(name) for name in _AFTER_THE_FIRST_RUN if name in found}
    graphs = cuda_graphs(replay.executable)
    if replay.runs:
        found["first run, a warm-up" if graphs else "first run"] = replay.first_seconds
    if captures := sum(one.capture_seconds for one in graphs):
        later["capturing a CUDA Graph"] = captures
        later["first replay"] = sum(one.first_replay_seconds for one in graphs)
    return tuple(StageTime(name, taken) for name, taken in {**found, **later}.items())


def predicates(program: Program) -> tuple[Predicate, ...]:
    """The values that the program expects, in its order; equal ones of one line are counted."""
    found: Counter[Predicate] = Counter()
    for node in program.nodes:
        if effects.of(node).expects:
            found[Predicate(text.expected(program.gm, node), provenance(node).line)] += 1
    return tuple(replace(one, count=count) for one, count in found.items())


def steps(replay: Replay) -> Steps | None:
    """Seconds of the last runs; None before the second one."""
    taken = tuple(replay.seconds)
    return Steps.of(taken) if taken else None


def held(replay: Replay, reported: Replay | None, peak: int | None) -> CachedProgram:
    """The cache entry of ``replay``, which allocates ``peak`` bytes when it runs."""
    constants = sum(entry.nbytes for entry in baked.constants(replay.program))
    casts = sum(tensor.nbytes for tensor in replay.derived.tensors)
    return CachedProgram(
        _served(replay),
        replay.program.count(),
        replay.runs,
        replay is reported,
        replay.inductor_since,
        constants + casts,
        peak,
    )


def _served(replay: Replay) -> str:
    """``args[0]: float32[4, 4], args[1] = True, 2 gradients``."""
    call = replay.example
    if call is None:
        return replay.serves
    signature, given = replay.program.signature, dict(leaves(call.args, call.kwargs))
    besides = [spec for spec in signature.roles(Role.INPUT) if spec.fqn not in given]
    words = [signature.describe_inputs(given)]
    words += [f"{name} = {shown(value)}" for name, value in given.items() if type(value) in _PLAIN]
    if besides:
        words.append("1 gradient" if len(besides) == 1 else f"{len(besides)} gradients")
    return ", ".join(words)


def memory(program: Program, values: tuple[Baked, ...]) -> ProgramMemory:
    """The bytes of the program's inputs and constants."""
    sizes = dict.fromkeys(Role, 0)
    for spec in program.signature.inputs:
        if spec.meta is not None and spec.alias_of is None:
            sizes[spec.role] += spec.meta.nbytes
    return ProgramMemory(
        sizes[Role.PARAMETER],
        sizes[Role.BUFFER],
        sizes[Role.SLOT],
        sum(entry.nbytes for entry in values),
        sizes[Role.INPUT] + sizes[Role.FREE],
        sizes[Role.DERIVED],
    )
