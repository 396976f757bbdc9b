"""Nested tensors: a step that makes or reads one runs in eager, with one warning."""

from itertools import product

import pytest
import torch
from torch import nn

import torchgraph as tg
from tests.contract.models import Eval, Function, Train, adam, data, eager, same, snapshot
from torchgraph.errors import EagerWarning, NoProgram
from torchgraph.testing import counters

pytestmark = pytest.mark.filterwarnings("ignore:.*nested tensors is in prototype:UserWarning")

ALIGNED = ([4, 4, 4], [4, 3, 1], [4, 2, 2])
"""Lengths of three sequences; padding behind them, as nn.TransformerEncoder's fast path wants."""
OTHERS = ([4, 3, 1], [4, 1, 3])
"""With padding in front."""


def encoder(seed=0, **options: bool):
    torch.manual_seed(seed)
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
    return nn.TransformerEncoder(layer, 2, **options)


def masks(*lengths: list[int], in_front=False):
    for each in lengths:
        mask = torch.arange(4)[None] >= torch.tensor(each)[:, None]
        yield mask.flip(1) if in_front else mask


def padded(*given: torch.Tensor):
    source = torch.Generator().manual_seed(3)
    return [(torch.randn(3, 4, 8, generator=source), mask) for mask in given]


def test_an_encoder_on_its_fast_path_runs_in_eager():
    model = encoder().eval().requires_grad_(False)
    graph = Eval(model)
    graph.config.set_fallback("eager")
    batches = padded(*masks(*2 * ALIGNED), *masks(*OTHERS, in_front=True), *masks(*ALIGNED))
    said = r"'model' makes .*nested tensor.*\(at .*models\.py:\d+.*enable_nested_tensor=False"
    with pytest.warns(EagerWarning, match=said) as found:
        got = [graph(x, src_key_padding_mask=mask) for x, mask in batches]
    assert [one.category for one in found].count(EagerWarning) == 1
    assert same(got, [model(x, src_key_padding_mask=mask) for x, mask in batches])
    assert "TransformerEncoder" in str(graph)


@pytest.mark.usefixtures("without_looks")
@pytest.mark.filterwarnings("ignore::torchgraph.errors.EagerWarning")
def test_padding_in_front_has_a_program_that_serves_no_other():
    """torch asks whether the mask is left-aligned, and goes another way."""
    model = encoder().eval().requires_grad_(False)
    graph = Eval(model)
    front = padded(*masks(*2 * OTHERS, in_front=True))
    with counters.expect(captures=1, replays=2):
        for x, mask in front:
            expected = model(x, src_key_padding_mask=mask)
            assert torch.equal(graph(x, src_key_padding_mask=mask), expected)
    mixed = [one for both in zip(padded(*masks(*ALIGNED)), front, strict=False) for one in both]
    with counters.expect(captures=0, replays=3):
        for x, mask in mixed:
            expected = model(x, src_key_padding_mask=mask)
            assert torch.equal(graph(x, src_key_padding_mask=mask), expected)


def test_two_programs_serve_all_masks():
    """One where torch finds a mask left-aligned, one where it does not."""

    def function(x, mask):
        return x + torch._nested_tensor_from_mask_left_aligned(x, mask)

    graph = Function(function)
    x = torch.zeros(2, 3, 1)
    given = [torch.tensor(bits).view(2, 3) for bits in product([False, True], repeat=6)]
    with counters.expect(captures=2):
        got = [graph(x, mask) for mask in given]
    assert same(got, [function(x, mask) for mask in given])


def test_a_frozen_teacher_on_its_fast_path():
    teacher = encoder(1).eval().requires_grad_(False)

    def step(model, x, mask):
        with torch.no_grad():
            wanted = teacher(x, src_key_padding_mask=mask)
        loss = (model(x, src_key_padding_mask=mask) - wanted).square().mean()
        loss.backward()
        return loss

    model, twin = encoder(enable_nested_tensor=False), encoder(enable_nested_tensor=False)
    optimizer, other = adam(model), adam(twin)
    graph = Function(lambda x, mask: step(model, x, mask), optimizer, model=model, teacher=teacher)
    graph.config.set_fallback("eager")
    batches = padded(*masks(*2 * OTHERS, in_front=True), *masks(*ALIGNED))
    torch.manual_seed(2)
    with pytest.warns(EagerWarning, match="'teacher'"):
        got = [graph(x, mask) for x, mask in batches]
    state = snapshot(model, optimizer)
    torch.manual_seed(2)
    for (x, mask), loss in zip(batches, got, strict=True):
        assert torch.equal(loss, step(twin, x, mask))
        other.step()
        other.zero_grad()
    assert same(state, snapshot(twin, other))


class Ragged(nn.Module):
    """Through layers as a nested tensor, with draws, a buffer that moves, and gradients."""

    def __init__(self, layout=torch.strided) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(4)
        self.first, self.drop, self.second = nn.Linear(4, 6), nn.Dropout(0.3), nn.Linear(6, 2)
        self.layout = layout
        self.fails = False

    def forward(self, x):
        x = self.norm(x)
        nested = torch.nested.as_nested_tensor([x[:2], x[2:]], layout=self.layout)
        hidden = self.second(self.drop(self.first(nested)))
        if self.fails:
            self.norm.running_mean.zero_()
            raise KeyError("after the nested tensor")
        return torch.nested.to_padded_tensor(hidden, 0.0)


@pytest.mark.filterwarnings("ignore::torchgraph.errors.EagerWarning")
@pytest.mark.parametrize("layout", [torch.strided, torch.jagged])
def test_a_model_of_nested_tensors_trains_like_eager(layout):
    torch.manual_seed(0)
    model, twin = Ragged(layout), Ragged(layout)
    twin.load_state_dict(model.state_dict())
    optimizer, other = adam(model), adam(twin)
    graph = Train(model, optimizer)
    graph.config.set_fallback("eager")
    torch.manual_seed(1)
    got = [graph(batch) for batch in data(5)]
    state = snapshot(model, optimizer)
    torch.manual_seed(1)
    assert same(got, [eager(twin, other, batch) for batch in data(5)])
    assert same(state, snapshot(twin, other))


def test_a_step_that_raises_behind_a_nested_tensor_is_taken_back():
    model = Ragged()
    optimizer = adam(model)
    graph = Train(model, optimizer)
    with pytest.raises(NoProgram, match="nested tensor"):
        graph(*data())
    graph.config.set_fallback("eager")
    model.fails = True
    before = snapshot(model, optimizer)
    with pytest.raises(KeyError):
        graph(*data())
    assert same(before, snapshot(model, optimizer))
    model.fails = False
    with pytest.warns(EagerWarning):
        graph(*data())


def test_nested_tensors_are_returned_and_read_by_reference():
    held = torch.nested.nested_tensor([torch.ones(2, 3), torch.ones(1, 3)])

    def function(x):
        return torch.nested.to_padded_tensor(held, 0.0) * x, held * 2

    graph = Function(function)
    graph.config.set_fallback("eager")
    with pytest.warns(EagerWarning, match=r"nested tensor.*enable_nested"):
        graph(torch.ones(3))
    for _ in range(3):
        held.mul_(3)
        x = torch.randn(3)
        (got, nested), (expected, other) = graph(x), function(x)
        assert torch.equal(got, expected)
        assert same(nested.unbind(), other.unbind())


def test_a_nested_tensor_that_is_only_looked_at():
    held = torch.nested.nested_tensor([torch.ones(2, 3), torch.ones(1, 3)])

    def function(x):
        return x * 2 if held.is_nested else x

    step = tg.step(function)
    for _ in range(4):
        x = torch.randn(3)
        assert torch.equal(step(x), function(x))
    held = torch.ones(3)
    assert torch.equal(step(x), x)
