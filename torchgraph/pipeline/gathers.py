"""What a step gathers of its parameters: before the micro-batches, each rank for its stages."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

from torch import fx

from ..ir.aliasing import refresh_views
from ..ir.program import InputSpec, OutputKind, OutputSpec, Program, Role, TensorMeta
from ..ir.values import mode_of, own_like
from ..lower.split import Parts
from .extract import Extract


@dataclass(frozen=True)
class GatherProgram:
    """What gathers some of the parameters."""

    program: Program
    states: tuple[int, ...]
    """Which inputs of the step it takes."""
    gives: tuple[int, ...]
    """Which further inputs of the stages it gives, by their positions behind the step's own."""


class Gathers:
    """A step whose stages take what is gathered as further inputs, like parameters.

    Args:
        whole: gathers for itself.
    """

    def __init__(self, whole: Program) -> None:
        self._whole = whole
        self._found = Parts(whole).gathered
        self._values: Sequence[fx.Node] = self._found.values
        self._first = len(whole.signature.inputs)
        self.program = self._without() if self._values else whole
        """The step without what gathers."""

    def sources(self, position: int) -> set[int]:
        """The step's own inputs from which an input of the stages is made; itself, for these."""
        if position < self._first:
            return {position}
        makes = self._found.makes([self._values[position - self._first]])
        read = {one for node in makes for one in node.all_input_nodes}
        return {i for i, node in enumerate(self._whole.placeholders) if node in read}

    def program_of(self, positions: Collection[int]) -> GatherProgram | None:
        """What gives those of these inputs that are gathered; None where none is."""
        gives = sorted(one for one in positions if one >= self._first)
        if not gives:
            return None
        wanted = [self._values[one - self._first] for one in gives]
        makes = self._found.makes(wanted)
        part = Extract(self._whole, [node for node in self._whole.nodes if node in makes], {})
        results = [
            (OutputSpec(OutputKind.GRADIENT, node.name), part.copies[node]) for node in wanted
        ]
        return GatherProgram(part.finished(results), tuple(part.states), tuple(gives))

    def _without(self) -> Program:
        found = self._whole.copy()
        graph = found.gm.graph
        own = {node.name: node for node in graph.nodes}
        specs: list[InputSpec] = []
        last = found.placeholders[-1]
        for value in self._values:
            with graph.inserting_after(last):
                last = graph.placeholder(f"gathered_{len(specs)}")
            own_value = own_like(mode_of(self._whole), value.meta["val"])
            last.meta.update(value.meta, val=own_value)
            own[value.name].replace_all_uses_with(last)
            meta = TensorMeta.of(last.meta["val"])
            specs.append(InputSpec(last.name, Role.PARAMETER, f"gathered.{value.name}", meta))
        unread = self._found.unread(self._values)
        for node in reversed(list(self._whole.nodes)):
            if node in unread:
                graph.erase_node(own[node.name])
        found.signature = replace(found.signature, inputs=(*found.signature.inputs, *specs))
        refresh_views(found)
        return found
