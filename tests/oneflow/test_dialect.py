"""What OneFlow means otherwise is OneFlow's in code for OneFlow, and only there."""

import copy
import pickle

import pytest
import torch
from torch import nn

import torchgraph as tg
import torchgraph.oneflow as flow
from tests.support import settle
from torchgraph.porting.tensors import dialect

X = torch.tensor([-3, 3])


def module(name, text):
    """The names of a module with that text."""
    found = {"__name__": name}
    exec(compile(text, f"{name}.py", "exec"), found)
    return found


HALVED = "def halved(x):\n    return x // 2\n"


def test_who_asks_for_a_name_speaks_oneflow():
    assert flow.ones is torch.ones or flow.ones
    assert (X // 2).tolist() == [-1, 1]
    speaking = module("tests_a_script", f"import torchgraph.oneflow as flow\nflow.ones\n{HALVED}")
    assert speaking["halved"](X).tolist() == [-1, 1]


def test_another_module_sees_what_torch_means():
    assert module("tests_of_torch", HALVED)["halved"](X).tolist() == [-2, 1]


def test_a_module_that_imports_it_speaks_before_it_asks_for_a_name():
    text = f"import torchgraph.oneflow as flow\n{HALVED}"
    assert module("tests_imports_only", text)["halved"](X).tolist() == [-1, 1]


def test_a_module_that_takes_one_name_speaks():
    text = f"from torchgraph.oneflow.nn import Linear\n{HALVED}"
    assert module("tests_takes_one", text)["halved"](X).tolist() == [-1, 1]


def test_torch_itself_keeps_its_meaning():
    assert torch.remainder(X, 2).tolist() == [1, 1]
    assert torch.compile(module("tests_compiled", HALVED)["halved"], backend="eager")(
        X
    ).tolist() == [-2, 1]
    weight = nn.Parameter(torch.ones(2))
    with pytest.raises(RuntimeError, match="requires grad"):
        module("tests_numpy", "def taken(x):\n    return x.numpy()\n")["taken"](weight)
    assert weight.numpy().tolist() == [1, 1]


def test_code_without_a_name_speaks_when_it_imports():
    named = {}
    exec(f"from torchgraph.oneflow import nn\n{HALVED}", named)
    assert named["halved"](X).tolist() == [-1, 1]
    nameless = {}
    exec(HALVED, nameless)
    assert nameless["halved"](X).tolist() == [-2, 1]


def test_what_is_added_is_there_for_all():
    asks = module("tests_asks", "def asked(x):\n    return x.is_global, x.to_local()\n")["asked"]
    assert asks(X)[0] is False
    assert asks(X)[1] is X


def test_tensors_are_copied_pickled_and_exported_as_before():
    model = nn.Linear(2, 2)
    copied = pickle.loads(pickle.dumps(copy.deepcopy(model)))
    assert torch.equal(copied.weight, model.weight)
    program = torch.export.export(model, (torch.ones(1, 2),))
    assert torch.equal(program.module()(torch.ones(1, 2)), model(torch.ones(1, 2)))


@pytest.mark.parametrize(("speaks", "expected"), [(True, [-1, 1]), (False, [-2, 1])])
def test_a_graph_records_what_was_meant(speaks, expected):
    text = "import torchgraph as tg\nclass Halved(tg.Graph):\n    build = lambda self, x: x // 2\n"
    asked = "import torchgraph.oneflow as flow\nflow.ones\n" if speaks else ""
    graph = module(f"tests_graph_{speaks}", asked + text)["Halved"]()

    settle(graph, X)

    assert isinstance(graph, tg.Graph)
    assert graph(X).tolist() == expected
    assert graph.program.placeholders  # it runs as a program


def test_installing_twice_changes_nothing():
    before = torch.Tensor.to
    dialect.install()
    assert torch.Tensor.to is before
