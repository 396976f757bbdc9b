"""Whose the time is: the tree, the page, the trace and the profile say the same."""

from __future__ import annotations

import pytest
import torch

from tests.support import settle
from torchgraph.debug.figures import totals_of
from torchgraph.debug.modules import ModuleForest
from torchgraph.ir.program import Phase

from .models import Net, Train, batch, trainer
from .pages import data_of


class Remembering(Net):
    """It keeps what it was called with: lowering adds a call that writes it."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("queue", torch.zeros(6, 4))
        self.register_buffer("at", torch.zeros((), dtype=torch.long))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out = super().forward(x) + self.queue.clone().mean()
        self.queue.index_copy_(0, (self.at + torch.arange(len(x))) % 6, x)
        self.at.add_(len(x)).remainder_(6)
        return out


def in_lists(graph: Train) -> None:
    graph.config.allow_fuse_model_update_ops()
    graph.config.enable_multi_tensor_update()


def test_an_update_of_all_parameters_is_shared_out_by_size():
    graph = trainer()
    in_lists(graph)
    settle(graph, *batch())
    found = graph.profile(*batch())
    (update,) = [one for one in found.nodes if one.op.endswith("_update")]
    assert (update.module, update.phase) == ("", Phase.UPDATE)
    times = {one.module: one.update for one in found.modules if one.update > 0}
    assert sum(times.values()) == pytest.approx(update.seconds)
    assert times == {
        "model.fc": pytest.approx(update.seconds * 40 / 74, rel=0.1),
        "model.norm": pytest.approx(update.seconds * 16 / 74, rel=0.1),
        "model.head": pytest.approx(update.seconds * 18 / 74, rel=0.1),
    }
    lines = str(graph).splitlines()
    (shown,) = [line for line in lines if "adam_update" in line]
    assert not shown.startswith("    "), "it stands with what is of no module"


@pytest.mark.parametrize("configure", [lambda graph: None, in_lists])
def test_the_tree_and_the_page_say_what_the_profile_says(configure):
    model = Remembering()
    graph = Train(model, torch.optim.AdamW(model.parameters()))
    configure(graph)
    settle(graph, *batch())
    found = graph.profile(*batch())
    whole = sum(found.seconds_by_node.values())
    assert {one.node for one in found.nodes} - {node.name for node in graph.program.nodes}
    source, forest = graph._tree(), ModuleForest(graph._modules)
    totals = totals_of(source.program, source.captured, source.seconds, forest, source.besides)
    page = data_of(graph.report(), found)["modules"]
    seconds = dict(zip(page["path"], page["seconds"], strict=True))
    for one in found.modules:
        times = (one.forward, one.backward, one.update)
        phases = totals[one.module].phases
        assert [phases[p].seconds if p in phases else 0 for p in Phase] == pytest.approx(times)
        assert seconds[one.module] == pytest.approx(times)
    head = str(graph.tree(0)).splitlines()[:4]
    shares = [float(line.rpartition(" ")[2].rstrip("%")) for line in head if line.endswith("%")]
    phases = found.seconds_by_phase.values()
    assert shares == pytest.approx([100 * one / whole for one in phases], abs=0.1)


def test_the_parts_of_a_trace_add_up():
    graph = trainer()
    settle(graph, *batch())
    found = graph.profile(*batch())
    for lane in (found.timeline, found.plan):
        for node in found.nodes:
            parts = [one for one in lane if one.node == node.node]
            assert sum(one.bytes for one in parts) == node.bytes, node.node
            assert sum(one.flops for one in parts) == node.flops, node.node
    assert len([one for one in found.plan if one.module and one.phase is Phase.UPDATE]) > 1
