"""Every scheduler of torch: thirty steps with the Graph stepping it, bitwise equal to eager."""

import copy
import io
import warnings

import pytest
import torch
from torch import nn, optim
from torch.optim import lr_scheduler as sch

import torchgraph as tg
from tests.parity.models import Mlp, batches, cross_entropy, setup
from tests.support import by_name, thinned
from torchgraph.errors import NotAnOptimizer, SchedulerNeedsLoss, SchedulerSteppedTwice
from torchgraph.testing import assert_parity, counters

STEPS = 30


def sgd(parameters):
    return optim.SGD(parameters, lr=0.1, momentum=0.9)


def plain(parameters):
    return optim.SGD(parameters, lr=0.1)


def adam(parameters):
    return optim.AdamW(parameters, lr=0.05)


SCHEDULERS = {
    "ChainedScheduler": lambda o: sch.ChainedScheduler(
        [sch.ConstantLR(o, 0.5, total_iters=4), sch.ExponentialLR(o, 0.9)]
    ),
    "ConstantLR": lambda o: sch.ConstantLR(o, factor=0.3, total_iters=8),
    "CosineAnnealingLR": lambda o: sch.CosineAnnealingLR(o, T_max=12, eta_min=0.001),
    "CosineAnnealingWarmRestarts": lambda o: sch.CosineAnnealingWarmRestarts(o, T_0=4, T_mult=2),
    "CyclicLR": lambda o: sch.CyclicLR(o, 0.01, 0.2, step_size_up=5),
    "ExponentialLR": lambda o: sch.ExponentialLR(o, 0.95),
    "LambdaLR": lambda o: sch.LambdaLR(o, lambda n: 1 / (1 + n)),
    "LinearLR": lambda o: sch.LinearLR(o, start_factor=0.2, total_iters=12),
    "MultiStepLR": lambda o: sch.MultiStepLR(o, [4, 9, 20], gamma=0.4),
    "MultiplicativeLR": lambda o: sch.MultiplicativeLR(o, lambda n: 0.97),
    "OneCycleLR": lambda o: sch.OneCycleLR(o, max_lr=0.2, total_steps=STEPS + 1),
    "PolynomialLR": lambda o: sch.PolynomialLR(o, total_iters=20, power=2.0),
    "SequentialLR": lambda o: sch.SequentialLR(
        o, [sch.LinearLR(o, 0.1, total_iters=5), sch.CosineAnnealingLR(o, 20)], [5]
    ),
    "StepLR": lambda o: sch.StepLR(o, step_size=3, gamma=0.7),
}


def moving_momentum(optimizer):
    return sch.CyclicLR(optimizer, 0.01, 0.2, step_size_up=5, cycle_momentum=True)


OFTEN = ("ChainedScheduler", "CyclicLR", "LambdaLR", "OneCycleLR", "SequentialLR", "StepLR")
"""Of `make test`: those of others, that move a momentum, by a function of the user's, by a step."""


@pytest.mark.parametrize("name", thinned(SCHEDULERS, keep=OFTEN))
@pytest.mark.parametrize("make", [sgd, pytest.param(adam, marks=pytest.mark.slow)])
def test_thirty_steps_are_bitwise_eager(name, make):
    # Adam's momentum is a beta.
    schedule = moving_momentum if name == "CyclicLR" and make is adam else SCHEDULERS[name]
    recorded = 2 if make is adam else 3  # SGD's first momentum is a gradient
    with counters.expect(captures=1, replays=STEPS - recorded):
        assert_parity(setup(Mlp, make, schedule), batches(Mlp, STEPS))


def test_every_scheduler_of_torch_is_here():
    public = {
        name
        for name in dir(sch)
        if isinstance(getattr(sch, name), type)
        and issubclass(getattr(sch, name), sch.LRScheduler)
        and not name.startswith("_")
    }

    assert public - {"LRScheduler", "ReduceLROnPlateau"} == set(SCHEDULERS)


class Zigzag(sch.LRScheduler):
    """One of the user's."""

    def get_lr(self):
        return [base * (0.5 if self.last_epoch % 2 else 1.0) for base in self.base_lrs]


def plateau(optimizer):
    """A loss that falls is no progress here, so that the rate is reduced soon."""
    return sch.ReduceLROnPlateau(optimizer, "max", factor=0.5, patience=1)


def by_tensor(parameters):
    return optim.Adam(parameters, lr=torch.tensor(0.05))


def averaging(optimizer):
    return optim.swa_utils.SWALR(optimizer, swa_lr=0.01, anneal_epochs=5)


@pytest.mark.parametrize(
    ("make", "schedule"),
    [
        (plain, SCHEDULERS["StepLR"]),
        (plain, Zigzag),
        (adam, averaging),
        (adam, plateau),
        (by_tensor, SCHEDULERS["ExponentialLR"]),
    ],
    ids=["no momentum", "a user's", "SWALR", "plateau", "a rate in a tensor"],
)
def test_twelve_steps_need_one_program(make, schedule):
    with counters.expect(captures=1):
        assert_parity(setup(Mlp, make, schedule), batches(Mlp, 12))


class Step(tg.Graph):
    """Returns what the test asks for, with the loss somewhere in it or not."""

    def __init__(self, model, optimizer, scheduler, returned=lambda loss: loss):
        super().__init__()
        self.model = model
        self.returned = returned
        self.add_optimizer(optimizer, lr_sch=scheduler)

    def build(self, x, y):
        loss = cross_entropy(self.model, x, y)
        loss.backward()
        return self.returned(loss)


def made(schedule, make=sgd):
    model = Mlp().eval()
    optimizer = make(model.parameters())
    return model, optimizer, schedule(optimizer)


@pytest.mark.parametrize(
    "returned",
    [
        lambda loss: loss,
        lambda loss: {"accuracy": loss * 0 + 1, "loss": loss},
        lambda loss: (loss.detach() + 1, [loss]),
    ],
)
def test_reduce_on_plateau_is_given_the_returned_loss(returned):
    def eager():
        torch.manual_seed(0)
        model, optimizer, scheduler = made(plateau)
        for batch in batches(Mlp, 1) * STEPS:
            loss = cross_entropy(model, *batch)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            scheduler.step(loss.detach())
            yield optimizer.param_groups[0]["lr"]

    expected = list(eager())
    torch.manual_seed(0)
    model, optimizer, scheduler = made(plateau)
    step = Step(model, optimizer, scheduler, returned)
    got = []
    for batch in batches(Mlp, 1) * STEPS:
        step(*batch)
        got.append(optimizer.param_groups[0]["lr"])

    assert got == expected
    assert got[-1] < 0.1  # it did reduce


def test_reduce_on_plateau_without_the_loss_is_refused_before_anything_changes():
    model, optimizer, scheduler = made(plateau)
    step = Step(model, optimizer, scheduler, lambda loss: loss.detach() * 2)
    before = [p.detach().clone() for p in model.parameters()]

    with pytest.raises(SchedulerNeedsLoss):
        step(*batches(Mlp, 1)[0])

    assert all(torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))
    assert not optimizer.state
    assert scheduler.last_epoch == 0


LOADED = ("StepLR", "ChainedScheduler", "SequentialLR", "OneCycleLR")


@pytest.mark.parametrize("schedule", [*map(SCHEDULERS.get, LOADED), plateau], ids=by_name)
def test_stepped_by_the_user_as_well(schedule):
    model, optimizer, scheduler = made(schedule)
    step = Step(model, optimizer, scheduler)
    batch = batches(Mlp, 1)[0]
    loss = step(*batch)
    scheduler.step(*([loss] if schedule is plateau else []))
    before = [p.detach().clone() for p in model.parameters()]

    with pytest.raises(SchedulerSteppedTwice, match=type(scheduler).__name__):
        step(*batch)

    assert all(torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))


def through_a_file(state):
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    return torch.load(file, weights_only=False)


@pytest.mark.parametrize("name", thinned(LOADED, keep=["ChainedScheduler", "OneCycleLR"]))
@pytest.mark.parametrize("kept", thinned([copy.deepcopy, through_a_file], keep=[copy.deepcopy]))
@pytest.mark.parametrize("order", [(3, 6), (6, 3), pytest.param((3, 3), marks=pytest.mark.slow)])
def test_a_state_that_is_loaded_between_two_calls(name, kept, order):
    """Of earlier, of later, of now: each part by its own ``load_state_dict``, as in scripts."""

    def train(step, parts):
        states = {}
        for number, batch in enumerate(batches(Mlp, 7)):
            states[number] = kept([part.state_dict() for part in parts])
            yield step(*batch)
        for number in order:
            for part, state in zip(parts, kept(states[number]), strict=True):
                part.load_state_dict(state)
            yield step(*batch)
        yield from (value.clone() for value in parts[0].state_dict().values())
        yield torch.tensor(parts[1].param_groups[0]["lr"], dtype=torch.float64)

    def eagerly(model, optimizer, scheduler):
        def step(x, y):
            loss = cross_entropy(model, x, y)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            scheduler.step()
            return loss.detach()

        return step

    torch.manual_seed(0)
    parts = made(SCHEDULERS[name])
    expected = list(train(eagerly(*parts), parts))
    torch.manual_seed(0)
    parts = made(SCHEDULERS[name])
    got = list(train(Step(*parts), parts))
    assert all(map(torch.equal, expected, got))


def test_an_eager_phase_in_between_may_step_the_scheduler():
    """Ten eager steps with scheduler.step(), as eager training does, then the Graph goes on."""
    model, optimizer, scheduler = made(SCHEDULERS["StepLR"])
    step = Step(model, optimizer, scheduler)
    batch = batches(Mlp, 1)[0]
    step(*batch)
    for _ in range(3):
        cross_entropy(model, *batch).backward()
        optimizer.step()
        optimizer.zero_grad()
        scheduler.step()
    step(*batch)

    assert scheduler.last_epoch == 5


def test_a_per_epoch_scheduler_is_not_given_and_its_rate_is_used():
    def train(step, scheduler):
        losses = []
        for _ in range(3):
            losses += [step(*batch).detach() for batch in batches(Mlp, 6)]
            scheduler.step()
        return torch.stack(losses)

    torch.manual_seed(0)
    model, optimizer, scheduler = made(SCHEDULERS["StepLR"])

    def eager(x, y):
        loss = cross_entropy(model, x, y)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss

    expected = train(eager, scheduler)
    torch.manual_seed(0)
    model, other, scheduler = made(SCHEDULERS["StepLR"])
    step = tg.train_step(model, nn.functional.cross_entropy, other)
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # torch's "lr_scheduler.step() before optimizer.step()"
        with counters.expect(captures=1):
            got = train(step, scheduler)

    assert torch.equal(got, expected)
    assert step.last_lr == [other.param_groups[0]["lr"]] == [optimizer.param_groups[0]["lr"]]


def test_last_lr_is_what_the_next_call_uses():
    model = Mlp()
    optimizer = optim.SGD(
        [{"params": model.first.parameters()}, {"params": model.second.parameters(), "lr": 0.4}],
        lr=0.2,
    )
    step = Step(model, optimizer, sch.ExponentialLR(optimizer, 0.5))
    assert step.last_lr == [0.2, 0.4]

    step(*batches(Mlp, 1)[0])

    assert step.last_lr == [0.1, 0.2]
    optimizer.param_groups[0]["lr"] = 0.7
    assert step.last_lr == [0.7, 0.2]


def test_two_optimizers_with_a_scheduler_each():
    model = Mlp()
    one = optim.SGD(model.first.parameters(), lr=0.1)
    two = optim.SGD(model.second.parameters(), lr=0.1)

    class Two(tg.Graph):
        def __init__(self):
            super().__init__()
            self.model = model
            self.add_optimizer(one, lr_sch=sch.ExponentialLR(one, 0.5))
            self.add_optimizer(two, lr_sch=sch.ExponentialLR(two, 0.1))

        def build(self, x, y):
            loss = cross_entropy(self.model, x, y)
            loss.backward()
            return loss

    step = Two()
    step(*batches(Mlp, 1)[0])

    assert step.last_lr == pytest.approx([0.05, 0.01])


def test_a_scheduler_of_another_optimizer_is_refused():
    model, optimizer, _ = made(plateau)
    other = optim.SGD(model.parameters(), lr=0.1)
    for wrong in (sch.StepLR(other, 3), lambda n: 0.1, 0.1):
        with pytest.raises(NotAnOptimizer):
            Step(model, optimizer, wrong)
