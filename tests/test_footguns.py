"""Where a Graph differs from eager, or from what one would expect, which a comment says.

Ranked: first what is silent, then what warns, what no program serves, then what is refused.
"""

import collections
import sys

import numpy as np
import pytest
import torch
from torch import nn

import torchgraph as tg
from tests.contract.models import Eval, Function, Train, adam, data, made, same
from tests.support import settle
from torchgraph.errors import (
    AttributeReadAndWritten,
    AttributeWriteWarning,
    DataDependent,
    EagerWarning,
    OptimizerStepInBuild,
    UnregisteredModuleWarning,
    UnsupportedInput,
)

# --- silent --------------------------------------------------------------------------------------

pytestmark = pytest.mark.usefixtures("without_looks")


@pytest.mark.filterwarnings("ignore:Replays of the step do not repeat")
def test_python_in_build_runs_in_recorded_calls_only(capsys):
    graph = Function(lambda x: (sys.stdout.write("called\n"), x + 1)[1])
    for _ in range(5):
        graph(torch.ones(2))

    assert capsys.readouterr().out == "called\n" * 2  # eager: five times


@pytest.mark.filterwarnings("ignore:Replays of the step do not repeat")
def test_hooks_run_in_recorded_calls_only(capsys):
    model = nn.Linear(4, 2)
    model.register_forward_hook(lambda *_: sys.stdout.write("forward\n") and None)
    optimizer = adam(model)
    optimizer.register_step_post_hook(lambda *_: sys.stdout.write("step\n") and None)
    graph = Train(model, optimizer)
    for x in data(6):
        graph(x)

    # Eager: six times each. Their ops do run each time.
    assert capsys.readouterr().out == "forward\nstep\n" * 2


def test_a_number_in_a_large_array_is_baked():
    scale = np.full(2_200_000, 2.0)
    graph = Function(lambda x: x * float(scale[0]))
    settle(graph, torch.ones(2))
    scale[0] = 5.0

    # eager: 5.0; pass it in. Arrays of up to 16 MiB and lists of up to 131,072 items are compared
    assert graph(torch.ones(2)).tolist() == [2.0, 2.0]


def test_parameters_have_no_grad_after_a_call():
    model, optimizer = made()
    Train(model, optimizer)(*data())

    assert model.first.weight.grad is None  # a step without zero_grad() would leave it there


def test_gradients_do_not_add_up_over_calls():
    model = nn.Linear(1, 1, bias=False)
    nn.init.zeros_(model.weight)
    graph = Function(
        lambda x: (model(x).sum().backward(), model.weight.grad)[1],
        torch.optim.SGD(model.parameters(), lr=1.0),
        model=model,
    )
    x = torch.ones(1, 1)

    assert [graph(x).item() for _ in range(4)] == [1.0] * 4  # without zero_grad(): 1, 2, 3, 4


def test_an_input_that_requires_grad_receives_no_gradient():
    model, optimizer = made()
    graph = Train(model, optimizer)
    given = []
    for _ in range(5):
        x = data()[0].requires_grad_()
        graph(x)
        given.append(x.grad is not None)

    # eager: each time; return torch.autograd.grad(loss, x) from build
    assert given == [False] * 5


def test_outputs_share_nothing():
    x = torch.ones(2)
    Function(lambda x: x)(x).zero_()

    assert x.tolist() == [1.0, 1.0]  # eager: the input itself comes back, and is zero now


def test_outputs_are_detached():
    model, _ = made()
    assert Eval(model)(*data()).grad_fn is None  # eager: a graph to call backward() on


def test_a_parameter_returned_is_its_value_before_the_update():
    model = nn.Linear(1, 1, bias=False)
    nn.init.ones_(model.weight)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    graph = Function(lambda x: (model(x).sum().backward(), model.weight)[1], optimizer, model=model)

    assert graph(torch.ones(1, 1)).item() == 1.0  # returning the parameter in eager shows 0.5
    assert model.weight.item() == 0.5


def test_the_first_call_is_a_real_step():
    model, optimizer = made()
    before = model.first.weight.detach().clone()
    Train(model, optimizer)(*data())

    assert not torch.equal(model.first.weight, before)  # "compiling" alone would leave it


def test_lr_scale_is_invisible_in_the_optimizer():
    model = nn.Linear(1, 1, bias=False)
    nn.init.ones_(model.weight)
    optimizer = torch.optim.SGD([{"params": model.parameters(), "lr_scale": 0.5}], lr=1.0)
    graph = Function(lambda x: model(x).sum().backward(), optimizer, model=model)
    graph(torch.ones(1, 1))

    assert model.weight.item() == 0.5  # eager steps ignore lr_scale: 0.0
    assert optimizer.param_groups[0]["lr"] == 1.0


def test_a_tensor_made_from_a_literal_is_a_constant_but_a_fresh_one_each_time():
    graph = Function(lambda: torch.tensor([1.0]))
    for _ in range(5):
        returned = graph()
        assert returned.item() == 1.0
        returned.add_(1)


def test_defaultdict_and_ordered_dict_are_other_structures_than_dict():
    graph = Function(lambda d: d["a"] * 2)
    a = torch.ones(2)
    with tg.testing.counters.expect(captures=3):
        for kind in (dict, collections.OrderedDict, lambda **k: collections.defaultdict(int, k)):
            settle(graph, kind(a=a))  # eager: all the same


# --- a warning -----------------------------------------------------------------------------------


def test_an_attribute_written_is_that_of_the_last_recorded_call():
    class Remembers(nn.Module):
        def forward(self, x):
            self.last = x
            return x + 1

    model, batches = Remembers(), data(5)
    graph = Eval(model)
    graph(batches[0])
    with pytest.warns(AttributeWriteWarning):
        graph(batches[1])
    for x in batches[2:]:
        graph(x)

    assert model.last is batches[1]  # eager: the last batch


def test_a_set_that_nobody_reads_is_filled_by_recorded_calls():
    class Counts(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("calls", torch.zeros(()))
            self.seen = set()

        def forward(self, x):
            self.seen.add(object())
            return x + self.calls.add_(1)

    model = Counts()
    graph = Eval(model)
    graph(*data())
    with pytest.warns(AttributeWriteWarning):
        graph(*data())
    for _ in range(3):
        graph(*data())

    assert len(model.seen) == 2  # eager: five of them
    assert model.calls == 5  # a buffer counts


def test_an_unregistered_module_is_not_trained():
    head, model = nn.Linear(2, 1), nn.Linear(4, 2)
    graph = Function(
        lambda x: head(model(x)).sum().backward(),
        torch.optim.SGD(model.parameters(), lr=1.0),
        model=model,
    )
    before = head.weight.detach().clone()
    with pytest.warns(UnregisteredModuleWarning):
        graph(*data())
    settle(graph, *data())
    head.weight.grad = None
    graph(*data())

    assert torch.equal(head.weight, before)
    assert head.weight.grad is None  # eager: a gradient, and recorded calls give one


# --- no program ----------------------------------------------------------------------------------


def test_a_gradient_left_behind_makes_that_call_eager():
    model, optimizer = made()
    graph = Train(model, optimizer)
    settle(graph, *data())
    for none in (False, True):
        model(*data()).sum().backward()
        optimizer.zero_grad(set_to_none=none)
        with tg.testing.counters.expect(replays=int(none)):
            graph(*data())  # eager adds: to zeros too, and so does the Graph, at eager's speed


def test_an_argument_in_the_memory_of_a_state_makes_that_call_eager():
    model, optimizer = made()
    graph = Train(model, optimizer)
    x = torch.ones(6, 4)
    settle(graph, x)
    with tg.testing.counters.expect(replays=0), pytest.warns(EagerWarning, match="the memory of"):
        graph(model.first.weight.detach())  # clone() it
    with tg.testing.counters.expect(replays=1):
        graph(x)


def test_a_branch_on_the_value_of_a_tensor_is_a_program_for_each_side():
    graph = Function(lambda x: x if x.sum() > 0 else -x)
    x = torch.ones(2)
    with tg.testing.counters.expect(captures=2):
        for _ in range(4):
            assert graph(x).tolist() == graph(-x).tolist() == [1.0, 1.0]


# --- refused -------------------------------------------------------------------------------------


def test_a_text_that_grows_keeps_the_step_in_eager():
    class Counts(nn.Module):
        def __init__(self):
            super().__init__()
            self.calls = ""

        def forward(self, x):
            self.calls += "1"
            return x * len(self.calls)

    graph = Eval(Counts())
    with pytest.warns(AttributeReadAndWritten):
        assert [graph(torch.ones(())).item() for _ in range(6)] == [1.0, 2.0, 3.0, 4.0, 5.0, 6.0]


def test_values_that_leave_torch_are_refused():
    with pytest.raises(DataDependent):  # eager: runs
        Function(lambda x: x * float(x.sum().numpy()))(*data())


def test_an_argument_with_a_graph_is_refused():
    x = torch.ones(2, requires_grad=True) * 2
    with pytest.raises(UnsupportedInput):  # eager: the gradient flows on
        Function(lambda x: x + 1)(x)


def test_is_grad_enabled_and_modes_hold_at_the_call():
    model, optimizer = made()
    graph = Train(model, optimizer)
    with torch.no_grad(), pytest.raises(RuntimeError):  # a Graph that trains might set its own
        graph(*data())


def test_a_step_of_another_optimizer_than_the_graphs_is_refused():
    model, optimizer = made()
    other = torch.optim.SGD(model.parameters(), lr=1.0)

    def function(x):
        loss = model(x).sum()
        loss.backward()
        other.step()  # here
        return loss

    before = model.first.weight.detach().clone()
    with pytest.raises(OptimizerStepInBuild, match="# here"):  # eager: one update, not two
        Function(function, optimizer, model=model)(*data())
    assert torch.equal(model.first.weight, before)


def test_a_generator_of_the_users_own_is_drawn_from():
    own, other = (torch.Generator().manual_seed(0) for _ in range(2))
    graph = Function(lambda: torch.rand(2, generator=own))
    graph.config.set_fallback("eager")
    with pytest.warns(tg.errors.EagerWarning, match="Generator of its own"):
        got = [graph() for _ in range(5)]
    assert same(got, [torch.rand(2, generator=other) for _ in range(5)])
