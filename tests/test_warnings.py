"""Each warning that says what becomes of a step: which calls, why, where."""

import inspect
import itertools

import pytest
import torch

from tests.contract.models import Function
from tests.support import settle
from tests.test_errors import Wrong
from torchgraph import errors
from torchgraph.errors import GraphWarning


def test_warnings_are_one_family():
    found = {
        name
        for name, cls in vars(errors).items()
        if inspect.isclass(cls) and issubclass(cls, GraphWarning)
    }
    assert found == {
        "AttributeReadAndWritten", "AttributeWriteWarning", "BackendWarning", "CacheThrashWarning",
        "ConfirmWarning", "EagerWarning", "ExportWarning", "GraphWarning", "MemoryBudgetWarning",
        "MovingConstant", "MovingValue", "NotRepeatedWarning", "OutdatedCasts", "PaddingWarning",
        "SlowGuardsWarning", "UnknownFunctionWarning", "UnregisteredModuleWarning",
    }  # fmt: skip
    assert issubclass(GraphWarning, UserWarning)


def test_calls_that_cannot_be_a_program_beside_others_that_are_run_in_eager():
    numbers = itertools.count()

    def build(x):
        if x.sum() > 9:
            return x * next(numbers)  # HERE
        return x + 1

    graph = Function(build)
    settle(graph, torch.ones(1))
    with pytest.warns(errors.EagerWarning, match=r"(?s)test_warnings\.py:\d+.*# HERE.*Fix"):
        found = [graph(torch.full((1,), 10.0)).item() for _ in range(5)]
    assert found == [0, 10, 20, 30, 40]


def test_a_step_that_is_another_one_at_each_call_runs_in_eager():
    numbers = itertools.count(1)

    def build(x):
        for _ in range(next(numbers)):
            x = x + 1  # HERE
        return x

    graph = Function(build)
    with pytest.warns(errors.EagerWarning, match=r"(?s)test_warnings\.py:\d+.*# HERE") as found:
        returned = [graph(torch.ones(1)).item() for _ in range(9)]
    assert returned == [2, 3, 4, 5, 6, 7, 8, 9, 10]
    assert len(found) == 1


def test_a_program_that_is_wrong_is_not_used():
    def spoil(program):
        node = next(n for n in program.nodes if n.op == "call_function")
        node.args = (node.args[0], 2)

    graph = Function(lambda x: x + 1)
    graph.config.passes.insert(Wrong(spoil))
    graph(torch.ones(1))
    with pytest.warns(
        errors.ConfirmWarning, match="output 0 differs from eager's by up to 1.*by 'wrong'"
    ):
        graph(torch.ones(1))
    assert graph(torch.ones(1)).item() == 2
