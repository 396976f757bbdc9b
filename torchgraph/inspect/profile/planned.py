"""Estimated times of the calls of a step, by their work at this machine's rates."""

from __future__ import annotations

import torch

from ...costs.op_calls import Work, op_calls
from ...costs.owners import Owners
from ...ir.program import Program
from ...lower.cost import CPU, CUDA
from .floors import Floor
from .least import product_dtype

_NONE = Work()


class Planned:
    """Estimated costs of one call of each node of a program.

    A call that computes takes its launch, as `lower.cost` assumes it, and the larger of its bytes
    at the rate of a copy and its products at theirs.
    """

    def __init__(self, program: Program, device: torch.device, floor: Floor) -> None:
        self.owners = Owners(program)
        self._copy = floor.bandwidth.copy
        rates = {one.dtype: one.rate for one in floor.products}
        self._machine = CUDA if device.type == "cuda" else CPU
        self._work: dict[str, Work] = {}
        self._products: dict[str, float] = {}
        for call in op_calls(program):
            if call.is_view:
                continue
            work = Work(call.rows * call.flops, call.rows * call.bytes, call.rows)
            name = call.within.name
            self._work[name] = self._work.get(name, _NONE) + work
            if work.flops:
                seconds = work.flops / rates[product_dtype(call.node)]
                self._products[name] = self._products.get(name, 0.0) + seconds

    def work(self, node: str) -> Work:
        """The work of one call of the node; zero for a view, and for an unknown name."""
        return self._work.get(node, _NONE)

    def seconds(self, node: str) -> float:
        """The estimated seconds of one call."""
        work = self.work(node)
        if not work.launches:
            return self._machine.view
        busy = max(self._products.get(node, 0.0), work.bytes / self._copy)
        return work.launches * self._machine.launch + busy
