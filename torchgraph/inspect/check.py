"""``graph.check()``: one step of the Graph against eager, and the first node that differs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace

from torch import fx

from ..collection import afresh
from ..errors import NotSupported
from ..ir import bits
from ..ir.each import expanded
from ..ir.program import Program
from ..live.inputs import Call
from ..live.step import Step
from ..options.options import Options
from ..passes import Pass, pipeline
from ..record.amp import Autocast
from ..replay.cuda.graphs import op_by_op
from ..replay.replay import Replay
from ..replay.switch import compiled_passes
from ..verify.accuracy import Accuracy as Accuracy
from ..verify.comparison import ProgramComparison
from ..verify.divergence import ABSENT, CAPTURE, Divergence as Divergence, divergence
from ..verify.eager import Eager, Journal
from ..verify.eager_values import Follower
from ..verify.rank_agreement import SingleRank, collectives_of, deciding
from ..verify.repeats import first_unrepeated
from ..verify.start import ReplaySandbox

FLOAT64 = "float64"


def check(
    replay: Replay,
    build: Callable[..., object],
    call: Call,
    scan: Callable[[], Step],
    owners: Sequence[object],
    options: Options,
    *,
    around: Callable[[Step], AbstractContextManager[None]],
    precision: str = "",
) -> Divergence | Accuracy | None:
    """Compare one step of the program in ``replay`` with ``build`` and the optimizers' own steps.

    What decides are outputs and states after the step: while they are equal, a program may compute
    them as it likes. Only when they differ are the nodes compared: to the bit where the program
    promises bits, beside float64 where it does not.

    Where the step communicates, all ranks call this, and all are given what the one has found whose
    wrong node comes first.

    Args:
        scan: gives the step as it is now.
        owners: objects besides modules and optimizers whose attributes are put back, too.
        around: what a call of a step runs in.
        precision: ``"float64"`` for an `Accuracy` in any case.
    """
    ranks = deciding([replay.captured.program, replay.program])
    _agree(ranks, replay, options, precision)
    autocast = Autocast(options.autocast, (leaf.value for leaf in replay.leaves))
    places = [leaf for leaf, _ in replay.captured.side_effects.read]
    built = autocast.eager(build)
    eager = Eager(built, call, scan, owners, options, replay.leaves, around, places)
    looking = _Check(replay, eager, ReplaySandbox(replay, call, scan()), options, ranks)
    found = looking.divergence()
    if precision != FLOAT64:
        return found
    return looking.accuracy(found)


def _agree(ranks: SingleRank, replay: Replay, options: Options, precision: str) -> None:
    """Raise, on all ranks, the error of any rank, or a difference between their collectives."""
    refused = None
    try:
        _refuse(replay, options)
    except NotSupported as error:
        refused = error
    others = [
        (rank, what) for rank, what in enumerate(ranks.all_gather(refused and refused.what)) if what
    ]
    if refused is not None:
        raise afresh(refused)
    if others:
        raise NotSupported(f"Rank {others[0][0]} refuses the check: {others[0][1]}")
    if ranks.is_single:
        return
    ranks.same("the same check", [f"precision {precision!r}"])
    ranks.same("the captured program", collectives_of(replay.captured.program))
    ranks.same("the program after the passes", collectives_of(replay.program))
    ranks.same(
        "the lowered program", collectives_of(op_by_op(replay.executable, replay.program).program)
    )


def _refuse(replay: Replay, options: Options) -> None:
    if replay.program.signature.micro_batches > 1:
        raise NotSupported(
            "graph.check() compares one backward and one update; with gradient accumulation there "
            "are several.",
            fix="set_gradient_accumulation_steps(1) and check one micro-batch.",
        )
    if options.amp is not None and options.autocast is None:
        raise NotSupported(
            "graph.check() compares with eager, which has no colouring as policy='oneflow'.",
            fix="check with enable_amp(policy='autocast'), or with enable_amp(False).",
        )
    if options.rng == "fast" and any(region.effects.random for region in replay.code.regions):
        raise NotSupported(
            "graph.check() compares values, and with set_rng('fast') compiled code draws others.",
            fix="check with config.set_rng('eager').",
        )


class _Check:
    """One step in eager, compared with each form of its program on the way to what runs."""

    def __init__(
        self,
        replay: Replay,
        eager: Eager,
        sandbox: ReplaySandbox,
        options: Options,
        ranks: SingleRank,
    ) -> None:
        self._replay = replay
        self._eager = eager
        self._sandbox = sandbox
        self._options = options
        self._ranks = ranks
        self._reaches: tuple[str, ...] = ()
        """Outputs and states that differ on this rank in the end."""
        self._executable = op_by_op(replay.executable, replay.program)
        self._exact = _promises_bits(replay)
        self._expected = eager.run()
        whole = expanded(replay.captured.program)
        self._comparison = ProgramComparison(whole, sandbox, ranks, exact=self._exact)

    def divergence(self) -> Divergence | None:
        """The first wrong node; None for none."""
        executable = self._executable
        got = self._sandbox.run(executable.function, executable.outputs, executable.signature)
        reaches = _different(self._expected, got)
        if not self._ranks.any(bool(reaches)):
            return None
        with self._sandbox.values(self._replay.captured.program.signature) as values:
            unrepeated = first_unrepeated(self._replay.captured.program, values)
        repeatable = unrepeated is None and not _different(self._expected, self._eager.run())
        self._reaches = tuple(map(str, reaches))
        program = expanded(self._replay.program)
        stages = (
            (self._capture, self._comparison.program),
            (self._passes, program),
            (self._lowered, executable.program),
        )
        found = next(filter(None, (self._agreed(stage(one), one) for stage, one in stages)), None)
        if found is None and not self._exact:
            return None
        if found is None:  # only the generated function differs
            wrong = None
            if reaches:
                wrong = self._at_the_end(self._replay.program, got, reaches[0])
                wrong = replace(wrong, lowering=True, blame="lowering")
            found = self._agreed(wrong, self._replay.program)
        assert found is not None
        accuracy = self.accuracy(found)
        return replace(
            found,
            repeatable=repeatable,
            unrepeated=unrepeated,
            graph_error=accuracy.graph,
            eager_error=accuracy.eager,
        )

    def accuracy(self, found: Divergence | None) -> Accuracy:
        """Errors of all results against float64, beside those of eager."""
        return self._comparison.accuracy(self._executable, found)

    def _agreed(self, found: Divergence | None, program: Program) -> Divergence | None:
        """The divergence of the rank whose node comes first in the program."""
        order = {node.name: place for place, node in enumerate(program.nodes)}
        place = len(order)
        if found is not None:
            place = order.get(found.node, len(order))
            found = replace(found, reaches=found.reaches or self._reaches)
        first = self._ranks.first(place, found)
        return None if first is None else replace(first[1], rank=first[0])

    def _run(self, program: Program) -> tuple[dict[str, object], tuple[str, ...]]:
        """The results and states of a run of ``program``, and the names of those not eager's."""
        signature = program.signature
        got = self._sandbox.run(lambda values: program.gm(*values), signature.outputs, signature)
        return got, _different(self._expected, got)

    def _capture(self, whole: Program) -> Divergence | None:
        """The divergence that capture brought; not known on a GPU, where sums may reorder."""
        if self._replay.devices - {"cpu"}:
            return None
        got, reaches = self._run(whole)
        if not self._ranks.any(bool(reaches)):
            return None
        journal = Journal()
        self._eager.run(journal)
        follower = Follower(whole, journal)
        self._sandbox.run(follower.execute, whole.signature.outputs, whole.signature)
        found = follower.divergence(self._eager, self._ranks)
        if not reaches:
            return None
        found = found or self._at_the_end(whole, got, reaches[0])
        return replace(found, blame=CAPTURE, reaches=tuple(map(str, reaches)))

    def _passes(self, program: Program) -> Divergence | None:
        found = self._comparison.fault_of(program)
        if self._exact and self._ranks.any(found is not None):
            _, reaches = self._run(program)
            if not reaches:  # it computes something else on the way, and the same in the end
                found = None
            elif found is not None:
                found = replace(found, reaches=tuple(map(str, reaches)))
        if not self._ranks.any(found is not None):
            return None
        culprit = self._comparison.culprit(*_passes_of(self._replay, self._options), self._options)
        if found is None:
            return None
        return replace(found, blame="pass" if culprit else "", culprit=culprit)

    def _lowered(self, program: Program) -> Divergence | None:
        found = self._comparison.fault_of(program, self._executable.outputs, in_place=True)
        if found is None:
            return None
        blame = "inductor" if found.region or self._replay.code.regions else "lowering"
        return replace(found, lowering=True, blame=blame)

    def _at_the_end(self, program: Program, got: Mapping[str, object], name: str) -> Divergence:
        """The node that computes the output or state ``name``, when no other could be named."""
        node = None
        for out, result in zip(program.signature.outputs, program.results, strict=False):
            if name in (out.target, f"output{out.target}") and isinstance(result, fx.Node):
                node = result
        return divergence(node, self._expected.get(name, ABSENT), got.get(name, ABSENT))


def _promises_bits(replay: Replay) -> bool:
    """True where results equal eager's to the bit: on the CPU, op by op, after exact passes."""
    exact = all(record.exact for record in replay.program.history)
    return exact and not replay.code.regions and not replay.devices - {"cpu"}


def _passes_of(replay: Replay, options: Options) -> tuple[Program, tuple[Pass, ...]]:
    """The program that passes began with, and the passes that made the one of ``replay``."""
    captured = replay.captured.program
    if replay.code.regions:
        return expanded(captured), compiled_passes(captured, options)
    return captured, pipeline(options)


def _different(expected: Mapping[str, object], got: Mapping[str, object]) -> tuple[str, ...]:
    names = dict.fromkeys((*expected, *got))
    return tuple(
        name
        for name in names
        if name not in expected or name not in got or not bits.same(expected[name], got[name])
    )
