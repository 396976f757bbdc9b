"""A step cut into stages: a forward, a backward and gradient sums for each."""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import fx

from ..distributed.errors import NotPipelined
from ..ir import effects
from ..ir.aliasing import storages_of
from ..ir.names import module_of
from ..ir.program import OutputKind, OutputSpec, Program, Role, TensorMeta, provenance
from ..lower.split import Parts
from .draws import Draws
from .extract import Extract, Gathers, Given, Result
from .gradients import Share, Shared, shared
from .routes import Routes, readers
from .stages import Place, StagePart, Stages

aten = torch.ops.aten


@dataclass(frozen=True)
class StageProgram:
    """The program of one part of one stage, with the names of its inputs and outputs."""

    first: Program
    """For the first micro-batch: what it gives of gradients become the accumulators."""
    following: Program
    """For the others: it adds to the accumulators in place."""
    states: tuple[int, ...]
    """Which inputs of the step it takes, first."""
    takes: tuple[str, ...]
    """Values of the micro-batch that it takes then; the last to be taken are accumulators."""
    returns: tuple[OutputSpec, ...]
    """What it gives of what `build` returns, first."""
    gives: tuple[str, ...]
    """Values of the micro-batch that it gives then."""
    adds: tuple[str, ...]
    """The accumulators that it adds to."""


class Cut:
    """The programs of a step, by stage and part.

    Args:
        settings: path of a module -> the number of its stage, counted from 0.
        labels: what the user calls each stage.
        split: the backward is cut in two: what other stages wait for, and the rest.

    Raises:
        NotPipelined, StagesOutOfOrder; NotSupported: the update reads more than gradients.
    """

    def __init__(
        self,
        program: Program,
        settings: Mapping[str, int],
        labels: Sequence[str],
        *,
        split: bool = False,
    ) -> None:
        self.whole = program
        """The step as it is."""
        self.gathers = Gathers(program)
        self.program = program = self.gathers.program
        """The same without what gathers parameters, which it takes as further inputs."""
        self.micro_batches = program.signature.micro_batches
        self.parts = Parts(program)
        self.parts.check()
        self.stages = Stages(program, settings, labels, self.parts)
        self._check()
        self.count = self.stages.count
        self.places = dict(self.stages.places)
        self.draws = Draws(self.places, self.stages.early)
        self.gradients = self._gradients()
        self.returned = self._outputs()
        """What a micro-batch returns and writes, by the place where that happens."""
        if split:
            self._split_backward()
        self._shares: dict[Place, list[Share]] = {}
        for one in self.gradients:
            for share in one.shares.values():
                last = self.places.get(share.terms[-1], share.place)
                place = last if last.part else share.place
                self._shares.setdefault(place, []).append(share)
        nodes = {place: self._nodes(place) for place in self.all_places(split=split)}
        self._states = self._early_states()
        read = {place: self._read(place, found) for place, found in nodes.items()}
        made = {**self.places, **self._states}
        others = readers(made, read)
        self._check_order(others, made)
        self.routes = Routes.of(self.count, made, others)
        self.stage_programs = {
            place: self._stage_program(place, found, others) for place, found in nodes.items()
        }

    def all_places(self, *, split: bool) -> list[Place]:
        """All places, in the order in which they run."""
        kinds = list(StagePart) if split else [StagePart.FORWARD, StagePart.BACKWARD]
        found = [Place(part, stage) for part in kinds for stage in range(self.count)]
        return sorted(found, key=lambda place: place.order)

    def saved_by(self, stage: int) -> list[TensorMeta]:
        """The values of a micro-batch that a stage saves from its forward for its backward."""
        kept = self.routes.saved[stage]
        found = {node.name: node for node in (*self.places, *self._states) if node.name in kept}
        return [TensorMeta.of(node.meta["val"]) for node in found.values()]

    def readers_of(self, state: fx.Node) -> set[int]:
        """The stages whose forward or backward reads an input of the step."""
        position = self.program.placeholders.index(state)
        return {
            place.stage
            for place, one in self.stage_programs.items()
            if any(position in self.gathers.sources(number) for number in one.states)
        }

    # --- what is where ----------------------------------------------------------------------------

    def _check(self) -> None:
        """Refuse a step that no pipeline can run, with the user's line."""
        for node in self.stages.early:
            found = effects.of(node)
            what = (
                "communicates"
                if found.communicates
                else "looks at a value in Python"
                if found.expects
                else ""
            )
            if what or (found.opaque and not found.random):
                raise NotPipelined(
                    f"{node.target} {what or 'has effects'}, which a pipeline of stages cannot "
                    "hold yet.",
                    where=provenance(node).line,
                )

    def _gradients(self) -> list[Shared]:
        found = []
        for gradient in self.parts.gradients:
            stage = self.stages.of_module(module_of(self._state(gradient.fqn)))
            one, left = shared(gradient, self.places, stage or 0, self.stages.anywhere)
            found.append(one)
            for node in left:
                del self.places[node]
        return found

    def _state(self, fqn: str) -> str:
        return next((s.fqn for s in self.program.signature.inputs if str(s.fqn) == fqn), fqn)

    def _outputs(self) -> dict[Place, list[Result]]:
        """The results and state updates of a micro-batch, by the place that computes them."""
        found: dict[Place, list[Result]] = {}
        for out, value in self.program.returns():
            if self.parts.is_early(out, value):
                known = self.places.get(value) if isinstance(value, fx.Node) else None
                place = known or Place(StagePart.FORWARD, self._home_of(out, value))
                found.setdefault(place, []).append((out, value))
        return found

    def _home_of(self, out: OutputSpec, value: object) -> int:
        """The stage that returns a result which no stage computes."""
        states = {node: spec.fqn for spec, node in self.program.inputs()}
        fqn = states.get(value, out.target) if isinstance(value, fx.Node) else out.target
        stage = self.stages.of_module(module_of(fqn))
        return self.count - 1 if stage is None else stage

    def _early_states(self) -> dict[fx.Node, Place]:
        """The inputs of the step that a micro-batch writes, by the place that writes them."""
        found: dict[fx.Node, Place] = {}
        inputs = {spec.fqn: (spec, node) for spec, node in self.program.inputs()}
        for place, outs in self.returned.items():
            for out, value in outs:
                if out.kind is OutputKind.UPDATE:
                    spec, node = inputs[out.target]
                    if place.part or spec.meta is None or spec.role is Role.INPUT:
                        raise NotPipelined(
                            f"{out.target} is written in each micro-batch, outside of the forward "
                            "of a stage.",
                            where=provenance(value).line if isinstance(value, fx.Node) else None,
                        )
                    found[node] = place
        return found

    def _split_backward(self) -> None:
        """Move nodes that no other stage and no result reads to the part of weight gradients."""
        awaited: set[fx.Node] = set()
        returned = {value for outs in self.returned.values() for _, value in outs}
        for node in reversed(self.stages.early):
            place = self.places.get(node)
            if place is None or place.part is not StagePart.BACKWARD:
                continue
            users = [self.places.get(user) for user in node.users]
            elsewhere = any(one is not None and one.stage != place.stage for one in users)
            if node in returned or elsewhere or not awaited.isdisjoint(node.users):
                awaited.add(node)
            else:
                self.places[node] = Place(StagePart.WEIGHT, place.stage)
        for node in self.places:
            if node.target is operator.getitem and node.all_input_nodes[0] in self.places:
                self.places[node] = self.places[node.all_input_nodes[0]]

    def _nodes(self, place: Place) -> list[fx.Node]:
        """The nodes that run at a place, with the nodes without a place that they read."""
        wanted = {node for node, one in self.places.items() if one == place}
        terms = [term for share in self._shares.get(place, ()) for term in share.terms]
        asked = [*wanted, *terms, *(value for _, value in self.returned.get(place, ()))]
        pending = [one for one in asked if isinstance(one, fx.Node)]
        while pending:
            node = pending.pop()
            for one in (node, *node.all_input_nodes):
                if one in self.stages.anywhere and one not in wanted:
                    wanted.add(one)
                    pending.append(one)
        return [node for node in self.stages.early if node in wanted]

    def _read(self, place: Place, nodes: Sequence[fx.Node]) -> list[fx.Node]:
        """The values that a place reads, in order."""
        inside = set(nodes)
        found = dict.fromkeys(one for node in nodes for one in node.all_input_nodes)
        found.update((term, None) for share in self._shares.get(place, ()) for term in share.terms)
        return [node for node in found if node not in inside]

    def _check_order(
        self, others: Mapping[fx.Node, Sequence[Place]], made: Mapping[fx.Node, Place]
    ) -> None:
        for node, places in others.items():
            late = next((one for one in places if one.order < made[node].order), None)
            if late is not None:
                raise NotPipelined(
                    f"Stage {late.stage} of the pipeline reads {node.name} before stage "
                    f"{made[node].stage} has computed it.",
                    where=provenance(node).line,
                )

    # --- the programs -----------------------------------------------------------------------------

    def _stage_program(
        self,
        place: Place,
        nodes: Sequence[fx.Node],
        others: Mapping[fx.Node, Sequence[Place]],
    ) -> StageProgram:
        inside, read = set(nodes), self._read(place, nodes)
        elsewhere = {node: one for node, one in self._states.items() if one != place}
        given = {
            node: Given(node.name)
            for node in read
            if node in elsewhere or (node.op == "call_function" and node not in inside)
        }
        gives = [
            node
            for node in others
            if node in inside & self.places.keys() or self._states.get(node) == place
        ]
        shares = self._shares.get(place, [])
        returned = self.returned.get(place, [])
        early = [pair for pair in returned if pair[0].kind is OutputKind.USER]
        early += [pair for pair in returned if pair[0].kind is not OutputKind.USER]
        read_too = [*(value for _, value in early), *gives, *_terms(shares)]
        sums = [(share.terms[0], Given(share.name, Role.ACCUMULATOR)) for share in shares]

        def build(more: Sequence[tuple[fx.Node, Given]]) -> tuple[Program, Extract]:
            part = Extract(self.program, nodes, given, read_too, more)
            results: list[Result] = [
                (out, part.copies[value] if isinstance(value, fx.Node) else value)
                for out, value in early
            ]
            results += [
                (OutputSpec(OutputKind.GRADIENT, node.name), part.copies[node]) for node in gives
            ]
            results += _added(part, shares, results)
            return part.finished(results), part

        first, part = build(())
        following, whole = build(sums) if shares else (first, part)
        return StageProgram(
            first,
            following,
            tuple(part.states),
            tuple(whole.takes[: len(part.takes)]),
            tuple(out for out, _ in early if out.kind is OutputKind.USER),
            tuple(node.name for node in gives),
            tuple(share.name for share in shares),
        )


def _terms(shares: Sequence[Share]) -> list[fx.Node]:
    return [term for share in shares for term in share.terms]


def _added(part: Extract, shares: Sequence[Share], results: Sequence[Result]) -> list[Result]:
    """Gradient outputs: added to the accumulators, or, without any, the gradients themselves."""
    added: list[Result] = []
    taken = {storage for _, value in results for storage in storages_of(value)}
    taken.update(storage for node in part.inputs for storage in storages_of(node))
    for number, share in enumerate(shares):
        terms = [part.copies[term] for term in share.terms]
        origin = provenance(share.terms[0])
        sums = part.more[number : number + 1]
        total, *others = [*sums, *terms]
        for term in others:
            total = part.call(aten.add.Tensor, (total, term), origin)
        if not sums and (is_expanded(total) or not taken.isdisjoint(storages_of(total))):
            total = part.call(aten.clone.default, (total,), origin)
        taken.update(storages_of(total))
        kind = OutputKind.UPDATE if sums else OutputKind.GRADIENT
        added.append((OutputSpec(kind, share.name), total))
    return added


def is_expanded(node: fx.Node) -> bool:
    """True for a tensor with a stride of 0, which shows one element several times."""
    fake = node.meta["val"]
    return any(s == 0 and n > 1 for n, s in zip(fake.shape, fake.stride(), strict=True))
