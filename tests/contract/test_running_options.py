"""Options that change how programs run, and no program: nothing is recorded anew for them."""

from __future__ import annotations

import torch
from torch import nn, optim

import torchgraph as tg
from tests.support import settle
from torchgraph.options.options import Options, PassOptions
from torchgraph.testing import counters


def trained() -> tuple[tg.Graph, list[torch.Tensor]]:
    model = nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 2))
    graph = tg.train_step(model, nn.functional.mse_loss, optim.SGD(model.parameters(), 0.1))
    batch = [torch.randn(5, 4), torch.randn(5, 2)]
    settle(graph, *batch)
    return graph, batch


def test_a_set_of_outputs_takes_effect_at_the_next_call():
    graph, batch = trained()
    graph.config.set_outputs_buffer_size(2)
    with counters.expect(captures=0, replays=3):
        first, second, third = (graph(*batch) for _ in range(3))
    assert first.data_ptr() == third.data_ptr()
    assert first.data_ptr() != second.data_ptr()
    graph.config.set_outputs_buffer_size(None)
    with counters.expect(captures=0, replays=2):
        first, second = graph(*batch), graph(*batch)
    assert first.data_ptr() != second.data_ptr()


def test_a_smaller_cache_takes_effect_at_the_next_call():
    graph, batch = trained()
    other = [value[:3] for value in batch]
    settle(graph, *other)
    assert len(graph.report().programs.held) == 2
    graph.config.set_cache_size(1)
    with counters.expect(captures=0, replays=1):
        graph(*other)
    assert len(graph.report().programs.held) == 1


def test_a_directory_for_programs_is_for_those_to_come(tmp_path):
    graph, batch = trained()
    graph.config.passes.dump(tmp_path)
    with counters.expect(captures=0, replays=1):
        graph(*batch)
    assert not list(tmp_path.iterdir())
    settle(graph, *(value[:3] for value in batch))
    assert list(tmp_path.iterdir())


def test_what_changes_no_program_is_not_compared():
    assert Options(cache_size=2, outputs_buffer_size=3) == Options()
    assert Options(passes=PassOptions(dump="x", verify="strict")) == Options()
    assert Options(rng="fast") != Options()
    assert hash(Options(cache_size=2)) == hash(Options())
