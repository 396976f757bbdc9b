"""Each error, by the example of its docstring: what, where in the user's code, the way out."""

import inspect
import re
from unittest import mock

import pytest
import torch
from torch import nn

import torchgraph as tg
from tests.contract.models import Eval, Function, Net, Train, adam, again, data
from tests.support import settle
from torchgraph import errors
from torchgraph.errors import GraphError, SourceLine
from torchgraph.passes import Pass


def raised(name):
    """Decorator: the function triggers the error of that name."""

    def keep(function):
        EXAMPLES[name] = function
        return function

    return keep


EXAMPLES: dict = {}


@raised("GraphNotInitialized")
def _():
    class Step(tg.Graph):
        def __init__(self):
            self.model = nn.Linear(1, 1)
            super().__init__()

    Step()


@raised("BuildNotOverridden")
def _():
    tg.Graph()(torch.ones(1))


@raised("OptimizerAttribute")
def _():
    Eval(nn.Linear(1, 1)).optimizer = torch.optim.SGD([nn.Parameter(torch.ones(1))])


@raised("TensorAttribute")
def _():
    Eval(nn.Linear(1, 1)).scale = torch.ones(1)


@raised("ModuleNameTaken")
def _():
    Eval(nn.Linear(1, 1)).config = nn.Linear(2, 2)


@raised("NestedGraph")
def _():
    inner = Function(lambda x: x)
    Function(lambda x: inner(x))(torch.ones(1))


@raised("NotSupported")
def _():
    Eval(nn.Linear(1, 1)).config.enable_auto_parallel(True)


@raised("CudaGraphRefused")
def _():
    graph = Eval(nn.Linear(4, 2))
    graph.config.set_cuda_graph("require")
    again(graph, *data())


@raised("InvalidOption")
def _():
    Eval(nn.Linear(1, 1)).config.set_cache_size(0)


@raised("UnknownName")
def _():
    Eval(nn.Linear(1, 1)).config.enable_ampp(True)


@raised("NotAnOptimizer")
def _():
    Eval(nn.Linear(1, 1)).add_optimizer(None)


@raised("UnsupportedOptimizer")
def _():
    model = nn.Linear(4, 1)
    Train(model, torch.optim.LBFGS(model.parameters()))(*data())


@raised("ParameterOutsideGraph")
def _():
    Train(nn.Linear(4, 1), adam(nn.Linear(1, 1)))(*data())


@raised("ParameterInTwoOptimizers")
def _():
    model = nn.Linear(4, 1)
    graph = Train(model, adam(model))
    graph.add_optimizer(adam(model))
    graph(*data())


@raised("OptimizerWithoutBackward")
def _():
    model = nn.Linear(4, 1)
    Function(lambda x: model(x), adam(model), model=model)(*data())


@raised("BackwardWithoutOptimizer")
def _():
    model = nn.Linear(4, 1)
    Function(lambda x: model(x).sum().backward(), model=model)(*data())  # HERE


@raised("NonScalarBackward")
def _():
    model = nn.Linear(4, 1)
    Function(lambda x: model(x).backward(), adam(model), model=model)(*data())  # HERE


@raised("GradPresent")
def _():
    model = nn.Linear(4, 1)
    model(*data()).sum().backward()
    Train(model, adam(model)).check(*data())


@raised("SchedulerSteppedTwice")
def _():
    model = nn.Linear(4, 1)
    optimizer = adam(model)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1)
    graph = Train(model, optimizer, scheduler)
    graph(*data())
    scheduler.step()
    graph(*data())


@raised("SchedulerNeedsLoss")
def _():
    model = nn.Linear(4, 1)
    optimizer = adam(model)
    graph = Function(lambda x: model(x).sum().backward(), model=model)
    graph.add_optimizer(optimizer, lr_sch=torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer))
    graph(*data())


@raised("NoProgram")
def _():
    class Convolution(nn.Module):
        adjacency = torch.eye(4).to_sparse()

        def forward(self, x):
            return torch.sparse.mm(self.adjacency, x)  # HERE

    Eval(Convolution())(torch.ones(4, 4))


@raised("DataDependent")
def _():
    Function(lambda x: torch.from_numpy(x.numpy()))(torch.ones(2))  # HERE


@raised("OptimizerStepInBuild")
def _():
    model = nn.Linear(4, 1)
    optimizer = adam(model)

    def build(x):
        model(x).sum().backward()
        optimizer.step()  # HERE

    graph = Function(build, optimizer, model=model)
    graph.config.set_gradient_accumulation_steps(5)
    graph(*data())


@raised("RandomStateTouched")
def _():
    Function(lambda x: (torch.manual_seed(0), torch.rand(2))[1])(torch.ones(1))


@raised("PaddingRefused")
def _():
    def build(x):
        return x - x.mean(0)  # HERE

    graph = Function(build)
    graph.config.set_shape_buckets(0, [8])
    graph(torch.ones(3, 2))


@raised("SharedMemory")
def _():
    model = nn.Linear(4, 1)
    other = nn.Parameter(model.weight.data.view(-1))
    model.flat = other

    def build(x):
        (model(x).sum() + model.flat.sum()).backward()

    again(Function(build, torch.optim.SGD(model.parameters(), 0.1), model=model), *data())


@raised("UnsupportedInput")
def _():
    Function(lambda x, y: x)(torch.ones(1), [object(), iter([1, 2])])


@raised("UnsupportedOutput")
def _():
    Function(lambda x: (x * i for i in range(3)))(torch.ones(1))


@raised("GraphBroken")
def _():
    graph = Function(lambda x: x + 1)
    graph(torch.ones(1))
    graph._runner.cache.broken = "ValueError: disk full"
    graph(torch.ones(1))


disk_full = False


@torch.library.custom_op("torchgraph_tests::saves", mutates_args=())
def saves(x: torch.Tensor) -> torch.Tensor:
    """Fails when the disk is full."""
    if disk_full:
        raise ValueError("out of luck")
    return x.clone()


@saves.register_fake
def _(x):
    return torch.empty_like(x)


@raised("StepFailed")
def _():
    model = nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    hook = lambda *_: model.bias.data.add_(saves(model.weight[0]))  # noqa: E731  # HERE
    optimizer.register_step_post_hook(hook)
    graph = Train(model, optimizer)
    graph.config.set_look_again("off")
    settle(graph, torch.ones(1, 1))
    with mock.patch(f"{__name__}.disk_full", True):
        graph(torch.ones(1, 1))


@raised("StateDictMismatch")
def _():
    Eval(nn.Linear(1, 1)).load_state_dict({"model": {"weight": torch.ones(7)}})


@raised("NotSavable")
def _():
    tg.save({"rate": lambda step: 0.1}, "checkpoint")


@raised("CheckpointFileError")
def _():
    tg.save({}, "no/such/folder/file")


@raised("CheckpointNotFound")
def _():
    tg.load("nowhere")


@raised("CheckpointDamaged")
def _():
    tg.load(__file__)


@raised("NotCompiled")
def _():
    Eval(nn.Linear(1, 1)).program  # noqa: B018


class Wrong(Pass):
    """Raises, or writes what is no legal program."""

    name = "wrong"

    def __init__(self, action):
        self.action = action

    def exact(self, program):
        return True

    def apply(self, program, edit):
        self.action(program)


@raised("VerifyError")
def _():
    def spoil(program):
        next(n for n in program.nodes if n.op == "call_function").meta.pop("val")

    graph = Function(lambda x: x + 1)
    graph.config.passes.insert(Wrong(spoil))
    again(graph, torch.ones(1))


@raised("PassFailed")
def _():
    graph = Function(lambda x: x + 1)
    graph.config.passes.insert(Wrong(lambda program: [].pop()))
    again(graph, torch.ones(1))


@raised("NotExportable")
def _():
    again(graph := Function(lambda x: x * 2 if x.sum() > 0 else x), torch.ones(2, 4))
    tg.export(graph, "never.pt2")


@raised("ParityError")
def _():
    numbers = iter(range(9))

    def make():
        model = Net()
        return tg.testing.Setup(model, None, lambda m, x: m(x).sum() * 0 + next(numbers))

    tg.testing.assert_parity(make, [(x,) for x in data(2)])


# Of no use before a GPU, several programs or a grad scaler: tested there.
ELSEWHERE = {"CallNotSaved", "DeviceMismatch", "CaptureError", "GraphError"}
ELSEWHERE |= {"GradientNotFinal", "ScalerInBuild", "NoHistory", "HistoryTooShort", "HistoryDiffers"}


def catalogue():
    classes = {name: cls for name, cls in vars(errors).items() if inspect.isclass(cls)}
    return {name: cls for name, cls in classes.items() if issubclass(cls, GraphError)}


def test_every_error_has_an_example():
    assert set(EXAMPLES) == set(catalogue()) - ELSEWHERE


@pytest.mark.parametrize("name", EXAMPLES)
def test_an_error_says_what_where_and_what_to_do(name):
    cls = catalogue()[name]
    with pytest.raises(cls) as found:
        EXAMPLES[name]()
    error, text = found.value, str(found.value)

    assert type(error) is cls
    assert error.what
    assert text.startswith(error.what)
    assert "0x" not in text  # no addresses
    if "# HERE" in inspect.getsource(EXAMPLES[name]) and name != "BackwardWithoutOptimizer":
        assert isinstance(error.where, SourceLine)
        assert error.where.filename == __file__
        assert re.search(r"test_errors\.py:\d+ in .*# HERE", text)
    if cls.fix:
        assert f"\n  Fix: {error.way_out}" in text
    assert isinstance(error, RuntimeError)


def test_every_error_has_a_way_out_or_the_message_is_one():
    """These explain themselves: the reason is in the message, or the failure is torchgraph's."""
    without = {name for name, cls in catalogue().items() if not cls.fix}
    assert without == {
        "CaptureError", "GraphError", "InvalidOption", "NotSupported", "ParityError", "PassFailed",
        "StateDictMismatch", "StepFailed", "UnknownName", "VerifyError",
    }  # fmt: skip


def test_every_docstring_shows_what_triggers_it():
    vague = {
        name
        for name, cls in {**catalogue()}.items()
        if not re.search(r"``|calling|call after|optimizer over|two optimizers|state that|op of|"
                         r"program that|pass raised|random draws|base of|found the first|does some",
                         (cls.__doc__ or "").lower())
    }  # fmt: skip
    assert vague == set()


def test_a_message_of_a_key_error_is_no_repr():
    with pytest.raises(KeyError) as found:
        EXAMPLES["ModuleNameTaken"]()
    assert "\n" in str(found.value)
    assert not str(found.value).startswith("'")
