"""A failed call changes nothing, or says that it did; interrupts wait; the next good call works."""

import threading

import pytest
import torch
from torch import nn

import torchgraph as tg
from tests.contract.models import (
    Function,
    Train,
    data,
    eager,
    made,
    same,
    snapshot,
)
from tests.support import settle
from torchgraph.errors import AttributeReadAndWritten, GraphError
from torchgraph.testing import counters


def test_a_build_that_raised_once_leaves_everything_and_works_later():
    model, optimizer = made()
    twin, other = made()
    fail_now = [True]

    def function(x):
        loss = model(x).square().mean()
        loss.backward()
        model.note = 3
        if fail_now[0]:
            raise KeyError("mine")
        del model.note
        return loss

    graph = Function(function, optimizer, model=model)
    before = snapshot(model, optimizer)
    attributes = dict(vars(model))
    with pytest.raises(KeyError, match="mine"):
        graph(*data())
    assert same(snapshot(model, optimizer), before)
    assert vars(model) == attributes
    assert not optimizer.state
    assert all(type(p) is nn.Parameter and p.grad is None for p in model.parameters())
    assert not graph.is_compiled
    fail_now[0] = False
    state = torch.get_rng_state()
    got = graph(*data())
    torch.set_rng_state(state)
    assert torch.equal(got, eager(twin, other, *data()))
    assert same(model.state_dict(), twin.state_dict())


def test_a_bad_input_between_good_calls():
    model, optimizer = made()
    graph = Train(model, optimizer)
    for _ in range(5):  # recorded calls and replays
        graph(*data())
        before = snapshot(model, optimizer)
        with pytest.raises(RuntimeError, match=r"3.*7"):
            graph(torch.ones(3, 7))
        assert same(snapshot(model, optimizer), before)
    with counters.expect(captures=0, replays=1):
        graph(*data())


@pytest.mark.parametrize("number", [1, 6])
def test_a_call_in_another_thread(number):
    model, optimizer = made()
    twin, other = made()
    graph = Train(model, optimizer)
    torch.manual_seed(1)
    expected = [eager(twin, other, x) for x in data(8)]
    torch.manual_seed(1)
    got: list = []

    def work():
        got.extend(graph(x) for x in data(8)[:number])

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    got.extend(graph(x) for x in data(8)[number:])
    assert same(got, expected)
    assert same(model.state_dict(), twin.state_dict())


def test_calls_from_several_threads_are_steps_one_after_the_other():
    model = nn.Linear(4, 2)
    graph = Train(model, torch.optim.SGD(model.parameters(), lr=0.01))
    errors: list = []

    def work():
        try:
            for _ in range(5):
                graph(*data())
        except Exception as error:
            errors.append(error)

    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert not errors
    assert graph.state_dict()["_train"]["step"] == 15


def test_a_module_called_in_another_thread_during_a_capture_is_not_recorded():
    model, _ = made()
    other = nn.Linear(4, 4)
    out: list = []

    def function(x):
        thread = threading.Thread(target=lambda: out.append(other(torch.ones(1, 4)).detach()))
        thread.start()
        thread.join()
        return model(x)

    graph = Function(function, model=model.eval())
    assert torch.equal(graph(*data()), model(*data()))
    with pytest.warns(AttributeReadAndWritten, match="the list out"):
        got = [graph(*data()) for _ in range(5)]
    assert all(torch.equal(one, model(*data())) for one in got)
    assert len(out) == 6  # as in eager
    assert torch.equal(out[0], other(torch.ones(1, 4)))
    assert type(out[0]) is torch.Tensor


def test_an_error_of_ours_is_also_what_oneflow_raises():
    for ours, theirs in (
        (tg.errors.BuildNotOverridden, NotImplementedError),
        (tg.errors.OptimizerAttribute, AttributeError),
        (tg.errors.TensorAttribute, AttributeError),
        (tg.errors.ModuleNameTaken, KeyError),
        (tg.errors.NotAnOptimizer, AssertionError),
    ):
        assert issubclass(ours, theirs)
        assert issubclass(ours, GraphError)


def test_an_anomaly_or_default_dtype_change_is_another_program():
    graph = Function(lambda x: x * torch.ones(2).sum())
    x = torch.ones(2)
    assert settle(graph, x).dtype is torch.float32
    torch.set_default_dtype(torch.float64)
    try:
        assert settle(graph, x).dtype is (x * torch.ones(2).sum()).dtype
        assert Function(lambda: torch.ones(2))().dtype is torch.float64
    finally:
        torch.set_default_dtype(torch.float32)
    with counters.expect(captures=0, replays=1):
        assert graph(x).dtype is torch.float32


def test_a_default_device_is_another_program():
    graph = Function(lambda x: (x * 2, torch.ones(2)))
    x = torch.ones(2)
    assert settle(graph, x)[1].device.type == "cpu"
    with torch.device("meta"):
        for _ in range(3):
            assert graph(x)[1].device.type == "meta"
    assert graph(x)[1].device.type == "cpu"


CHECKED = {
    "cholesky": lambda x: torch.linalg.cholesky(x),
    "unused": lambda x: (torch.linalg.lu_factor(x), x * 2)[1],
    "assertion": lambda x: (torch._assert_async(x.sum()), x * 2)[1],
    "assertion that says it": lambda x: (torch._assert_async(x.any(), "zeros"), x * 2)[1],
}


@pytest.mark.parametrize("name", CHECKED)
def test_what_an_op_checks_raises_as_in_eager_where_programs_serve_too(name):
    step = tg.step(CHECKED[name])
    bad = torch.zeros(3, 3)
    with pytest.raises(RuntimeError) as expected:
        CHECKED[name](bad)
    before = counters.replays
    for number in range(1, 8):
        if number == 5:
            with pytest.raises(type(expected.value)) as found:
                step(bad)
            assert str(found.value) == str(expected.value)
        x = torch.eye(3) * number
        assert torch.equal(step(x), CHECKED[name](x))
    assert counters.replays - before == 5
