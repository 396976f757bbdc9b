"""Input of a page: programs and names, without references to the user's tensors."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from torch import nn

from ...debug.modules import ModuleEntry, ModuleForest, Places
from ...ir.each import expanded
from ...ir.program import Program
from ...lower.memory.planning import MemoryPlan
from ...options.options import Options
from ...passes import Pass, pipeline
from ...replay.replay import Replay
from ...replay.switch import compiled_passes


@dataclass(frozen=True)
class ModuleRow:
    """A module of the Graph, without the module."""

    path: str
    text: str
    """Class and settings: ``Linear(in_features=3, out_features=1, bias=True)``."""
    parameters: int
    """Elements of its own, those of its children left out."""
    shared_with: str = ""


@dataclass(frozen=True)
class Programs:
    """The stages of one program."""

    captured: Program
    """Before all passes."""
    final: Program
    """After all passes."""
    lowered: tuple[Program, ...]
    """What runs: one, or the parts of a step."""
    plans: tuple[MemoryPlan, ...]
    """One for each part; empty where memory is not planned here."""
    passes: tuple[Pass, ...]
    options: Options
    compiled: bool
    """True where Inductor's code runs."""

    def start(self) -> Program:
        """The program before the first pass."""
        return expanded(self.captured) if self.compiled else self.captured


@dataclass(frozen=True)
class Source:
    """Programs, modules and lines of a Graph that a page shows."""

    modules: tuple[ModuleRow, ...]
    programs: Programs | None = None
    """None where no program can hold the step."""
    places: Places = field(default_factory=Places)
    """The paths of the rows; through shared modules a node has another one."""


def source_of(
    modules: Mapping[str, nn.Module],
    replay: Replay | None = None,
    plans: tuple[MemoryPlan, ...] = (),
) -> Source:
    """The source of a page. ``plans``: memory plans of the parts of the executable."""
    forest = ModuleForest(modules)
    rows = tuple(_row(entry) for root in forest.roots for entry in root.walk())
    if replay is None:
        return Source(rows)
    return Source(rows, _programs(replay, plans), forest.places)


def _row(entry: ModuleEntry) -> ModuleRow:
    return ModuleRow(entry.path, entry.shallow, entry.own, entry.shared_with)


def _programs(replay: Replay, plans: tuple[MemoryPlan, ...]) -> Programs:
    options, lowered = replay.options, replay.executable.programs
    compiled = replay.inductor_since is not None
    captured = replay.captured.program
    return Programs(
        captured,
        replay.program,
        lowered,
        plans if len(plans) == len(lowered) else (),
        compiled_passes(captured, options) if compiled else pipeline(options),
        options,
        compiled,
    )
