"""Casts of parameters that a program keeps between calls, and when they have to be made anew."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from .._torch.tensors import version_of
from ..ir.program import Program, Role


class Derived:
    """The derived inputs of one program, in the order of its signature.

    A program writes them whenever it writes their parameters. Any other write moves the
    parameter's version counter, and the cast is recomputed before the next run.
    """

    def __init__(self, program: Program, live: Mapping[str, torch.Tensor]) -> None:
        specs = list(program.signature.roles(Role.DERIVED))
        sources = [spec.derived_from for spec in specs if spec.derived_from is not None]
        self._sources = [live[source] for source in sources]
        dtypes = [spec.meta.dtype for spec in specs if spec.meta is not None]
        pairs = zip(self._sources, dtypes, strict=True)
        self.tensors = [torch.empty_like(source, dtype=dtype) for source, dtype in pairs]
        self.forget()

    def forget(self) -> None:
        """Have every cast recomputed before the next run."""
        self._versions = [-1] * len(self.tensors)

    def refresh(self) -> None:
        """Before a run: cast the parameters that were written since the last one."""
        if self._versions == list(map(version_of, self._sources)):
            return
        with torch.no_grad():
            for i, source in enumerate(self._sources):
                if version_of(source) != self._versions[i]:
                    self.tensors[i].copy_(source)

    def written(self) -> None:
        """After a run: what it wrote, it wrote into the casts too."""
        self._versions = list(map(version_of, self._sources))
