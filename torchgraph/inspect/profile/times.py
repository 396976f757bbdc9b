"""Times of nodes and modules in a step."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace

from ...ir.program import Phase
from ..formats.drawn import Origin
from .planned import Planned
from .shares import shares
from .timing import Timing


@dataclass(frozen=True)
class NodeTime(Origin):
    """Seconds of a node of the program in one step, over all micro-batches."""

    seconds: float
    estimated: bool
    """True for a node in compiled code: the time of that is split by the work of its nodes."""
    flops: int
    """What its products take in one call, a multiply-add as two."""
    bytes: int
    """That one call reads and writes."""


@dataclass(frozen=True)
class ModuleTime:
    """Seconds of the nodes of one module, without its children."""

    module: str
    """Its path; empty for what no module does."""
    forward: float
    backward: float
    update: float
    """When it goes over parameters by one node, a share of that by their sizes."""

    @property
    def seconds(self) -> float:
        """The sum over all phases."""
        return self.forward + self.backward + self.update


def times(timing: Timing, plan: Planned) -> tuple[tuple[NodeTime, ...], tuple[ModuleTime, ...]]:
    """Nodes in the order in which they first ran; modules, the longest first."""
    found: dict[str, NodeTime] = {}
    by_module: dict[str, dict[Phase, float]] = {}
    for node, taken in timing.by_node().items():
        for one in shares(node, plan):
            of, seconds = one.of, taken * one.part
            phases = by_module.setdefault(of.module, dict.fromkeys(Phase, 0.0))
            phases[of.phase] += seconds
            own = found.get(of.node)
            if own is not None:  # of another micro-batch, or another row
                module = own.module if own.module == of.module else ""
                found[of.node] = replace(own, seconds=own.seconds + seconds, module=module)
                continue
            work = plan.work(of.node)
            found[of.node] = NodeTime(
                **vars(of),
                seconds=seconds,
                estimated=one.estimated,
                flops=work.flops,
                bytes=work.bytes,
            )
    modules = [ModuleTime(module, *phases.values()) for module, phases in by_module.items()]
    modules.sort(key=lambda module: -module.seconds)
    return tuple(found.values()), tuple(modules)


def besides(nodes: Iterable[NodeTime], known: Collection[str]) -> dict[tuple[str, Phase], float]:
    """Times of nodes that lowering made, by module and phase. ``known``: the program's nodes."""
    found: dict[tuple[str, Phase], float] = {}
    for one in nodes:
        if one.node not in known:
            found[one.module, one.phase] = found.get((one.module, one.phase), 0.0) + one.seconds
    return found
