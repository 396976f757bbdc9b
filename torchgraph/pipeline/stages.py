"""Assignment of each node of a step to a pipeline stage.

Forward nodes are where their module is; backward nodes where the forward line is that they belong
to. What no setting speaks of goes where its values are. What is cheap, and depends on nothing that
a stage computes, is computed in each part that reads it, and never sent.
"""

from __future__ import annotations

import enum
import operator
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from torch import fx

from .._torch import OpOverload, schema_of
from ..costs.flops import flops_of
from ..distributed.errors import StagesOutOfOrder
from ..ir import effects
from ..ir.aliasing import aliases_input
from ..ir.names import module_of
from ..ir.program import OutputKind, Phase, Program, Provenance, Role, provenance
from ..lower.split import Parts

_CASTS = frozenset({"aten::_to_copy"})


class StagePart(enum.IntEnum):
    """The parts of a stage; the last two are one, unless the schedule splits the backward."""

    FORWARD = 0
    BACKWARD = 1
    WEIGHT = 2


class Place(NamedTuple):
    """The stage of a node, and the part of that stage."""

    part: StagePart
    stage: int

    @property
    def order(self) -> tuple[int, int]:
        """A sort key: places of one micro-batch in the order in which they run."""
        return self.part, -self.stage if self.part else self.stage


class Stages:
    """The place of each node that runs once for each micro-batch.

    Args:
        settings: path of a module -> the number of its stage, counted from 0.
        labels: what the user calls each stage.
        parts: which nodes run once a step, and so have no place.

    Raises:
        StagesOutOfOrder: a stage takes in its forward what a later one computes.
    """

    def __init__(
        self,
        program: Program,
        settings: Mapping[str, int],
        labels: Sequence[str],
        parts: Parts,
    ) -> None:
        self.count = len(labels)
        self._settings, self._labels = settings, labels
        self._program = program
        once = parts.late | parts.marks
        calls = [node for node in program.nodes if node.op == "call_function"]
        self.early = [node for node in calls if node not in once]
        """What runs for each micro-batch, in order."""
        updates = [pair for pair in program.returns() if parts.is_early(*pair)]
        self.written = {
            out.target: value for out, value in updates if out.kind is OutputKind.UPDATE
        }
        """fqn of a state that a micro-batch writes -> its new value."""
        self._kept = {value for _, value in updates if isinstance(value, fx.Node)}
        self._backward = self._behind_gradients()
        self.anywhere = self._cheap()
        """What each part computes that reads it."""
        self.places: dict[fx.Node, Place] = {}
        self._place_forward()
        self._place_backward()

    # --- what a setting says ----------------------------------------------------------------------

    def of_module(self, path: str) -> int | None:
        """The stage of the module at ``path``: its own, or that of the nearest ancestor."""
        while path and path not in self._settings:
            path = path.rpartition(".")[0]
        return self._settings.get(path)

    def _of_calls(self, origin: Provenance) -> int | None:
        """The stage of the innermost running module that has one; else that of the path."""
        for path, _ in reversed(origin.calls):
            if path in self._settings:
                return self._settings[path]
        return self.of_module(origin.module)

    # --- kinds of nodes ---------------------------------------------------------------------------

    def _behind_gradients(self) -> set[fx.Node]:
        """The nodes of the backward, and all nodes that read them."""
        found: set[fx.Node] = set()
        for node in self.early:
            backward = provenance(node).phase is Phase.BACKWARD
            if node.target is operator.getitem:
                backward = False  # it is where its list is
            if backward or not found.isdisjoint(node.all_input_nodes):
                found.add(node)
        return found

    def _cheap(self) -> set[fx.Node]:
        written = {node for spec, node in self._program.inputs() if spec.fqn in self.written}
        weights = {node for spec, node in self._program.inputs() if spec.role is Role.PARAMETER}
        found: set[fx.Node] = set()
        for node in self.early:
            if node in self._kept or not effects.of(node).pure or flops_of(node):
                continue
            inputs = node.all_input_nodes
            known = all(one.op != "call_function" or one in found for one in inputs)
            if not known or not written.isdisjoint(inputs):
                continue
            if weights.isdisjoint(inputs):
                found.add(node)
            elif aliases_input(node) or _name(node) in _CASTS:
                found.add(node)
                weights.add(node)
        return found

    # --- placing ----------------------------------------------------------------------------------

    def _placed(self, node: fx.Node, *, backward: bool) -> list[int]:
        """The stages of the nodes that ``node`` reads."""
        places = (self.places.get(one) for one in node.all_input_nodes)
        return [place.stage for place in places if place and bool(place.part) is backward]

    def _place_forward(self) -> None:
        waiting: list[fx.Node] = []
        for node in self.early:
            if node in self._backward or node in self.anywhere:
                continue
            own = None if node.target is operator.getitem else self._of_calls(provenance(node))
            least = max(self._placed(node, backward=False), default=None)
            if own is not None and least is not None and least > own:
                raise StagesOutOfOrder(
                    f"Stage {self._labels[own]} of the pipeline takes what stage "
                    f"{self._labels[least]} computes: stages run in the order of their numbers.",
                    where=provenance(node).line,
                )
            stage = least if own is None else own
            if stage is None:
                waiting.append(node)
            else:
                self.places[node] = Place(StagePart.FORWARD, stage)
        for node in reversed(waiting):
            readers = (self.places.get(user) for user in node.users)
            stages = [one.stage for one in readers if one and not one.part]
            self.places[node] = Place(StagePart.FORWARD, min(stages, default=self._of_states(node)))
        for node in waiting:
            if node.target is operator.getitem and node.all_input_nodes[0] in self.places:
                self.places[node] = self.places[node.all_input_nodes[0]]

    def _of_states(self, node: fx.Node) -> int:
        """The stage of the state whose new value ``node`` is; else the first stage."""
        targets = (fqn for fqn, value in self.written.items() if value is node)
        stages = (self.of_module(module_of(fqn)) for fqn in targets)
        return next((stage for stage in stages if stage is not None), 0)

    def _place_backward(self) -> None:
        lines = self._stages_of_lines()
        for node in self.early:
            if node not in self._backward or node in self.anywhere:
                continue
            forward = self._placed(node, backward=False)
            latest = min(self._placed(node, backward=True), default=self.count - 1)
            origin = provenance(node)
            known = lines.get((origin.module, origin.frames), set())
            stage = self.of_module(origin.module)
            if len(known) == 1:
                (stage,) = known
            elif len(known) > 1 or stage is None:
                stage = max(forward, default=latest)
            if node.target is operator.getitem:
                stage = latest
            self.places[node] = Place(StagePart.BACKWARD, min(stage, latest))

    def _stages_of_lines(self) -> dict[tuple[object, object], set[int]]:
        """(module, lines) -> the stages of the forward nodes recorded there."""
        found: defaultdict[tuple[object, object], set[int]] = defaultdict(set)
        for node, place in self.places.items():
            origin = provenance(node)
            if node.target is not operator.getitem:
                found[origin.module, origin.frames].add(place.stage)
        return found


def _name(node: fx.Node) -> str:
    return schema_of(node.target).name if isinstance(node.target, OpOverload) else ""
