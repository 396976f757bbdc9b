"""State is the user's: live in both directions, noticed when it changes, never stale."""

import copy

import pytest
import torch
from torch import nn

import torchgraph as tg
from tests.contract.models import (
    Eval,
    Function,
    Net,
    Train,
    beside_eager,
    data,
    eager,
    made,
    same,
    snapshot,
    twins,
)
from tests.support import settle
from torchgraph.errors import EagerWarning, GradPresent
from torchgraph.testing import counters


def test_five_eager_ten_graph_five_eager_are_twenty_eager():
    (left, one), (right, two) = twins(Net)
    schedule, other = (torch.optim.lr_scheduler.StepLR(o, 4, 0.5) for o in (one, two))
    batches = data(20)
    torch.manual_seed(1)
    expected = []
    for x in batches:
        expected.append(eager(left, one, x))
        schedule.step()
    torch.manual_seed(1)
    graph = Train(right, two, other)
    got = []
    for number, x in enumerate(batches):
        if 5 <= number < 15:
            got.append(graph(x))
        else:
            got.append(eager(right, two, x))
            other.step()

    assert torch.equal(torch.stack(got), torch.stack(expected))
    assert same(snapshot(left, one, schedule)[1:], snapshot(right, two, other)[1:])


def test_the_users_objects_are_the_state():
    model, optimizer = made()
    parameters = list(model.parameters())
    graph = Train(model, optimizer)
    graph(*data())
    slots = [dict(optimizer.state[p]) for p in parameters]
    for _ in range(3):
        graph(*data())

    assert all(a is b for a, b in zip(model.parameters(), parameters, strict=True))
    assert all(type(p) is nn.Parameter and p.is_leaf and p.requires_grad for p in parameters)
    assert set(optimizer.state) == set(parameters)
    for before, parameter in zip(slots, parameters, strict=True):
        now = optimizer.state[parameter]
        assert all(now[key] is before[key] for key in before)
        assert {key: (v.dtype, v.shape) for key, v in now.items()} == {
            "step": (torch.float32, torch.Size([])),
            "exp_avg": (parameter.dtype, parameter.shape),
            "exp_avg_sq": (parameter.dtype, parameter.shape),
        }
        assert now["step"].item() == 4
    assert model.norm.num_batches_tracked.item() == 4


def test_a_checkpoint_loaded_into_module_and_optimizer_is_used():
    model, optimizer = made()
    graph = Train(model, optimizer)
    saved = None
    losses = []
    torch.manual_seed(1)
    for number, x in enumerate(data(8)):
        if number == 4:
            saved = (
                copy.deepcopy(model.state_dict()),
                copy.deepcopy(optimizer.state_dict()),
                torch.get_rng_state(),
            )
        losses.append(graph(x))
    model.load_state_dict(saved[0])
    optimizer.load_state_dict(saved[1])
    torch.set_rng_state(saved[2])

    with counters.expect(captures=0, replays=4):
        again = [graph(x) for x in data(8)[4:]]

    assert same(again, losses[4:])


@pytest.fixture
def in_memory_of_its_own():
    """A graph whose weight lies in a tensor that is a possible batch, and that tensor."""
    torch.manual_seed(0)
    model = nn.Linear(6, 8, bias=False)
    memory = torch.randn(8, 6)
    model.weight.data = memory
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    graph = tg.train_step(model, nn.functional.mse_loss, optimizer)
    settle(graph, torch.randn(8, 6), torch.randn(8, 8))
    return graph, memory


def test_memory_that_a_parameter_has_left_may_be_a_batch(in_memory_of_its_own):
    graph, memory = in_memory_of_its_own
    graph.model.weight.data = memory.clone()
    with counters.expect(captures=0, replays=1):
        graph(memory, torch.randn(8, 8))


def test_memory_that_a_parameter_has_come_to_is_no_batch_of_its_program(in_memory_of_its_own):
    graph, _ = in_memory_of_its_own
    batch, target = torch.randn(8, 6), torch.randn(8, 8)
    expected = nn.functional.mse_loss(nn.functional.linear(batch, batch), target)
    graph.model.weight.data = batch
    with counters.expect(replays=0), pytest.warns(EagerWarning, match="model.weight"):
        loss = graph(batch, target)
    assert torch.equal(loss, expected)


@pytest.mark.parametrize("none", [True, False])
def test_a_gradient_left_behind_is_added_to_as_in_eager(none):
    left = (0, 2, 6)  # at a call that would be recorded, and at one that would replay

    def leave(number, model, optimizer):
        if number in left:
            model(data()[0]).sum().backward()
        if number in (1, 7):
            optimizer.zero_grad(set_to_none=none)

    def serves_none(number):
        return counters.expect(**({"replays": 0} if number in left else {}))

    done = beside_eager(batches=data(9), before=leave, around=serves_none)
    assert [p.grad for p in done.model.parameters()] == [None] * 6
    with counters.expect(captures=0, replays=1):
        done.graph(*data())


def test_check_refuses_a_gradient_left_behind_and_names_the_parameter():
    model, optimizer = made()
    graph = Train(model, optimizer)
    for _ in range(2):  # before the first call, and later
        model(data()[0]).sum().backward()
        before = snapshot(model, optimizer)
        with pytest.raises(GradPresent, match=r"model\.first\.weight has a \.grad"):
            graph.check(*data())
        assert same(snapshot(model, optimizer), before)
        optimizer.zero_grad(set_to_none=True)
        settle(graph, *data())


def test_a_gradient_is_no_obstacle_to_an_eval_graph():
    model, _ = made()
    model.eval()
    model(data()[0]).sum().backward()
    grads = [p.grad.clone() for p in model.parameters()]
    graph = Eval(model)

    assert torch.equal(graph(*data()), model(*data()))
    assert torch.equal(settle(graph, *data()), model(*data()))
    assert same(grads, [p.grad for p in model.parameters()])


def test_two_train_graphs_share_one_optimizer():
    """GAN-like: two programs, one model, one state."""
    model, optimizer = made()
    twin, other = made()

    x = data()[0]

    def half(m):
        loss = m(x).abs().sum()
        loss.backward()
        return loss

    one, two = Train(model, optimizer), Function(lambda: half(model), optimizer, model=model)
    torch.manual_seed(1)
    got = [(two if number % 2 else one)(*([] if number % 2 else [x])) for number in range(12)]
    torch.manual_seed(1)
    expected = []
    for number in range(12):
        loss = half(twin) if number % 2 else twin(x).square().mean()
        if number % 2 == 0:
            loss.backward()
        other.step()
        other.zero_grad()
        expected.append(loss.detach())

    assert same(got, expected)
    assert same(snapshot(model, optimizer)[1:], snapshot(twin, other)[1:])


def test_non_persistent_buffers_and_none_buffers():
    class Odd(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("mask", torch.ones(4), persistent=False)
            self.register_buffer("absent", None)
            self.register_parameter("nothing", None)

        def forward(self, x):
            return x * self.mask if self.absent is None else x

    model = Odd()
    graph = Eval(model)
    x = data()[0]
    settle(graph, x)
    model.mask.fill_(2.0)
    with counters.expect(captures=0, replays=1):
        assert torch.equal(graph(x), x * 2)
    model.absent = torch.ones(1)
    assert torch.equal(graph(x), x)
