"""Ops that regions leave to ATen, since compiled code computes otherwise than by rounding."""

import pytest
import torch
from torch import nn

from tests.support import build
from torchgraph.lower.regions.cut import cut

F = nn.functional
floats, bytes_ = torch.randn(4, 6), torch.randint(0, 200, (4, 6), dtype=torch.uint8)
halves = floats.bfloat16()
image = torch.randn(2, 3, 6, 6)

OUTSIDE = {
    "argmax of all": (torch.argmax, floats, "argmax"),
    "argmin of all": (lambda x: torch.argmin(x, None), floats, "argmin"),
    "pool of columns": (
        lambda x: F.max_pool2d(x.mT, 2, return_indices=True)[1],
        image,
        "max_pool2d_with_indices",
    ),
    "adaptive pool of columns": (
        lambda x: F.adaptive_max_pool2d(x.mT, 2, return_indices=True)[1],
        image,
        "adaptive_max_pool2d",
    ),
    "pool of a volume": (
        lambda x: F.max_pool3d(x.mT, 2, return_indices=True)[1],
        image,
        "max_pool3d_with_indices",
    ),
    "softshrink": (F.softshrink, floats, "softshrink"),
    "floor division": (lambda x: x // 0.1, floats, "floor_divide"),
    "rounded division": (lambda x: torch.div(x, x, rounding_mode="floor"), floats, "div"),
    "rounded by a number": (lambda x: torch.div(x, 3.0, rounding_mode="floor"), halves, "div"),
    "fmod of halves": (lambda x: torch.fmod(x, 1.7), halves, "fmod"),
    "remainder of halves": (lambda x: x % 1.7, halves, "remainder"),
    "scaled by 0": (lambda x: torch.addmm(x, x[:, :4], x, beta=0), floats, "addmm"),
    "product of 0": (lambda x: torch.addmv(x[:, 0], x, x[0], alpha=0.0), floats, "addmv"),
    "largest byte": (torch.amax, bytes_, "amax"),
    "smallest byte": (lambda x: x.min(0)[0], bytes_, "min"),
    "place of a byte": (lambda x: x.view(torch.int8).argmax(1), bytes_, "argmax"),
}
INSIDE = {
    "pool": (lambda x: F.max_pool2d(x, 2), image, "max_pool2d_with_indices"),
    "pool in channels-last order": (
        lambda x: F.max_pool2d(x, 2),
        image.to(memory_format=torch.channels_last),
        "max_pool2d_with_indices",
    ),
    "argmax of a row": (lambda x: x.argmax(-1), floats, "argmax"),
    "argmax of a vector": (lambda x: x.reshape(-1).argmax(), floats, "argmax"),
    "division": (lambda x: x / 0.1, floats, "div"),
    "division towards zero": (lambda x: torch.div(x, 3.0, rounding_mode="trunc"), floats, "div"),
    "floor division of integers": (lambda x: x.int() // 3, bytes_, "floor_divide"),
    "fmod of floats": (lambda x: torch.fmod(x, 1.7), floats, "fmod"),
    "fmod of two halves": (lambda x: torch.fmod(x, x + 3), halves, "fmod"),
    "scaled": (lambda x: torch.addmm(x, x[:, :4], x, beta=2, alpha=3), floats, "addmm"),
    "largest float": (torch.amax, floats, "amax"),
    "largest integer": (lambda x: x.int().amax(), bytes_, "amax"),
}


def inside(step, value):
    """The names of the ops in the regions of a step: ``step`` of twice ``value``."""
    program = build(lambda x: (step(x + x) + 1,), value)
    _, regions = cut(program, eager_draws=True)
    ops = [n.target for r in regions for n in r.gm.graph.nodes if n.op == "call_function"]
    return {op.overloadpacket.__name__ for op in ops if hasattr(op, "overloadpacket")}


@pytest.mark.parametrize("case", OUTSIDE.values(), ids=OUTSIDE)
def test_stays_outside(case):
    step, value, op = case
    found = inside(step, value)
    assert op not in found
    assert "add" in found, "what is beside it is compiled"


@pytest.mark.parametrize("case", INSIDE.values(), ids=INSIDE)
def test_is_compiled(case):
    step, value, op = case
    assert op in inside(step, value)
