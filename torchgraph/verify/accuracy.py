"""Errors of the results of a step against float64, beside those of eager."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from ..ir.program import OutputKind, OutputSpec
from .divergence import Divergence

_SHOWN = 8


@dataclass(frozen=True)
class ResultError:
    """The error of one output or state after the step, relative to its size in float64."""

    name: str
    graph: float
    """The graph's: the norm of the difference by the norm of the float64 value."""
    eager: float
    """Eager's, in its dtype."""


@dataclass(frozen=True)
class Accuracy:
    """The result of ``graph.check(..., precision="float64")``."""

    results: tuple[ResultError, ...]
    """Outputs and states that are floats, in the program's order."""
    divergence: Divergence | None
    """The first node whose error grows beyond what its neighbours explain; None for none."""
    fallbacks: tuple[tuple[str, str], ...] = ()
    """(op, why) of ops that ran in their own dtype, for there is no such kernel for float64."""

    @property
    def graph(self) -> float:
        """The largest error of the graph's results."""
        return max((one.graph for one in self.results), default=0.0)

    @property
    def eager(self) -> float:
        """The largest error of eager's results."""
        return max((one.eager for one in self.results), default=0.0)

    def __str__(self) -> str:
        lines = [
            f"From float64, relative, at most: graph {self.graph:.3g}, eager {self.eager:.3g}."
        ]
        worst = sorted(self.results, key=lambda one: -max(one.graph, one.eager))
        width = max((len(one.name) for one in worst[:_SHOWN]), default=0)
        for one in worst[:_SHOWN]:
            lines.append(f"  {one.name:{width}}  graph {one.graph:.3g}  eager {one.eager:.3g}")
        if len(worst) > _SHOWN:
            lines.append(f"  ... {len(worst) - _SHOWN} more")
        lines += [f"  {op} ran in its own dtype: {why}" for op, why in self.fallbacks]
        if self.divergence is None:
            lines.append("No node is off by more than rounding explains.")
        else:
            lines.append(str(self.divergence))
        return "\n".join(lines)


def result_errors(
    exact: Mapping[OutputSpec, Any],
    graph: Mapping[OutputSpec, Any],
    eager: Mapping[OutputSpec, Any],
) -> tuple[ResultError, ...]:
    """The errors of floating-point outputs and states."""
    return tuple(
        ResultError(_name(out), _relative(graph.get(out), value), _relative(eager.get(out), value))
        for out, value in exact.items()
        if out.kind in (OutputKind.USER, OutputKind.UPDATE)
        and isinstance(value, torch.Tensor)
        and (value.is_floating_point() or value.is_complex())
    )


def _name(out: OutputSpec) -> str:
    return f"output {out.target}".rstrip() if out.kind is OutputKind.USER else str(out.target)


def _relative(value: Any, exact: torch.Tensor) -> float:
    if not isinstance(value, torch.Tensor) or value.shape != exact.shape:
        return float("inf")
    there = value.to(exact.dtype)
    both = there.isfinite() & exact.isfinite()
    apart = float((there - exact).masked_fill(~both, 0).norm())
    size = float(exact.masked_fill(~both, 0).norm())
    if not apart:
        return 0.0
    return apart / size if size else float("inf")
