"""What OneFlow means otherwise is OneFlow's in code for OneFlow, and only there."""

import copy
import inspect
import operator
import pickle
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from torch import nn

import torchgraph as tg
import torchgraph.oneflow as flow
from tests.support import settle
from torchgraph.oneflow._port.dialect import members, speakers

X = torch.tensor([-3, 3])


def module(name, text):
    """The names of a module with that text."""
    found = {"__name__": name}
    exec(compile(text, f"{name}.py", "exec"), found)
    return found


HALVED = "def halved(x):\n    return x // 2\n"
SHARED = "import torch\ndef shared(x):\n    return torch.Tensor(x)\n"


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
    assert nameless["halved"](X).tolist() == [-1, 1]  # as its caller, this module
    calls = module("tests_calls_nameless", "def called(halved, x):\n    return halved(x)\n")
    assert calls["called"](nameless["halved"], X).tolist() == [-2, 1]
    assert eval("x // 2", {"x": X}).tolist() == [-1, 1]


@pytest.mark.parametrize(
    ("text", "in_torch", "in_oneflow"),
    [
        ("functools.reduce(operator.floordiv, [x, 2]).tolist()", [-2, 1], [-1, 1]),
        ("next(itertools.starmap(operator.floordiv, [(x, 2)])).tolist()", [-2, 1], [-1, 1]),
        ("copy.copy(functools.partial(Tensor.argsort, x))().dtype", torch.int64, torch.int32),
        ("functools.partialmethod(Tensor.argsort).__get__(x)().dtype", torch.int64, torch.int32),
        ("contextlib.ExitStack().callback(Tensor.argsort, x)(x).dtype", torch.int64, torch.int32),
    ],
)
def test_pythons_own_library_acts_for_its_caller(text, in_torch, in_oneflow):
    given = "import contextlib, copy, functools, itertools, operator\nfrom torch import Tensor\n"
    given += f"def given(x):\n    return {text}\n"
    name = f"tests_acts_{abs(hash(text))}"
    assert module(name, given)["given"](X) == in_torch
    speaks = f"import torchgraph.oneflow as flow\n{given}"
    assert module(f"{name}_speaks", speaks)["given"](X) == in_oneflow


@pytest.mark.parametrize(("scripts", "expected"), [(True, [-1, 1]), (False, [-2, 1])])
def test_a_thread_without_code_of_a_script_speaks_as_scripts_do(scripts, expected, monkeypatch):
    monkeypatch.setattr(speakers, "_scripts_speak", scripts)
    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(operator.floordiv, X, 2).result().tolist() == expected
        assert pool.submit(X.argsort).result().dtype == torch.int32  # taken here, by a script


def test_to_look_at_a_module_is_not_to_speak():
    inspect.getmodule(inspect.currentframe())
    looked = module("tests_looks", f"def look(m):\n    return hasattr(m, '__file__')\n{HALVED}")
    looked["look"](flow.nn)
    assert looked["halved"](X).tolist() == [-2, 1]


@pytest.mark.parametrize("folder", ["lib/python3/dist-packages", ".local/lib/x/site-packages"])
def test_a_library_of_the_system_or_the_user_is_no_script(folder, monkeypatch):
    monkeypatch.setattr(speakers, "_scripts_speak", True)
    found = {"__name__": f"tests_library_{len(folder)}"}
    exec(compile(HALVED, f"/home/me/{folder}/library.py", "exec"), found)
    assert found["halved"](X).tolist() == [-2, 1]
    script = {"__name__": f"tests_script_{len(folder)}"}
    exec(compile(HALVED, "/home/me/script.py", "exec"), script)
    assert script["halved"](X).tolist() == [-1, 1]


@pytest.mark.filterwarnings("ignore:__array_wrap__")  # of torch itself
def test_beside_arrays_tensors_are_arrays():
    ones = np.ones(2, np.int64)
    assert isinstance(ones * X, np.ndarray)
    assert (np.array([3, -3]) // X).tolist() == [-1, -1]
    assert np.floor_divide(X, 2).tolist() == [-2, 1]
    assert isinstance(np.isnan(X.float()), np.ndarray)
    assert (ones == X).tolist() == [False, False]
    assert isinstance(np.int64(2) * X, np.ndarray)
    in_torch = module("tests_arrays", "def given(ufunc, x):\n    return ufunc(x)\n")["given"]
    assert isinstance(in_torch(np.abs, X), torch.Tensor)


def test_a_tensor_made_of_an_array_is_a_copy():
    array = np.zeros(2, np.float32)
    copied, shared = flow.Tensor(array), module("tests_shares", SHARED)["shared"](array)
    array[:] = 5
    assert copied.tolist() == [0, 0]
    assert shared.tolist() == [5, 5]
    tensor = torch.zeros(2)
    flow.Tensor(tensor).fill_(1)
    assert tensor.tolist() == [0, 0]
    for given in (array, tensor):
        before = given.tolist()
        flow.Tensor(given, device=flow.device("cpu")).fill_(7)
        assert given.tolist() == before
    assert isinstance(flow.Tensor(2, 3), flow.Tensor)


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
    members.install()
    assert torch.Tensor.to is before
