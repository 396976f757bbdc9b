"""The contract of a pass."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar

from ..ir.program import Program
from ..ir.rewriter import Rewriter
from ..options.options import Insertable


@dataclass(frozen=True)
class Pass(Insertable, ABC):
    """A rewrite of programs. Its fields are its configuration; two equal passes do the same.

    The program is valid before `apply` and valid after it, not in between. A pass edits through
    ``edit`` and nothing else; it makes no edit when its pattern is absent, does the same on every
    rank, and finds nothing more to do when it runs a second time.
    """

    name: ClassVar[str]
    """The name by which users switch it off, anchor another pass to it, and find it in reports."""
    removes: ClassVar[frozenset[str]] = frozenset()
    """Op namespaces whose ordered calls the pass removes. Every other ordered call must stay."""

    rows: ClassVar[bool] = False
    """True for a pass that knows nodes which do the same for several rows, an `each.Each`. For all
    others such nodes are replaced by each row's own ops before the pass runs."""

    retypes: ClassVar[bool] = False
    """True for a pass after which ordered calls may give tensors of another dtype."""

    @abstractmethod
    def exact(self, program: Program) -> bool:
        """True when the results of ``program`` stay bitwise equal."""

    @abstractmethod
    def apply(self, program: Program, edit: Rewriter) -> None:
        """Rewrite ``program`` through ``edit``."""
