"""Results of a check: the node that differs, its source line, and the pass behind it."""

from __future__ import annotations

from dataclasses import dataclass

from torch import fx

from ..errors import SourceLine
from ..ir import bits
from ..ir.program import Phase, provenance
from .repeats import Unrepeated

ABSENT = "nothing"
CAPTURE = "capture"


@dataclass(frozen=True)
class Culprit:
    """The pass that brought a difference, and the number of its edit."""

    name: str
    number: int
    """Its place among the passes, from 1."""
    edit: int | None
    """The first edit of the pass with which it is wrong, from 1; None where no single one is."""
    edits: int
    """How many edits the pass makes."""
    before: int
    """Edits of the passes before it."""
    changed: tuple[str, ...] = ()
    """The nodes that the edit made or changed."""

    def __str__(self) -> str:
        if self.edit is None:
            return (
                f"The pass {self.name!r} (number {self.number}) brought it: "
                f"config.passes.limit(passes={self.number - 1}) is still right."
            )
        nodes = f", which touched {', '.join(self.changed[:4])}" if self.changed else ""
        limit = f"passes={self.number}, edits={self.before + self.edit - 1}"
        return (
            f"Edit {self.edit} of {self.edits} of the pass {self.name!r} brought it{nodes}: "
            f"config.passes.limit({limit}) is still right."
        )


@dataclass(frozen=True)
class Divergence:
    """The first node whose value differs from eager, and where the difference ends up."""

    node: str
    """Its name in the program; empty when a state differs that no node computes."""
    op: str
    phase: Phase
    module: str
    line: SourceLine | None
    """The user's line that the node comes from."""
    made_by: str
    """The pass that made the node; ``capture`` when none did."""
    fed_by: tuple[str, ...]
    """Nodes made by passes that the node reads, and the pass: where to look next."""
    expected: str
    """Eager's value, in words."""
    got: str
    difference: float | None
    """The largest absolute difference; None where there is none to compute."""
    reaches: tuple[str, ...]
    """The outputs and states that differ in the end; outputs first."""
    lowering: bool = False
    """True when the program is right, and what it was lowered to is not."""
    repeatable: bool = True
    """False when eager itself gives other values when it runs twice: then the rest may be noise."""
    unrepeated: Unrepeated | None = None
    """An op that gives other bits when it is called again, where one was found."""
    blame: str = ""
    """The cause: ``capture``, ``pass``, ``lowering`` or ``inductor``; empty: unknown."""
    culprit: Culprit | None = None
    """Where ``blame`` is ``pass``: which one, and which edit."""
    region: str = ""
    """Where ``blame`` is ``inductor``: the compiled region."""
    error: float | None = None
    """How far the node is from what float64 makes of its inputs; None: not computed."""
    explained: float | None = None
    """How far rounding would explain."""
    graph_error: float | None = None
    """How far the results are from float64 at most, relative; None: not computed."""
    eager_error: float | None = None
    """How far eager's results are from float64 at most."""
    rank: int | None = None
    """The rank whose value it is, where the step communicates; all ranks are told."""

    def __str__(self) -> str:
        lines = [self._head()]
        if self.line is not None:
            lines.append(f"  at {self.line}")
        lines += [f"  eager: {self.expected}", f"  graph: {self.got}"]
        if self.error is not None and self.explained is not None:
            lines.append(
                f"  off float64 by {self.error:.3g}; rounding explains {self.explained:.3g}"
            )
        if self.graph_error is not None and self.eager_error is not None:
            lines.append(
                f"  The results are off float64 by {self.graph_error:.3g} of their size, "
                f"eager's by {self.eager_error:.3g}."
            )
        if self.fed_by:
            lines.append(f"  It reads {', '.join(self.fed_by)}.")
        if self.reaches:
            more = len(self.reaches) - 3
            rest = f" and {more} more" if more > 0 else ""
            lines.append(f"  In the end these differ: {', '.join(self.reaches[:3])}{rest}.")
        return "\n".join([*lines, *(f"  {line}" for line in self._blamed())])

    def _head(self) -> str:
        made = "" if self.made_by == CAPTURE else f", made by the pass {self.made_by!r}"
        where = f" in {self.module}" if self.module else ""
        gap = "" if self.difference is None else f" by up to {self.difference:.6g}"
        gap += "" if self.rank is None else f" on rank {self.rank}"
        what = f"{self.node} ({self.op}, {self.phase.value}{where}{made})"
        return f"{what if self.node else self.reaches[0]} differs from eager{gap}"

    def _blamed(self) -> list[str]:
        found = []
        if self.culprit is not None:
            found.append(str(self.culprit))
        if self.blame == CAPTURE:
            found.append("The captured program differs from eager before any pass runs.")
        if self.blame == "inductor":
            region = f", {self.region}" if self.region else ""
            found.append(f"The program is right; what Inductor made of it{region} is not.")
        elif self.lowering:
            found.append("The program is right; the in-place form that runs is not.")
        if self.unrepeated is not None:
            found.append(f"It may be noise: {self.unrepeated}.")
        elif not self.repeatable:
            found.append("Eager differs from itself when it runs twice: this may be noise.")
        return found


def divergence(node: fx.Node | None, expected: object, got: object) -> Divergence:
    """The divergence of a node that has ``got`` where eager has ``expected``."""
    origin = provenance(node) if node is not None else None
    makers = {} if node is None else {n.name: provenance(n).made_by for n in node.all_input_nodes}
    return Divergence(
        node=node.name if node is not None else "",
        op=str(node.target) if node is not None else "",
        phase=origin.phase if origin else Phase.UPDATE,
        module=origin.module if origin else "",
        line=origin.line if origin else None,
        made_by=origin.made_by if origin else CAPTURE,
        fed_by=tuple(f"{n} (made by {m!r})" for n, m in makers.items() if m != CAPTURE),
        expected=ABSENT if expected is ABSENT else bits.summary(expected),
        got=ABSENT if got is ABSENT else bits.summary(got),
        difference=bits.gap(expected, got),
        reaches=(),
    )
