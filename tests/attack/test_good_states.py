"""Good states load: of every optimizer and scheduler of torch, through a file, at any time."""

import copy
import warnings

import pytest
import torch
from torch import nn, optim
from torch.optim import lr_scheduler as lr
from torch.optim.optimizer import register_optimizer_step_post_hook

import torchgraph as tg
from tests.attack.test_damaged_states import OPTIMIZERS, same_bits
from tests.contract.models import Train


class Mine(optim.Optimizer):
    """An optimizer of a user's, with slots of all kinds."""

    def __init__(self, parameters):
        super().__init__(parameters, {"lr": 0.1, "bound": None, "mode": "plain"})

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for parameter in group["params"]:
                slots = self.state[parameter]
                slots["count"] = slots.get("count", 0) + 1
                slots.setdefault("last", []).append(parameter.grad.clone())
                slots.setdefault("mask", parameter > 0)
                parameter.sub_(parameter.grad, alpha=group["lr"])


ALL = {
    **OPTIMIZERS,
    "Adadelta": optim.Adadelta,
    "Adam": lambda p: optim.Adam(p, lr=torch.tensor(0.1), foreach=False),
    "Adamax": optim.Adamax,
    "AdamW, amsgrad": lambda p: optim.AdamW(p, amsgrad=True, maximize=True),
    "AdamW, fused": lambda p: optim.AdamW(p, fused=True),
    "LBFGS": optim.LBFGS,
    "Mine": Mine,
    "Muon": optim.Muon,
    "RAdam": optim.RAdam,
    "Rprop": optim.Rprop,
    "SGD, plain": optim.SGD,
}


def made(make, schedule=lambda o: None):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 4, bias=False), nn.Linear(4, 2, bias=False))
    optimizer = make(model.parameters())
    return Train(model, optimizer, schedule(optimizer))


def stepped(graph, count=3):
    """In eager: what a Graph holds need not come from its own steps."""
    optimizer, (*schedulers,) = graph._runner.step.optimizers[0], graph._runner.step.schedulers
    for number in range(count):
        for parameter in graph._modules["model"].parameters():
            parameter.grad = torch.full_like(parameter, number + 1.0)
        optimizer.step(lambda: torch.ones(()))
        for scheduler in schedulers:
            plateau = isinstance(scheduler, lr.ReduceLROnPlateau)
            scheduler.step(1.0) if plateau else scheduler.step()
        optimizer.zero_grad()
    return graph


def check(make, schedule, folder):
    source, fresh, trained = (made(make, schedule) for _ in range(3))
    early = copy.deepcopy(source.state_dict())
    tg.save(stepped(source).state_dict(), folder / "state")
    for graph in (fresh, stepped(trained, 2)):
        graph.load_state_dict(tg.load(folder / "state"))
        graph.load_state_dict(copy.deepcopy(source.state_dict()))
        found, expected = graph.state_dict(), source.state_dict()
        if make is Mine:  # torch casts the mask to floats
            found, expected = found["model"], expected["model"]
        assert same_bits(found, expected)
    stepped(source)
    assert same_bits(stepped(fresh).state_dict()["model"], source.state_dict()["model"])
    fresh.load_state_dict(early)
    assert same_bits(fresh.state_dict()["_train"], early["_train"])


@pytest.mark.parametrize("name", ALL)
def test_a_state_of_any_optimizer_loads(name, tmp_path):
    check(ALL[name], lambda o: None, tmp_path)


SCHEDULERS = {
    "ChainedScheduler": lambda o: lr.ChainedScheduler([lr.ConstantLR(o), lr.LinearLR(o)], o),
    "ConstantLR": lr.ConstantLR,
    "CosineAnnealingLR": lambda o: lr.CosineAnnealingLR(o, 5),
    "CosineAnnealingWarmRestarts": lambda o: lr.CosineAnnealingWarmRestarts(o, 2),
    "CyclicLR": lambda o: lr.CyclicLR(o, 0.1, 0.2, 2, cycle_momentum=True),
    "CyclicLR, scale": lambda o: lr.CyclicLR(o, 0.1, 0.2, 2, scale_fn=lambda x: 0.5),
    "ExponentialLR": lambda o: lr.ExponentialLR(o, 0.9),
    "LambdaLR": lambda o: lr.LambdaLR(o, lambda epoch: 0.9**epoch),
    "LinearLR": lr.LinearLR,
    "MultiStepLR": lambda o: lr.MultiStepLR(o, [1, 1, 4]),
    "MultiplicativeLR": lambda o: lr.MultiplicativeLR(o, lambda epoch: 0.9),
    "OneCycleLR": lambda o: lr.OneCycleLR(o, 0.1, 6),  # at its end after the second time
    "PolynomialLR": lr.PolynomialLR,
    "ReduceLROnPlateau": lr.ReduceLROnPlateau,
    "SequentialLR": lambda o: lr.SequentialLR(o, [lr.ConstantLR(o), lr.StepLR(o, 2)], [2]),
    "StepLR": lambda o: lr.StepLR(o, 2),
}


@pytest.mark.filterwarnings("ignore:Detected call of `lr_scheduler.step")
@pytest.mark.parametrize("name", SCHEDULERS)
def test_a_state_of_any_scheduler_loads(name, tmp_path):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        check(OPTIMIZERS["SGD"], SCHEDULERS[name], tmp_path)


def test_a_state_at_the_end_of_a_cycle_loads():
    source, other = (made(OPTIMIZERS["SGD"], lambda o: lr.OneCycleLR(o, 0.1, 3)) for _ in range(2))
    stepped(source)
    other.load_state_dict(copy.deepcopy(source.state_dict()))
    other.load_state_dict(copy.deepcopy(source.state_dict()))


def test_settings_of_schedulers_that_are_not_given_may_come_and_go():
    plain, scheduled = made(OPTIMIZERS["AdamW"]), made(OPTIMIZERS["AdamW"])
    lr.OneCycleLR(scheduled._runner.step.optimizers[0], 0.1, 9)
    states = [copy.deepcopy(graph.state_dict()) for graph in (plain, scheduled)]
    for graph in (plain, scheduled):
        for state in (*states, *states):
            graph.load_state_dict(state)


def test_no_hook_of_the_user_hears_of_a_step_that_is_tried():
    heard = []
    graph = stepped(made(OPTIMIZERS["AdamW"]))
    hook = register_optimizer_step_post_hook(lambda *_: heard.append(1))
    try:
        graph.load_state_dict(copy.deepcopy(graph.state_dict()))
    finally:
        hook.remove()
    assert heard == []
