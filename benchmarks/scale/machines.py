"""GPUs by their published figures, and how much of them is reached."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from torchgraph.costs.timeline import Rates, Wire

GIB = 2**30


@dataclass(frozen=True)
class Gpu:
    """One GPU of a node of eight. Figures of the vendor, dense and in one direction."""

    name: str
    bfloat16: float
    """FLOPs in a second."""
    bytes: float
    """Of its memory, in a second."""
    memory: float
    """Bytes."""
    nvlink: float
    """Bytes in a second, to the other GPUs of its node."""
    network: float
    """Bytes in a second, to other nodes."""
    source: str


_H100 = "https://resources.nvidia.com/en-us-tensor-core/nvidia-tensor-core-gpu-datasheet"
_H200 = "https://nvdam.widen.net/s/nb5zzzsjdf/hpc-datasheet-sc23-h200-datasheet-3002446"
_A100 = "https://www.nvidia.com/content/dam/en-zz/Solutions/Data-Center/a100/pdf/nvidia-a100-datasheet-us-nvidia-1758950-r4-web.pdf"
_B200 = "https://resources.nvidia.com/en-us-dgx-systems/dgx-b200-datasheet"
_TITAN = (
    "https://github.com/pytorch/torchtitan/blob/main/benchmarks/llama3_h100_202412_torchtitan.md"
)

GPUS = {
    one.name: one
    for one in (
        Gpu("A100", 312e12, 2.039e12, 80e9, 300e9, 25e9, _A100),
        Gpu("H100", 989e12, 3.35e12, 80e9, 450e9, 50e9, _H100),
        Gpu("H200", 989e12, 4.8e12, 141e9, 450e9, 50e9, _H200),
        Gpu("B200", 2250e12, 8.0e12, 180e9, 900e9, 50e9, _B200),
        Gpu("H100 96GB, 500 W", 989e12, 2.4e12, 96e9, 450e9, 50e9, _TITAN),
    )
}
"""The last is the machine of torchtitan's published runs, which the predictions stand beside."""


@dataclass(frozen=True)
class Reached:
    """The part of the vendor's figures that programs reach: assumptions, printed with results."""

    products: float = 0.45
    """Of the FLOPs of products in bfloat16: about what torchtitan's published runs reach."""
    attention: float = 0.30
    """The same of fused attention, what a causal mask leaves out not counted."""
    bytes: float = 0.85
    nvlink: float = 0.80
    network: float = 0.80
    memory: float = 0.92
    """Of the memory, that a step may take: the rest is the context, NCCL and fragments."""


LAUNCH, VIEW = 2.5e-6, 0.0
"""Seconds of a kernel that the host has queued in time, or a CUDA Graph holds; of a view."""
HOP, TRIP = 1.5e-6, 5e-6
"""Seconds of a message to a GPU of the same node, and to another node."""
START = 15e-6
"""Seconds of a collective besides."""
NODE = 8


def rates(gpu: Gpu, reached: Reached) -> Rates:
    """Of one GPU that runs a program op by op."""
    products = gpu.bfloat16 * reached.products
    return Rates(
        {torch.bfloat16: products, torch.float32: products / 2},
        gpu.bytes * reached.bytes,
        LAUNCH,
        VIEW,
        # Attention counts the whole of a causal product, of which half is done.
        attention=2 * gpu.bfloat16 * reached.attention,
    )


def wire(gpu: Gpu, reached: Reached, ranks: int, apart: int = 1) -> Wire:
    """What joins ``ranks`` GPUs that lie ``apart`` GPUs from each other."""
    if ranks * apart <= NODE:
        return Wire(ranks, gpu.nvlink * reached.nvlink, HOP, start=START)
    far = min(1.0, apart / NODE)
    message = far * TRIP + (1 - far) * HOP
    return Wire(ranks, gpu.network * reached.network, message, start=START)
