"""Split one step where the gradients of micro-batches come together, before the update.

Three programs, whatever k is. All take the inputs of the whole step, so that one list of values
serves them; the second and third take the accumulators besides, and the second what the first has
made of weights alone: casts, and what was gathered of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from torch import fx

from .. import library
from .._torch import OpOverload, graph_module, storage_id
from ..errors import NotSupported
from ..ir.program import (
    IN_PLACE,
    InputSpec,
    OutputKind,
    OutputSpec,
    Phase,
    Program,
    Role,
    TensorMeta,
    provenance,
)
from ..ir.values import mode_of, own_like, valued
from .expects import expects_of
from .gathered import Gathered

aten = torch.ops.aten


_Wanted = Callable[[fx.Node], bool]


class Segments(NamedTuple):
    """The parts of a step: the first micro-batch, each of the others, the update."""

    first: Program
    following: Program
    update: Program


def split(program: Program) -> Segments:
    """The segments of a program whose gradients are marked by ``torchgraph::accumulated``.

    Raises:
        NotSupported: the update reads something of the forward or backward besides gradients and
            the new values of states, or the old value of a state that they write.
    """
    parts = Parts(program)
    parts.check()
    return Segments(parts.first(), parts.following(), parts.update())


@dataclass(frozen=True)
class Gradient:
    """An accumulated gradient: its mark in the program and the gradient of a micro-batch."""

    fqn: str
    mark: fx.Node
    value: fx.Node
    owned: bool
    """True when nothing else lives in its memory."""

    @property
    def name(self) -> str:
        """The name of the input that holds the sum."""
        return f"gradient.{self.fqn}"


@dataclass(frozen=True)
class _OfWeights:
    """A weight in another dtype, or gathered: the same for all micro-batches."""

    value: fx.Node

    @property
    def name(self) -> str:
        """The name of the input that holds it."""
        return f"weights.{self.value.name}"


_Given = Gradient | _OfWeights


def terms_of(gradient: fx.Node) -> list[fx.Node]:
    """The terms that each ``backward()`` of a micro-batch adds to ``p.grad``, in eager's order."""
    terms: list[fx.Node] = []
    while _accumulates(gradient):
        gradient, term = gradient.all_input_nodes
        terms.append(term)
    return [gradient, *reversed(terms)]


def _accumulates(node: fx.Node) -> bool:
    """True for autograd's own ``p.grad += ...``, which is no line of the user's."""
    made = provenance(node)
    return (
        node.target is aten.add.Tensor
        and IN_PLACE in node.meta
        and made.phase is Phase.BACKWARD
        and not made.frames
        and not node.kwargs
        and len(node.all_input_nodes) == 2
    )


class Parts:
    """A program's division into the part run per micro-batch and the part run once per step."""

    def __init__(self, program: Program) -> None:
        self._program = program
        calls = [node for node in program.nodes if node.op == "call_function"]
        marks = [node for node in calls if node.target is library.accumulated]
        self.late = {node for node in calls if provenance(node).phase is Phase.UPDATE}
        """The nodes that run once a step, behind the marks."""
        self.late -= set(marks)
        self.marks = set(marks)
        after = self.late | self.marks
        self.late |= {n for n in expects_of(program) if after.intersection(n.all_input_nodes)}
        self._outputs = program.returns()
        self.gradients = list(self._owning(marks))
        self.gathered = Gathered(program, self.late | self.marks, self._written())
        kept = [node for node in calls if self._is_cast_of_weight(node)]
        kept += [] if self.gathered.again else self.gathered.values
        self._of_weights = list(map(_OfWeights, dict.fromkeys(kept)))

    def check(self) -> None:
        """Raise NotSupported where the update needs more of the micro-batches than gradients."""
        written = self._written()
        states = {node: spec.fqn for spec, node in self._program.inputs()}
        held = self.held()
        for node in self.late:
            for used in node.all_input_nodes:
                anew = used.op == "call_function" and used not in self.late | self.marks
                if (anew and used not in held) or states.get(used) in written:
                    what = states.get(used, used.name)
                    raise NotSupported(
                        f"Gradient accumulation: the optimizer's step reads {what}, which each "
                        "micro-batch computes anew.",
                        where=provenance(used).line,
                    )

    def first(self) -> Program:
        """Forward and backward of a micro-batch; its gradients are the accumulators' first."""
        return self._micro_batch(())

    def following(self) -> Program:
        """The later micro-batches: gradients added in place, values of weights taken as inputs."""
        return self._micro_batch((*self.gradients, *self._of_weights))

    def update(self) -> Program:
        """The program that runs once per step."""
        graph, copies, sums = self._with_inputs(self.gradients)
        copies.update((gradient.mark, sums[gradient]) for gradient in self.gradients)
        copies.update((value, copies[state]) for value, state in self.held().items())
        late = self.late
        self._copy(graph, copies, lambda node: node in late)
        outputs = [pair for pair in self._outputs if not self.is_early(*pair)]
        return self._finished(graph, copies, outputs, self.gradients)

    def _micro_batch(self, given: Sequence[_Given]) -> Program:
        graph, copies, sums = self._with_inputs(given)
        made = {one.value: sums[one] for one in given if isinstance(one, _OfWeights)}
        left = self.late | self.marks | self.gathered.unread(made)
        copies.update(made)
        self._copy(graph, copies, lambda node: node not in left and node not in made)
        outputs = [pair for pair in self._outputs if self.is_early(*pair)]
        program = self._finished(graph, copies, outputs, given)
        results = list(program.results)
        specs = list(program.signature.outputs)
        mode = mode_of(self._program)
        output = program.output

        def call(op: OpOverload, *args: fx.Node) -> fx.Node:
            with graph.inserting_before(output):
                new = valued(mode, graph.call_function(op, args))
            new.meta["provenance"] = provenance(gradient.value)
            return new

        for gradient in self.gradients:
            value = copies[gradient.value]
            if gradient in sums:
                total = sums[gradient]
                for term in terms_of(gradient.value):
                    total = call(aten.add.Tensor, total, copies[term])
                dead = gradient.value
                while _accumulates(dead) and not copies[dead].users:
                    graph.erase_node(copies[dead])
                    dead = dead.all_input_nodes[0]
                value = total
            elif not gradient.owned:
                value = call(aten.clone.default, value)
            kind = OutputKind.UPDATE if gradient in sums else OutputKind.GRADIENT
            specs.append(OutputSpec(kind, gradient.name))
            results.append(value)
        for one in () if given else self._of_weights:
            specs.append(OutputSpec(OutputKind.GRADIENT, one.name))
            results.append(copies[one.value])
        output.args = (tuple(results),)
        program.signature = replace(program.signature, outputs=tuple(specs))
        return program

    # --- pieces -----------------------------------------------------------------------------------

    def held(self) -> dict[fx.Node, fx.Node]:
        """New values written by a micro-batch, with the states from which the update reads them."""
        return {
            value: state
            for state, value in self._program.states().items()
            if isinstance(value, fx.Node) and not self._is_late(value)
        }

    def _is_cast_of_weight(self, node: fx.Node) -> bool:
        """True for a cast of a parameter that no micro-batch writes."""
        if node.target is not aten._to_copy.default or node in self.late:
            return False
        source, written = node.args[0], self._written()
        inputs = self._program.inputs()
        weights = {n for s, n in inputs if s.role is Role.PARAMETER and s.fqn not in written}
        shared = {value for _, value in self._outputs}
        return source in weights and node not in shared

    def _written(self) -> set[str]:
        """The states that a micro-batch writes."""
        early = (out for out, value in self._outputs if self.is_early(out, value))
        return {out.target for out in early if out.kind is OutputKind.UPDATE}

    def _is_late(self, value: object) -> bool:
        """True for a value that is known only after the last micro-batch."""
        return isinstance(value, fx.Node) and (value in self.late or value in self.marks)

    def is_early(self, out: OutputSpec, value: object) -> bool:
        """True for an output that a micro-batch gives: what build returned, and written buffers."""
        late = self._is_late(value)
        if out.kind is OutputKind.USER:
            return not late  # a gradient that build returns is known after the last micro-batch
        return out.kind is OutputKind.UPDATE and isinstance(value, fx.Node) and not late

    def _owning(self, marks: list[fx.Node]) -> Iterator[Gradient]:
        """Yield the gradients, marked as owned where nothing else holds their memory."""
        taken = {
            storage_id(node.meta["val"])
            for node in (*self._program.placeholders, *self._early_results())
            if isinstance(node.meta.get("val"), torch.Tensor)
        }
        for mark in marks:
            value = mark.args[0]
            assert isinstance(value, fx.Node)
            fake = value.meta["val"]
            expanded = any(s == 0 and n > 1 for n, s in zip(fake.shape, fake.stride(), strict=True))
            constant = value.op != "call_function"
            owned = not (expanded or constant or storage_id(fake) in taken)
            taken.add(storage_id(fake))
            yield Gradient(str(mark.args[1]), mark, value, owned)

    def _early_results(self) -> Iterator[fx.Node]:
        for out, value in self._outputs:
            if isinstance(value, fx.Node) and self.is_early(out, value):
                yield value

    def _with_inputs(
        self, given: Sequence[_Given]
    ) -> tuple[fx.Graph, dict[fx.Node, fx.Node], dict[_Given, fx.Node]]:
        """A graph with the step's inputs and what else is given."""
        graph = fx.Graph()
        copies: dict[fx.Node, fx.Node] = {}
        sums: dict[_Given, fx.Node] = {}
        for node in self._program.placeholders:
            copies[node] = graph.node_copy(node)
        for one in given:
            node = graph.placeholder(one.name.replace(".", "_"))
            own = own_like(mode_of(self._program), one.value.meta["val"])
            node.meta.update(val=own, provenance=provenance(one.value))
            sums[one] = node
        return graph, copies, sums

    def _copy(self, graph: fx.Graph, copies: dict[fx.Node, fx.Node], wanted: _Wanted) -> None:
        for node in self._program.nodes:
            if node.op == "get_attr" or (node.op == "call_function" and wanted(node)):
                copies[node] = graph.node_copy(node, copies.__getitem__)

    def _finished(
        self,
        graph: fx.Graph,
        copies: dict[fx.Node, fx.Node],
        outputs: Sequence[tuple[OutputSpec, fx.node.Argument]],
        given: Sequence[_Given],
    ) -> Program:
        results = tuple(copies[v] if isinstance(v, fx.Node) else v for _, v in outputs)
        graph.output(results)
        signature = self._program.signature
        added = [node for node in graph.nodes if node.op == "placeholder"][len(signature.inputs) :]
        specs = tuple(
            InputSpec(node.name, Role.ACCUMULATOR, one.name, TensorMeta.of(node.meta["val"]))
            for node, one in zip(added, given, strict=True)
        )
        specs = (*signature.inputs, *specs)
        own = replace(signature, inputs=specs, outputs=tuple(out for out, _ in outputs))
        return Program(graph_module(self._program.gm, graph), own)
