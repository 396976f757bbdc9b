"""What a padded step leaves in Python's objects: eager's, or the batch has a program of its own."""

from types import SimpleNamespace

import pytest
import torch
from torch import nn

import torchgraph as tg
from torchgraph.errors import AttributeWriteWarning, PaddingWarning
from torchgraph.testing import counters


def a_size(held, rows):
    held.seen = len(rows)


def a_text(held, rows):
    held.seen = {"rows": f"{len(rows)}"}


def a_tensor(held, rows):
    held.seen = rows


def tensors_in_a_list(held, rows):
    held.seen = [rows, rows.sum(1)]


def an_argument(held, rows):
    held.seen = held.given


@pytest.mark.filterwarnings("ignore", category=AttributeWriteWarning)
@pytest.mark.filterwarnings("ignore", category=PaddingWarning)
@pytest.mark.parametrize("leave", [a_size, a_text, a_tensor, tensors_in_a_list, an_argument])
def test_it_is_eagers(leave):
    model, held, expected = nn.Linear(4, 3), SimpleNamespace(), SimpleNamespace()

    def step(x, held=held):
        held.given = x
        with torch.no_grad():
            rows = model(x)
            leave(held, rows)
            return rows * 1

    graph = tg.step(step)
    graph.config.set_shape_buckets(0, [8, 16])
    graph.config.set_fallback("eager")
    for count in [5, 7, 5, 6, 3, 5, 8, 5, 7, 2, 5, 6]:
        x = torch.randn(count, 4)
        graph(x)
        step(x, expected)
        found, wanted = (
            one.seen if type(one.seen) is list else [one.seen] for one in (held, expected)
        )
        assert len(found) == len(wanted)
        for one, other in zip(found, wanted, strict=True):
            if isinstance(other, torch.Tensor):
                assert torch.allclose(one, other)
            else:
                assert one == other


def test_what_tells_no_row_is_padded():
    model, held = nn.Linear(4, 3).eval(), SimpleNamespace(mode="", scale=None)

    def step(x):
        with torch.no_grad():
            held.scale = model.weight.abs().max()
            return model(x)

    graph = tg.step(step)
    graph.config.set_shape_buckets(0, [8])
    for count in (5, 7, 6):
        graph(torch.randn(count, 4))
    with counters.expect(lowers=0, replays=3):
        for count in (3, 2, 4):
            graph(torch.randn(count, 4))
    assert torch.equal(held.scale, model.weight.detach().abs().max())
