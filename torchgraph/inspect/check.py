"""``graph.check()``: one step of the Graph against eager, and the first node that differs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from torch import fx

from ..errors import NotSupported
from ..ir import bits
from ..ir.each import expanded
from ..ir.program import Program
from ..live.inputs import Call
from ..live.step import Step
from ..options.options import Options
from ..record.amp import Autocast
from ..replay.cuda.graphs import op_by_op
from ..replay.replay import Replay
from .checking.accuracy import Accuracy as Accuracy
from .checking.against import Against, passes_of, promises_bits
from .checking.divergence import ABSENT, CAPTURE, Divergence as Divergence, divergence
from .checking.eager_values import Follower
from .checking.side import GraphSide
from .eager import Eager, Journal

FLOAT64 = "float64"


def check(
    replay: Replay,
    build: Callable[..., object],
    call: Call,
    scan: Callable[[], Step],
    owners: Sequence[object],
    options: Options,
    *,
    precision: str = "",
) -> Divergence | Accuracy | None:
    """Compare one step of the program in ``replay`` with ``build`` and the optimizers' own steps.

    What decides are outputs and states after the step: while they are equal, a program may compute
    them as it likes. Only when they differ are the nodes compared: to the bit where the program
    promises bits, beside float64 where it does not.

    Args:
        scan: gives the step as it is now.
        owners: objects besides modules and optimizers whose attributes are put back, too.
        precision: ``"float64"`` for an `Accuracy` in any case.
    """
    _refuse(replay, options)
    autocast = Autocast(options.autocast, (leaf.value for leaf in replay.leaves))
    eager = Eager(autocast.eager(build), call, scan, owners, options, replay.leaves)
    looking = _Check(replay, eager, GraphSide(replay, call, scan()), options)
    found = looking.divergence()
    if precision != FLOAT64:
        return found
    return looking.accuracy(found)


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
    """One step of eager's, and of all that became of it on the way to what runs."""

    def __init__(self, replay: Replay, eager: Eager, side: GraphSide, options: Options) -> None:
        self._replay = replay
        self._eager = eager
        self._side = side
        self._options = options
        self._executable = op_by_op(replay.executable, replay.program)
        self._exact = promises_bits(replay)
        self._expected = eager.run()
        self._against = Against(expanded(replay.captured.program), side, exact=self._exact)

    def divergence(self) -> Divergence | None:
        """The first node that is wrong; None where nothing is."""
        executable = self._executable
        signature = executable.signature
        got = self._side.run(executable.function, executable.outputs, signature)
        reaches = _different(self._expected, got)
        if not reaches:
            return None
        repeatable = not _different(self._expected, self._eager.run())
        found = self._capture() or self._passes() or self._lowered()
        if found is None and not self._exact:
            return None
        if found is None:  # only the generated function differs
            found = self._at_the_end(self._replay.program, got, reaches[0])
            found = replace(found, lowering=True, blame="lowering")
        reaches = found.reaches or tuple(map(str, reaches))
        return self._measured(replace(found, reaches=reaches, repeatable=repeatable))

    def accuracy(self, found: Divergence | None) -> Accuracy:
        """How far all results are from float64, beside eager's."""
        return self._against.accuracy(self._executable, found)

    def _measured(self, found: Divergence) -> Divergence:
        accuracy = self._against.accuracy(self._executable, found)
        return replace(found, graph_error=accuracy.graph, eager_error=accuracy.eager)

    def _capture(self) -> Divergence | None:
        """What capture got wrong; on a GPU, where kernels may add in any order, nobody can say."""
        whole = self._against.program
        if self._replay.devices - {"cpu"}:
            return None
        outputs = whole.signature.outputs
        got = self._side.run(lambda values: whole.gm(*values), outputs, whole.signature)
        reaches = _different(self._expected, got)
        if not reaches:
            return None
        journal = Journal()
        self._eager.run(journal)
        follower = Follower(whole, outputs, journal)
        self._side.run(follower.execute, outputs, whole.signature)
        found = follower.divergence(self._eager) or self._at_the_end(whole, got, reaches[0])
        return replace(found, blame=CAPTURE, reaches=tuple(map(str, reaches)))

    def _passes(self) -> Divergence | None:
        program = expanded(self._replay.program)
        found = self._against.fault_of(program)
        if found is None:
            return None
        if self._exact:
            outputs = program.signature.outputs
            signature = program.signature
            got = self._side.run(lambda values: program.gm(*values), outputs, signature)
            reaches = _different(self._expected, got)
            if not reaches:  # it computes something else on the way, and the same in the end
                return None
            found = replace(found, reaches=tuple(map(str, reaches)))
        culprit = self._against.culprit(passes_of(self._replay, self._options), self._options)
        return replace(found, blame="pass" if culprit else "", culprit=culprit)

    def _lowered(self) -> Divergence | None:
        executable = self._executable
        program = executable.program
        found = self._against.fault_of(program, executable.outputs, in_place=True)
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


def _different(expected: Mapping[str, object], got: Mapping[str, object]) -> tuple[str, ...]:
    names = dict.fromkeys((*expected, *got))
    return tuple(
        name
        for name in names
        if name not in expected or name not in got or not bits.same(expected[name], got[name])
    )
