"""Copies that the backward reads instead of forward values: where both are compiled as one."""

from __future__ import annotations

import torch

from tests import support
from tests.passes.test_rematerialize import ALWAYS, W, X, in_phases, two_layers
from torchgraph.ir.program import RECOMPUTED, Phase, Program, provenance
from torchgraph.lower.regions.cut import cut
from torchgraph.lower.regions.rematerialized import merge_copies

aten = torch.ops.aten


def rematerialized() -> Program:
    done, edits = support.apply(ALWAYS, in_phases(support.build(two_layers, X, W)))
    assert edits
    assert support.targets(done).count("gelu") == 2
    return done


def test_a_copy_in_its_originals_region_is_none():
    _, regions = cut(rematerialized(), eager_draws=True)

    assert len(regions) == 1
    assert str(regions[0].gm.graph).count("aten.gelu.default") == 1


def test_a_copy_in_another_stage_stays():
    program = rematerialized()
    calls = [node for node in program.nodes if node.op == "call_function"]
    merge_copies(program, {n: int(provenance(n).phase is Phase.BACKWARD) for n in calls})

    assert [str(n.target) for n in program.nodes if RECOMPUTED in n.meta] == ["aten.gelu.default"]
