"""Settings drawn at random from everything that may be combined: the bits of the eager loop."""

import random
import warnings

import pytest
import torch

from tests.features.covering import GRID
from tests.features.test_covering import Side, Train, data, eager, same
from torchgraph.errors import MemoryBudgetWarning
from torchgraph.options.memory import STRAIGHTEN_MODES

STEPS = 6


@pytest.mark.parametrize("seed", range(10))
def test_six_steps_are_bitwise_eagers(seed):
    choose = random.Random(seed).choice
    row = tuple(choose(settings) for settings in GRID.values())
    mine, other = Side(*row), Side(*row)
    graph = Train(mine)
    graph.config.enable_straighten_algorithm(choose(STRAIGHTEN_MODES))
    graph.config.enable_compress_memory(choose((True, False)))
    graph.config.enable_choose_best_memory_allocation(choose((True, False)))
    graph.config.set_outputs_buffer_size(choose((None, 2)))
    if choose((True, False)):
        graph.config.set_activation_checkpointing(choose(("matmuls", 0.3, 0.0)))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", MemoryBudgetWarning)
        for number, (x, y) in enumerate(data(row[-1])[:STEPS]):
            torch.manual_seed(number)
            got = graph(x, y)
            torch.manual_seed(number)
            same(got, eager(other, x, y))
            same(mine.model.state_dict(), other.model.state_dict())
            same(mine.optimizer.state_dict()["state"], other.optimizer.state_dict()["state"])
