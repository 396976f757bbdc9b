"""The floor of a step's time: its bytes and products at this machine's rates."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from ...costs.op_calls import work_by_node
from ...ir.program import Program
from .least import least_bytes, least_flops
from .limits import Bandwidth, bandwidth, product_rate


@dataclass(frozen=True)
class Products:
    """The products of a step in one dtype."""

    dtype: torch.dtype
    flops: int
    """A multiply-add as two."""
    rate: float
    """FLOPs a second of the fastest matrix product that was measured here."""

    @property
    def seconds(self) -> float:
        """Seconds of the products at that rate."""
        return self.flops / self.rate


@dataclass(frozen=True)
class Floor:
    """Lower bounds of a step's time, and the time of its ops' memory traffic, which is no bound.

    A step is never faster than the larger floor, but for noise: of the measured rates, which are
    the best of several runs, and of convolutions on a GPU, where cuDNN may multiply less.
    """

    least_bytes: int
    """States and arguments read once, what changes and what is returned written once."""
    traffic: int
    """Bytes that the ops read and write, each on its own."""
    products: tuple[Products, ...]
    bandwidth: Bandwidth

    @property
    def bytes_seconds(self) -> float:
        """The least bytes at the fastest rate at which memory of this size was moved."""
        return self.least_bytes / self.bandwidth.fastest

    @property
    def flops_seconds(self) -> float:
        """The products, each dtype at the rate of its own."""
        return sum(one.seconds for one in self.products)

    @property
    def traffic_seconds(self) -> float:
        """The memory traffic of all ops at the rate of a copy."""
        return self.traffic / self.bandwidth.copy

    @property
    def flops(self) -> int:
        """The sum over all dtypes."""
        return sum(one.flops for one in self.products)

    @property
    def seconds(self) -> float:
        """The larger of both floors."""
        return max(self.bytes_seconds, self.flops_seconds)


def floor(program: Program, device: torch.device) -> Floor:
    """The floor of a program; measures the machine on first use."""
    moved = least_bytes(program)
    return Floor(
        moved,
        sum(work.bytes for work in work_by_node(program).values()),
        tuple(
            Products(dtype, flops, product_rate(device, dtype))
            for dtype, flops in least_flops(program).items()
        ),
        bandwidth(device, moved),
    )
