"""OneFlow's optimizers beside their numbers: arguments, groups, states, Graphs, users' classes."""

import copy
import io
import pickle

import numpy as np
import pytest
import torch
from torch import nn

import torchgraph as tg
from tests.passes.test_model_update import fuse, update_calls
from torchgraph.errors import GraphWarning, InvalidOption, UnsupportedOptimizer
from torchgraph.oneflow._port.graph.graph import Graph
from torchgraph.oneflow._port.optim.adadelta import Adadelta
from torchgraph.oneflow._port.optim.adagrad import Adagrad
from torchgraph.oneflow._port.optim.adam import Adam, AdamW
from torchgraph.oneflow._port.optim.base import Optimizer
from torchgraph.oneflow._port.optim.ftrl import Ftrl
from torchgraph.oneflow._port.optim.groups import ParamGroup
from torchgraph.oneflow._port.optim.lamb import LAMB
from torchgraph.oneflow._port.optim.rmsprop import RMSprop
from torchgraph.oneflow._port.optim.schedules.plain import CosineDecayLR
from torchgraph.oneflow._port.optim.schedules.warmup import WarmupLR
from torchgraph.oneflow._port.optim.sgd import SGD

MAKERS = {
    "SGD": lambda p: SGD(p, lr=0.1, momentum=0.9),
    "SGD, dampening": lambda p: SGD(p, lr=0.1, momentum=0.9, dampening=0.5),
    "Adam": lambda p: Adam(p, lr=0.01, weight_decay=0.1),
    "AdamW, amsgrad": lambda p: AdamW(p, lr=0.01, weight_decay=0.1, amsgrad=True),
    "AdamW, uncorrected": lambda p: AdamW(p, lr=0.01, do_bias_correction=False),
    "Adagrad": lambda p: Adagrad(p, lr=0.1, lr_decay=0.1),
    "Adadelta": lambda p: Adadelta(p, lr=0.5),
    "RMSprop": lambda p: RMSprop(p, lr=0.01, centered=True),
    "LAMB": lambda p: LAMB(p, lr=0.01, weight_decay=0.1),
    "FTRL": lambda p: Ftrl(p, lr=0.1, lambda1=0.01),
}
SAME_STEP = ("SGD", "Adam", "AdamW, amsgrad", "Adagrad", "Adadelta", "LAMB")


def model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 2))


class Step(tg.Graph):
    def __init__(self, module, optimizer, lr_sch=None):
        super().__init__()
        self.m = module
        self.add_optimizer(optimizer, lr_sch=lr_sch)

    def build(self, x):
        loss = self.m(x).square().mean()
        loss.backward()
        return loss


X = torch.linspace(-1, 1, 12).reshape(3, 4)


def trained(module, optimizer, steps, scheduler=None):
    losses = []
    for _ in range(steps):
        optimizer.zero_grad()
        loss = module(X).square().mean()
        loss.backward()
        optimizer.step()
        if scheduler is not None:
            scheduler.step()
        losses.append(loss.item())
    return losses


@pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS)
def test_a_graph_gives_what_eager_gives(make):
    here, there = model(), model()
    optimizer, other = make(here.parameters()), make(there.parameters())
    schedule = WarmupLR(CosineDecayLR(optimizer, 9))
    graph = Step(here, optimizer, schedule)
    found = [graph(X).item() for _ in range(5)]
    same = WarmupLR(CosineDecayLR(other, 9))
    assert found == trained(there, other, 5, same)
    assert schedule.last_step == same.last_step == 5
    assert schedule.get_last_lr() == same.get_last_lr()
    assert [isinstance(group, ParamGroup) for group in optimizer.param_groups] == [True]


@pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS)
def test_goes_on_from_its_state(make):
    first = model()
    optimizer = make(first.parameters())
    schedule = WarmupLR(CosineDecayLR(optimizer, 9))
    graph = Step(first, optimizer, schedule)
    for _ in range(3):
        graph(X)
    file = io.BytesIO()
    torch.save({"graph": graph.state_dict(), "optimizer": optimizer.state_dict()}, file)
    file.seek(0)
    saved = torch.load(file, weights_only=True)
    module = model()
    other = make(module.parameters())
    again = Step(module, other, WarmupLR(CosineDecayLR(other, 9)))
    again.load_state_dict(saved["graph"])
    eager = copy.deepcopy(module)
    third = make(eager.parameters())
    third.load_state_dict(saved["optimizer"])
    lrs = [group["lr"] for group in third.param_groups]
    assert lrs == [group["lr"] for group in optimizer.param_groups]
    losses = [graph(X).item() for _ in range(2)]
    assert [again(X).item() for _ in range(2)] == losses
    assert trained(eager, third, 1) == losses[:1]
    assert isinstance(third.param_groups[0], ParamGroup)


@pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS)
def test_copies_and_pickles(make):
    module = model()
    optimizer = make(module.parameters())
    trained(module, optimizer, 2)
    for twin in (copy.deepcopy(optimizer), pickle.loads(pickle.dumps(optimizer))):
        assert type(twin.param_groups[0]) is ParamGroup
        assert twin.param_groups[0].options == optimizer.param_groups[0].options
        assert len(twin.state) == len(optimizer.state)


@pytest.mark.parametrize("name", SAME_STEP)
def test_a_step_that_is_torchs_fuses_as_torchs(name):
    module = model()
    graph = Step(module, MAKERS[name](module.parameters()))
    fuse(graph.config)
    for _ in range(3):
        graph(X)
    assert [len(names) for names in update_calls(graph)][-1] == 1


class Doubled(SGD):
    """A step of the user's."""

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for parameter in group["params"]:
                parameter.add_(parameter.grad, alpha=-2 * group["lr"])


def test_a_users_step_is_not_taken_for_torchs():
    here, there = model(), model()
    graph = Step(here, Doubled(here.parameters(), lr=0.1))
    fuse(graph.config)
    eager = trained(there, Doubled(there.parameters(), lr=0.1), 4)
    assert [graph(X).item() for _ in range(4)] == eager
    assert not any(update_calls(graph))


def test_a_parameter_that_is_unfrozen_has_the_count_of_all():
    def run(step_of):
        module = model()
        optimizer = AdamW(module.parameters(), lr=0.1)
        module[2].requires_grad_(False)
        step = step_of(module, optimizer)
        for _ in range(3):
            step()
        module[2].requires_grad_(True)
        for _ in range(2):
            step()
        counts = [int(slots["step"]) for slots in optimizer.state.values()]
        return counts, [parameter.tolist() for parameter in module.parameters()]

    def eager(module, optimizer):
        return lambda: trained(module, optimizer, 1)

    def graph(module, optimizer):
        found = Step(module, optimizer)
        return lambda: found(X)

    assert run(eager)[0] == [5] * 4
    assert run(graph) == run(eager)


def test_zero_grad_leaves_zeros():
    module = model()
    optimizer = SGD(module.parameters())
    module(X).sum().backward()
    optimizer.zero_grad()
    assert all(torch.equal(p.grad, torch.zeros_like(p)) for p in module.parameters())
    optimizer.zero_grad(set_to_none=True)
    assert all(p.grad is None for p in module.parameters())


def test_groups_are_copies_with_names():
    parameter = nn.Parameter(torch.ones(2))
    given = {"params": parameter, "lr": 0.5}
    optimizer = Adam([given], lr=0.1)
    assert given == {"params": parameter, "lr": 0.5}
    (group,) = optimizer.param_groups
    assert group.parameters == [parameter]
    assert group.options["lr"] == 0.5
    assert "params" not in group.options
    more = {"params": [nn.Parameter(torch.ones(1))]}
    optimizer.add_param_group(more)
    assert list(more) == ["params"]
    assert optimizer.param_groups[1]["do_bias_correction"] is True


def test_clip_grad_of_a_group_that_does_not_ask_warns():
    optimizer = SGD([nn.Parameter(torch.ones(2))])
    with pytest.warns(UserWarning, match="To enable clip_grad"):
        optimizer.clip_grad()


def test_clip_grad_raises_for_a_norm_that_is_not_finite():
    parameter = nn.Parameter(torch.ones(2))
    group = {"params": [parameter], "clip_grad_max_norm": 1.0, "clip_grad_norm_type": 2.0}
    optimizer = SGD([group])
    parameter.grad = torch.tensor([float("inf"), 1.0])
    with pytest.raises(RuntimeError, match="non-finite"):
        optimizer.clip_grad(error_if_nonfinite=True)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda p: SGD([{"params": p, "clip_grad_max_norm": 1.0}]), "clips nothing"),
        (lambda p: Adadelta(p, maximize=True), "maximize"),
        (lambda p: Adadelta([{"params": p, "maximize": True}]), "maximize"),
        (lambda p: LAMB(p, amsgrad=True), "AMSGrad"),
        (lambda p: RMSprop(p, eps=-1.0), "Invalid eps"),
        (lambda p: RMSprop([{"params": p, "momentum": 0.5}]), "momentum"),
    ],
)
def test_refused(make, words):
    with pytest.raises(InvalidOption, match=words):
        make([nn.Parameter(torch.ones(2))])


@pytest.mark.parametrize(
    "make",
    [
        lambda p: SGD([{"params": p, "maximize": True}], lr=0.5, weight_decay=0.1),
        lambda p: SGD(p, lr=0.5, weight_decay=0.1, maximize=True),
    ],
)
def test_maximize_without_a_momentum_goes_down_and_says_so(make):
    up, down = (nn.Parameter(torch.ones(2)) for _ in range(2))
    with pytest.warns(GraphWarning, match="goes down"):
        optimizer = make([up])
    for each, one in ((up, optimizer), (down, SGD([down], lr=0.5, weight_decay=0.1))):
        each.grad = torch.ones(2)
        one.step()
    assert up.tolist() == down.tolist()
    assert down[0] < 1


def _ftrl_in_numpy(x, gradients, s, rate):
    """The formula of OneFlow's own test of its Graph."""
    n, z = np.full_like(x, s["initial_accumulator_value"]), np.zeros_like(x)
    for gradient in gradients:
        g = gradient + s["weight_decay"] * x
        after = n + g * g
        sigma = (np.power(after, s["lr_power"]) - np.power(n, s["lr_power"])) / rate
        n, z = after, z + g - sigma * x
        divisor = (s["beta"] + np.power(n, s["lr_power"])) / rate + s["lambda2"]
        x = np.where(np.abs(z) < s["lambda1"], 0.0, (np.sign(z) * s["lambda1"] - z) / divisor)
    return x


@pytest.mark.parametrize("in_graph", [False, True])
@pytest.mark.parametrize("lambda1", [0.0, 0.9])
def test_ftrl_has_the_formula_of_oneflow(lambda1, in_graph):
    settings = {"weight_decay": 0.1, "lr_power": -0.4, "initial_accumulator_value": 0.2}
    settings |= {"lambda1": lambda1, "lambda2": 0.3, "beta": 0.7}
    draw = np.random.default_rng(0)
    first, *gradients = draw.uniform(-1, 1, (6, 8)).astype(np.float32)
    parameter = nn.Parameter(torch.tensor(first))
    optimizer = Ftrl([{"params": [parameter], **settings}], lr=0.3)
    if in_graph:
        graph = Multiplies(parameter, optimizer)
        for gradient in gradients:
            graph(torch.tensor(gradient))
    else:
        for gradient in gradients:
            parameter.grad = torch.tensor(gradient)
            optimizer.step()
    right = _ftrl_in_numpy(first, gradients, settings, 0.3)
    assert np.allclose(parameter.detach().numpy(), right, rtol=1e-5, atol=1e-6)
    assert bool((parameter == 0).any()) == (lambda1 > 0)


class Multiplies(Graph):
    """The gradient is the argument."""

    def __init__(self, parameter, optimizer):
        super().__init__()
        self.model = nn.ParameterList([parameter])
        self.add_optimizer(optimizer)

    def build(self, x):
        (self.model[0] * x).sum().backward()


def test_what_is_no_list_of_parameters_is_a_type_error():
    for make in (SGD, Adam, Adagrad, Adadelta, RMSprop, LAMB):
        with pytest.raises(TypeError, match="iterable of Tensors or dicts"):
            make(torch.ones(2))


@pytest.mark.parametrize("cls", [SGD, Adam, AdamW])
def test_fused_on_the_cpu_warns_and_gives_the_same(cls):
    module = model()
    with pytest.warns(UserWarning, match=f"Fused {cls.__name__} only support cuda"):
        optimizer = cls(module.parameters(), lr=0.1, fused=True, contiguous_params=True)
    other = model()
    assert trained(module, optimizer, 3) == trained(other, cls(other.parameters(), lr=0.1), 3)


class Ascending(Optimizer):
    """Written for OneFlow: its own state, and groups with parameters."""

    def __init__(self, params, lr=0.1):
        super().__init__(params, {"lr": lr})
        for group in self.param_groups:
            for parameter in group.parameters:
                self._state[parameter] = {}

    def step(self, closure=None):
        with torch.no_grad():
            for group in self.param_groups:
                for parameter in group.parameters:
                    self._state[parameter]["last"] = parameter.grad.clone()
                    parameter.add_(parameter.grad, alpha=group["lr"])
        self._state["step"] = self._state["step"] + 1


def test_a_users_optimizer_written_for_oneflow():
    parameter = nn.Parameter(torch.zeros(2))
    optimizer = Ascending([parameter], lr=0.5)
    for _ in range(2):
        parameter.sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    assert parameter.tolist() == [1.0, 1.0]
    saved = optimizer.state_dict()
    assert saved["state"]["step"] == 2
    again = Ascending([nn.Parameter(torch.zeros(2))])
    again.load_state_dict(saved)
    assert again._state["step"] == 2
    assert again.param_groups[0]["lr"] == 0.5


class Plain(Optimizer):
    """With the state by parameter alone, as in torch."""

    def __init__(self, params, lr=0.1):
        super().__init__(params, {"lr": lr})

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for parameter in group.parameters:
                parameter.add_(parameter.grad, alpha=-group["lr"])


def test_a_users_optimizer_in_a_graph():
    here, there = model(), model()
    graph = Step(here, Plain(here.parameters()))
    assert [graph(X).item() for _ in range(3)] == trained(there, Plain(there.parameters()), 3)


def test_tables_may_be_updated_row_by_row_by_a_plain_sgd_alone():
    class Lookup(tg.Graph):
        def __init__(self, optimizer, table):
            super().__init__()
            self.table = table
            self.add_optimizer(optimizer, is_sparse=True)

        def build(self, rows):
            loss = self.table(rows).sum()
            loss.backward()
            return loss

    table = nn.Embedding(64, 2)
    before = table.weight.detach().clone()
    graph = Lookup(SGD(table.parameters(), lr=0.5), table)
    graph(torch.tensor([3]))
    graph(torch.tensor([3]))
    moved = (table.weight - before).abs().sum(1).nonzero().flatten()
    assert moved.tolist() == [3]
    assert torch.allclose(table.weight[3], before[3] - 1)
    for optimizer in (Adam(table.parameters()), SGD(table.parameters(), dampening=0.5)):
        with pytest.raises(UnsupportedOptimizer, match="is_sparse=True"):
            Lookup(optimizer, table)
