"""A block of autocast around several calls of a step: eager trains nothing in it, a step does."""

import itertools
import warnings

import pytest
import torch
from torch import nn

import torchgraph as tg
from tests.contract.models import Eval, Train
from tests.support import thinned_rows
from torchgraph.errors import OutdatedCasts


def autocast(cache_enabled=True):
    return torch.autocast("cpu", torch.bfloat16, cache_enabled=cache_enabled)


def made():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1))
    return model, torch.optim.SGD(model.parameters(), 0.1), torch.randn(4, 8)


def a_block_of_its_own(step):
    """What the calls of a step are to give: those of eager, each without copies of others."""

    def call(x):
        torch.clear_autocast_cache()
        found = step(x)
        torch.clear_autocast_cache()
        return found

    return call


# --- steps ----------------------------------------------------------------------------------------


def plain(model, optimizer):
    def step(x):
        optimizer.zero_grad()
        loss = model(x).float().square().mean()
        loss.backward()
        optimizer.step()
        return loss

    return step


def with_its_own_block(model, optimizer):
    def step(x):
        optimizer.zero_grad()
        with autocast():
            loss = model(x).float().square().mean()
        loss.backward()
        optimizer.step()
        return loss

    return step


def forward_without(model, optimizer):
    """Its backward runs under the block of the caller."""

    def step(x):
        optimizer.zero_grad()
        with torch.autocast("cpu", enabled=False):
            loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        return loss

    return step


def by_data(model, optimizer):
    """Nothing counts a version here."""

    def step(x):
        model.zero_grad()
        loss = model(x).float().square().mean()
        loss.backward()
        for parameter in model.parameters():
            parameter.data.sub_(parameter.grad, alpha=0.1)
        return loss

    return step


def twice(model, optimizer):
    """Within one call all is as in eager: the second loss is that of the first copies."""
    once = plain(model, optimizer)

    def step(x):
        return once(x), once(x)

    return step


STEPS = (plain, with_its_own_block, forward_without, by_data, twice)


# --- blocks ---------------------------------------------------------------------------------------


def one(step, x):
    with autocast():
        return [step(x) for _ in range(8)]


def nested(step, x):
    with autocast():
        with autocast():
            found = [step(x) for _ in range(4)]
        return found + [step(x) for _ in range(4)]


def programs_first(step, x):
    found = []
    for _ in range(4):
        with autocast():
            found.append(step(x))
    with autocast():
        return found + [step(x) for _ in range(4)]


def cache_now_and_then(step, x):
    found = []
    with autocast():
        for turn in range(8):
            with autocast(cache_enabled=bool(turn % 2)):
                found.append(step(x))
    return found


def off_around_calls(step, x):
    found = []
    with autocast():
        for turn in range(8):
            with torch.autocast("cpu", enabled=turn == 4):
                found.append(step(x))
    return found


BLOCKS = (one, nested, programs_first, cache_now_and_then, off_around_calls)


def flat(found):
    return [loss.item() for each in found for loss in (each if isinstance(each, tuple) else [each])]


@pytest.mark.filterwarnings("ignore::torchgraph.errors.OutdatedCasts")
@pytest.mark.parametrize(
    ("make", "block"),
    thinned_rows(
        itertools.product(STEPS, BLOCKS),
        lambda make, block: make is with_its_own_block or block is programs_first,
    ),
)
def test_each_call_is_as_in_a_block_of_its_own(make, block):
    model, optimizer, x = made()
    expected = flat(block(a_block_of_its_own(make(model, optimizer)), x))
    twin, optimizer, x = made()
    step = tg.step(make(twin, optimizer))
    assert flat(block(step, x)) == expected
    assert all(map(torch.equal, model.parameters(), twin.parameters()))
    assert not step.report().calls.eager


def test_eager_trains_nothing_and_the_step_says_so_once():
    model, optimizer, x = made()
    losses = flat(one(plain(model, optimizer), x))
    assert len(set(losses)) == 1
    model, optimizer, x = made()
    step = tg.step(plain(model, optimizer))
    with autocast():
        first = step(x)
        with pytest.warns(OutdatedCasts, match="around several calls") as said:
            trained = [step(x) for _ in range(6)]
    assert len(said) == 1
    assert first.item() == losses[0] > trained[0].item() > trained[-1].item()


def test_a_graph_that_steps_its_optimizer_trains_too():
    model, optimizer, x = made()
    with pytest.warns(OutdatedCasts):
        losses = flat(one(Train(model, optimizer), x))
    twin, optimizer, x = made()
    alone = Train(twin, optimizer)
    for loss in losses:
        with autocast():
            assert alone(x).item() == loss
    assert losses[-1] < losses[0]


def test_micro_steps_whose_update_is_the_callers_are_told():
    model, optimizer, x = made()

    @tg.step
    def micro(x):
        loss = model(x).float().square().mean()
        loss.backward()
        return loss

    def run():
        first = micro(x)
        for turn in range(8):
            found = micro(x)
            if turn % 2:
                optimizer.step()
                optimizer.zero_grad()
        return found < first

    with autocast(), pytest.warns(OutdatedCasts):
        assert run()


def test_blocks_that_are_right_in_eager_say_nothing():
    model, optimizer, x = made()
    step, graph = tg.step(plain(model, optimizer)), Eval(model)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for _ in range(5):
            with autocast():
                step(x)
        with autocast(cache_enabled=False):
            for _ in range(3):
                step(x)
        with autocast(), torch.no_grad():
            found = [graph(x) for _ in range(5)]
        with autocast():
            for _ in range(3):
                step(x)
                torch.clear_autocast_cache()
    assert all(torch.equal(one, found[0]) for one in found)


def test_what_follows_a_call_in_its_block_sees_the_weights_it_left():
    model, optimizer, x = made()
    step = tg.step(plain(model, optimizer))
    with warnings.catch_warnings(), autocast():
        warnings.simplefilter("ignore", OutdatedCasts)
        for _ in range(5):
            model(x)
            step(x)
        found = model(x)
    with autocast():
        assert torch.equal(found, model(x))


def test_a_kernel_of_a_library_is_under_the_block_as_in_eager():
    library = torch.library.Library("autocast_blocks", "FRAGMENT")
    library.define("product(Tensor x, Tensor y) -> Tensor")
    library.impl("product", lambda x, y: (x.clone() @ y).float(), "CPU")
    library.impl("product", lambda x, y: x.new_empty(len(x), y.shape[1]), "Meta")
    weight, x = torch.randn(8, 8), torch.randn(4, 8)

    def product(x):
        return torch.ops.autocast_blocks.product(x, weight)

    step = tg.step(product)
    with autocast():
        expected = product(x)
        assert all(torch.equal(step(x), expected) for _ in range(5))
    assert not torch.equal(product(x), expected)
    assert step.report().calls.programs == 3
