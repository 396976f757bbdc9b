"""Comparison of programs with the captured one: the wrong node, the pass behind it, errors."""

from __future__ import annotations

import operator
from collections import deque
from collections.abc import Sequence
from dataclasses import replace

from torch import fx

from ..ir import bits
from ..ir.each import expanded
from ..ir.program import OutputSpec, Program
from ..lower import Lowered
from ..options.options import Options
from ..passes import Pass
from .accuracy import Accuracy, result_errors
from .bisection import Bisection
from .compare import alike
from .divergence import Culprit, Divergence, divergence
from .nodewise import CapturedValues, Fault, NodewiseComparison, Trace, region_of, traced
from .rank_agreement import SingleRank, collectives_of
from .run import ends_of
from .start import ReplaySandbox


class ProgramComparison:
    """Comparison of the values of other programs with those of the captured program of a step.

    Args:
        program: the captured one, with ops of each parameter.
        exact: values are compared to the bit.
        ranks: who decides how often programs run.
    """

    def __init__(
        self, program: Program, sandbox: ReplaySandbox, ranks: SingleRank, *, exact: bool
    ) -> None:
        self.program = program
        self._sandbox = sandbox
        self._ranks = ranks
        self._exact = exact
        self._reference: CapturedValues | None = None

    def fault_of(
        self, program: Program, outputs: Sequence[OutputSpec] = (), *, in_place: bool = False
    ) -> Divergence | None:
        """The first value of ``program`` that its inputs do not explain; None for none."""
        outputs = outputs or program.signature.outputs
        reference = self._known(float64=not self._exact)
        with self._sandbox.values(program.signature) as values:
            trace = traced(program, outputs, values, in_place=in_place)
            inputs = zip(program.signature.inputs, values, strict=True) if in_place else ()
            ends = ends_of(outputs, trace.results, inputs)
            forced = NodewiseComparison(reference, trace.seen, ends, exact=self._exact)
            faults = forced.faults()
            fault = next(faults, None)
            if not self._ranks.is_single:
                deque(faults, maxlen=0)  # the other ranks go on to the end
        return None if fault is None else _divergence_of(fault, program, trace, exact=self._exact)

    def culprit(self, start: Program, passes: Sequence[Pass], options: Options) -> Culprit | None:
        """The pass over ``start``, and its edit, that brought the fault; None for no pass."""
        return Bisection(start, passes, options.passes, self._is_wrong, self._ranks).culprit()

    def accuracy(self, executable: Lowered, found: Divergence | None) -> Accuracy:
        """Errors of the results of ``executable`` against float64, beside those of eager."""
        reference = self._known(float64=True)
        with self._sandbox.values(executable.signature) as values:
            results = executable.function(values)
            inputs = zip(executable.signature.inputs, values, strict=True)
            graph = ends_of(executable.outputs, results, inputs)
        exact, eager = reference.ends(reference.exact), reference.ends(reference.low)
        errors = result_errors({o: v for o, v in exact.items() if o in graph}, graph, eager)
        return Accuracy(errors, found, tuple(reference.runner.fallbacks.items()))

    def _is_wrong(self, program: Program) -> bool:
        """True when the program gives a wrong value on any rank."""
        program = expanded(program)
        if not self._ranks.is_single and not self._ranks.alike(collectives_of(program)):
            return True  # the ranks would not meet
        if not self._ranks.any(self.fault_of(program) is not None):
            return False
        if not self._exact:
            return True
        reference = self._known(float64=False)
        expected = reference.ends(reference.low)
        with self._sandbox.values(program.signature) as values:
            returned = program.gm(*values)
            ends = dict(zip(program.signature.outputs, returned, strict=True))
            wrong = any(not bits.same(ends.get(out), value) for out, value in expected.items())
        return self._ranks.any(wrong)

    def _known(self, *, float64: bool) -> CapturedValues:
        known = self._reference
        if known is None or (float64 and not known.exact):
            with self._sandbox.values(self.program.signature) as values:
                known = CapturedValues.of(self.program, values, float64=float64)
            self._reference = known
        return known


def _divergence_of(fault: Fault, program: Program, trace: Trace, *, exact: bool) -> Divergence:
    """A fault as a divergence at the node of ``program`` that computes the wrong value."""
    made = _made_argument(fault, trace, exact=exact)
    if made is not None:
        return made
    node, region = fault.seen.node, fault.seen.region
    if fault.ends:
        pairs = zip(program.signature.outputs, program.results, strict=False)
        node = next((value for out, value in pairs if out == fault.ends[0]), None)
    compiled = region_of(node) if isinstance(node, fx.Node) else None
    if compiled is not None:
        node, region = None, compiled.__name__
    if isinstance(node, fx.Node) and node.target is operator.getitem:
        source = node.args[0]
        node = source if isinstance(source, fx.Node) else node
    if fault.ends and isinstance(node, fx.Node) and node in trace.others:
        return divergence(node, fault.expected, fault.seen.value)
    if not isinstance(node, fx.Node) or node.op == "placeholder":
        node = fault.captured
    found = divergence(node, fault.expected, fault.seen.value)
    allowed = 0.0 if exact else fault.allowed
    return replace(found, region=region, error=fault.error, explained=allowed)


def _made_argument(fault: Fault, trace: Trace, *, exact: bool) -> Divergence | None:
    """The divergence of an argument that a pass made and that differs from the expected one."""
    reader = fault.seen.node
    if reader is None or fault.ends:
        return None
    if reader.target is operator.getitem and isinstance(reader.args[0], fx.Node):
        return None
    for argument, expected in zip(reader.args, fault.given, strict=False):
        if isinstance(argument, fx.Node) and argument in trace.others:
            got = trace.others[argument]
            if not alike(got, expected, exact=exact):
                return divergence(argument, expected, got)
    return None
