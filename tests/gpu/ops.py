"""Each op of ours against its reference in float64, on inputs drawn anew, into poisoned memory.

    python -m tests.gpu.ops all float32 [--dry] [--seed N]
    compute-sanitizer python -m tests.gpu.ops updates float32

What an op allocates is full of NaNs before it runs (`torch.utils.deterministic`), so that an
element that no thread writes shows.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Iterable
from typing import Any

import torch

from torchgraph.library import definition as library
from torchgraph.passes.fusions.cross_entropy.op import forward

from . import job
from .machine import machine
from .op_cases import CASES, UPDATES, Given, NotThere, Pair

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
LIMITS = {
    torch.float64: 1e-14,
    torch.float32: 1e-6,
    torch.bfloat16: 2.0**-8,
    torch.float16: 2.0**-11,
}
"""Of norm(found - right) / norm(right): a rounding or two of the result's dtype."""
ELEMENT = 8.0
"""How many times that an element may be off, by its own size and the typical one."""
HUGE = 1e300
"""For infinity, which strict JSON does not have."""


def main() -> None:
    """A row for each op: the largest error, and its share of the limit."""
    args = job.arguments(__doc__, "which", "dtype", which=("all", "updates"), dtype=tuple(DTYPES))
    dtype = DTYPES[args.dtype]
    torch.use_deterministic_algorithms(True, warn_only=True)  # which also fills what is allocated
    with machine(dry=args.dry) as on:
        if not torch.empty(8, device=on.device).isnan().all():
            job.row("poison", "memory has no NaNs: what no thread writes does not show")
        if not on.dry:
            with job.case("kernels"):
                _are_compiled(on.device)
        for name, pairs in (CASES if args.which == "all" else UPDATES).items():
            random = torch.Generator().manual_seed(args.seed + zlib.crc32(name.encode()))
            with job.case(name, dtype=args.dtype):
                try:
                    found = worst(pairs(Given(on.device, dtype, random)))
                except NotThere as reason:
                    job.row(name, dtype=args.dtype, left_out=str(reason))
                else:
                    job.row(name, dtype=args.dtype, **found)


def _are_compiled(device: torch.device) -> None:
    if not library.has_kernel(forward, device):
        raise RuntimeError("the CUDA kernels are not loaded: what follows is of the references")


def worst(pairs: Iterable[Pair]) -> dict[str, Any]:
    """``error`` and ``share`` of the pair nearest to its limit or beyond it; ``outcome``."""
    found = [_of_pair(pair) for pair in pairs]
    if not found:
        return {"outcome": "nothing was compared"}
    share, wrong = max(found)
    outcome = "ok" if share <= 1 else "wrong"
    return {"outcome": outcome, "error": min(wrong, HUGE), "share": min(share, HUGE)}


def _of_pair(pair: Pair) -> tuple[float, float]:
    """The share of the limit, as a whole or of the worst element, and the error."""
    wrong = error(pair.found, pair.right)
    limit = 0.0 if pair.exact else LIMITS.get(pair.found.dtype, 0.0)
    if wrong == math.inf or not limit:
        return (math.inf if wrong else 0.0), wrong
    return max(wrong / limit, farthest_element(pair.found, pair.right) / (ELEMENT * limit)), wrong


def farthest_element(found: torch.Tensor, right: torch.Tensor) -> float:
    """The largest difference of an element, by its size and that of the whole together.

    A norm over a million elements does not see one that was left out in half precision.
    """
    a, b = (one.detach().cpu().double().nan_to_num() for one in (found, right))
    if not a.numel():
        return 0.0
    typical = b.norm() / b.numel() ** 0.5
    return float(((a - b).abs() / (b.abs() + typical).clamp(min=1e-30)).max())


def error(found: torch.Tensor, right: torch.Tensor) -> float:
    """norm(found - right) / norm(right); infinite where shapes or what is finite differ."""
    if found.shape != right.shape:
        return math.inf
    a, b = found.detach().cpu().double(), right.detach().cpu().double()
    strange = ~b.isfinite()
    if not torch.equal(a.isfinite(), ~strange):
        return math.inf
    if not torch.equal(a[strange].nan_to_num(), b[strange].nan_to_num()):
        return math.inf
    a, b = a[~strange], b[~strange]
    return float((a - b).norm() / b.norm().clamp(min=1e-30)) if a.numel() else 0.0


if __name__ == "__main__":
    main()
