"""Good states load: of every optimizer and scheduler, through a file, at any time."""

import copy
import warnings

import pytest
import torch
from torch import nn
from torch.optim import lr_scheduler as lr
from torch.optim.optimizer import register_optimizer_step_post_hook

import torchgraph as tg
from tests.attack.states import OPTIMIZERS, SCHEDULES, none, same_bits
from tests.contract.models import Train


def made(make, schedule=none):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 4, bias=False), nn.Linear(4, 2, bias=False))
    optimizer = make(model.parameters())
    return Train(model, optimizer, schedule(optimizer))


def stepped(graph, count=3):
    """In eager: what a Graph holds need not come from its own steps."""
    optimizer, (*schedulers,) = graph._runner.live.optimizers[0], graph._runner.live.schedulers
    for number in range(count):
        for parameter in graph._modules["model"].parameters():
            parameter.grad = torch.full_like(parameter, number + 1.0)
        optimizer.step(lambda: torch.ones(()))
        for scheduler in schedulers:
            plateau = isinstance(scheduler, lr.ReduceLROnPlateau)
            scheduler.step(1.0) if plateau else scheduler.step()
        optimizer.zero_grad()
    return graph


OTHERWISE = {"slots of all kinds", "a user's", "sequence of users"}
"""torch casts a mask to floats, and leaves the attributes that a schedule has got since."""
PAIRS = [*((name, "none") for name in OPTIMIZERS), *(("SGD", name) for name in SCHEDULES)]


@pytest.mark.filterwarnings("ignore:Detected call of `lr_scheduler.step")
@pytest.mark.parametrize(("name", "schedule"), PAIRS)
def test_a_state_of_any_time_loads_at_any_time(name, schedule, tmp_path):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        source, fresh, trained = (made(OPTIMIZERS[name], SCHEDULES[schedule]) for _ in range(3))
        early = copy.deepcopy(source.state_dict())
        first = copy.deepcopy(stepped(source, 1).state_dict())
        tg.save(stepped(source, 2).state_dict(), tmp_path / "state")
        for graph in (fresh, stepped(trained, 2)):
            graph.load_state_dict(tg.load(tmp_path / "state"))
            graph.load_state_dict(copy.deepcopy(source.state_dict()))
            found, expected = graph.state_dict(), source.state_dict()
            if name == "slots of all kinds":
                found, expected = found["model"], expected["model"]
            assert same_bits(found, expected)
        stepped(source)
        assert same_bits(stepped(fresh).state_dict()["model"], source.state_dict()["model"])
        for state in (first, early):
            fresh.load_state_dict(copy.deepcopy(state))
            if not {name, schedule} & OTHERWISE:
                assert same_bits(fresh.state_dict()["_train"], state["_train"])
        again = made(OPTIMIZERS[name], SCHEDULES[schedule])
        assert same_bits(stepped(fresh).state_dict()["model"], stepped(again).state_dict()["model"])


def test_a_state_at_the_end_of_a_cycle_loads():
    source, other = (made(OPTIMIZERS["SGD"], lambda o: lr.OneCycleLR(o, 0.1, 3)) for _ in range(2))
    stepped(source)
    other.load_state_dict(copy.deepcopy(source.state_dict()))
    other.load_state_dict(copy.deepcopy(source.state_dict()))


def test_settings_of_schedulers_that_are_not_given_may_come_and_go():
    plain, scheduled = made(OPTIMIZERS["AdamW"]), made(OPTIMIZERS["AdamW"])
    lr.OneCycleLR(scheduled._runner.live.optimizers[0], 0.1, 9)
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
