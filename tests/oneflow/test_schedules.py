"""OneFlow's schedules beside their numbers: arguments, states, users' classes; scaler, autocast."""

import pytest
import torch
from torch import nn

import torchgraph as tg
from torchgraph.errors import InvalidOption
from torchgraph.oneflow._port.optim.mixed_precision import (
    GradScaler,
    autocast,
    autocast_decorator,
    get_autocast_cpu_dtype,
    get_autocast_gpu_dtype,
    set_autocast_cpu_dtype,
    set_autocast_gpu_dtype,
)
from torchgraph.oneflow._port.optim.schedules.base import LRScheduler, LrScheduler
from torchgraph.oneflow._port.optim.schedules.compound import (
    ChainedScheduler,
    LambdaLR,
    SequentialLR,
)
from torchgraph.oneflow._port.optim.schedules.plain import (
    ConstantLR,
    CosineAnnealingWarmRestarts,
    ExponentialLR,
    LinearLR,
    MultiStepLR,
    PolynomialLR,
    StepLR,
)
from torchgraph.oneflow._port.optim.schedules.plateau import ReduceLROnPlateau
from torchgraph.oneflow._port.optim.schedules.warmup import WarmupLR
from torchgraph.oneflow._port.optim.sgd import SGD


def sgd(*rates: float) -> SGD:
    return SGD([{"params": [nn.Parameter(torch.ones(2))], "lr": rate} for rate in rates or (1.0,)])


MAKERS = {
    "StepLR": lambda o: StepLR(o, 2),
    "SequentialLR": lambda o: SequentialLR(o, [ConstantLR(o), StepLR(o, 2)], [3], True),
    "ChainedScheduler": lambda o: ChainedScheduler([ConstantLR(o), ExponentialLR(o, 0.9)]),
    "WarmupLR": lambda o: WarmupLR(PolynomialLR(o, 9), warmup_prefix=True),
    "LambdaLR": lambda o: LambdaLR(o, lambda step: 0.5**step),
}


@pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS)
def test_goes_on_from_its_state(make):
    def rates(scheduler, steps):
        found = []
        for _ in range(steps):
            scheduler.step()
            found.append(scheduler.get_last_lr())
        return found

    first, second = make(sgd(1.0, 1.0)), make(sgd(1.0, 1.0))
    rates(first, 4)
    second.load_state_dict(first.state_dict())
    assert second.last_step == 4
    assert rates(second, 4) == rates(first, 4)


def test_a_lambdas_attributes_are_in_the_state():
    class Halves:
        factor = 1.0

        def __call__(self, step):
            return self.factor * 0.5**step

    first, second = LambdaLR(sgd(), Halves()), LambdaLR(sgd(), [Halves()])
    first.lr_lambdas[0].factor = 3.0
    second.load_state_dict(first.state_dict())
    second.step()
    assert second.get_last_lr() == [1.5]


def test_prints_each_rate(capsys):
    scheduler = StepLR(sgd(1.0, 0.5), 1, verbose=True)
    scheduler.step()
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 4
    assert lines[-1].startswith("Last step 1 of ")
    assert lines[-1].endswith("adjusting learning rate of param_groups[1] to 0.05000")


def test_a_plateau_prints_and_has_oneflows_names(capsys):
    scheduler = ReduceLROnPlateau(sgd(), patience=0, verbose=True)
    for metric in (1.0, 2.0):
        scheduler.step(metric)
    assert capsys.readouterr().out == (
        "Epoch     2: reducing learning rate of group 0 to 1.0000e-01.\n"
    )
    assert (scheduler.last_step, scheduler.num_bad_steps) == (2, 0)
    other = ReduceLROnPlateau(sgd(), patience=0)
    other.load_state_dict({"last_step": 7, "num_bad_steps": 1, "best": 0.5})
    assert (other.last_step, other.num_bad_steps, other.best) == (7, 1, 0.5)


class Scaled(LRScheduler):
    """Written for OneFlow 0.9."""

    def __init__(self, optimizer, times, last_step=-1, verbose=False):
        self.times = times
        super().__init__(optimizer, last_step, verbose)

    def get_lr(self, base_lr, step):
        return base_lr * self.times * (step + 1)


class Older(LrScheduler):
    """Written for OneFlow before 0.7."""

    def get_lr(self):
        return [base_lr * (self.last_step + 1) for base_lr in self.base_lrs]


class Step(tg.Graph):
    def __init__(self, optimizer, lr_sch):
        super().__init__()
        self.m = nn.Module()
        self.m.p = optimizer.param_groups[0]["params"][0]
        self.add_optimizer(optimizer, lr_sch=lr_sch)

    def build(self):
        loss = self.m.p.sum()
        loss.backward()
        return loss


USERS = {
    "get_lr(base_lr, step)": (lambda o: Scaled(o, 2.0), 2.0),
    "get_lr()": (Older, 1.0),
    "both bases": (type("Both", (LrScheduler,), {"get_lr": lambda self, lr, n: lr * (n + 1)}), 1.0),
}


@pytest.mark.parametrize(("make", "factor"), USERS.values(), ids=USERS)
def test_a_users_schedule(make, factor):
    optimizer = sgd(0.1)
    scheduler = make(optimizer)
    assert isinstance(scheduler, torch.optim.lr_scheduler.LRScheduler)
    rates = [optimizer.param_groups[0]["lr"]]
    for _ in range(2):
        optimizer.step()
        scheduler.step()
        rates.append(optimizer.param_groups[0]["lr"])
    assert rates == pytest.approx([0.1 * factor, 0.2 * factor, 0.3 * factor])
    assert (scheduler.last_step, scheduler.last_epoch) == (2, 2)


@pytest.mark.parametrize(("make", "factor"), USERS.values(), ids=USERS)
def test_a_users_schedule_in_a_graph(make, factor):
    optimizer = sgd(0.1)
    graph = Step(optimizer, make(optimizer))
    for _ in range(4):
        graph()
    expected = 1 - 0.1 * factor * (1 + 2 + 3 + 4)
    assert graph.m.p.tolist() == pytest.approx([expected] * 2, abs=1e-6)
    assert optimizer.param_groups[0]["lr"] == pytest.approx(0.1 * factor * 5)  # of the next call


def test_a_schedule_stepped_beside_its_graph_is_noticed():
    optimizer = sgd(0.1)
    scheduler = StepLR(optimizer, 2)
    graph = Step(optimizer, scheduler)
    graph()
    scheduler.step()
    with pytest.raises(tg.errors.SchedulerSteppedTwice):
        graph()


def test_a_compound_schedule_of_a_graph_is_saved_with_it():
    def step():
        optimizer = sgd(0.1)
        return Step(optimizer, MAKERS["SequentialLR"](optimizer))

    first, second = step(), step()
    for _ in range(4):
        first()
    second.load_state_dict(first.state_dict())
    for graph in (first, second):
        for _ in range(3):
            graph()
    assert torch.equal(first.m.p, second.m.p)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda o: ConstantLR(o, factor=2.0), "between 0 and 1"),
        (lambda o: LinearLR(o, start_factor=-1.0), "Starting"),
        (lambda o: LinearLR(o, end_factor=2.0), "Ending"),
        (lambda o: StepLR(o, 0), "step_size"),
        (lambda o: StepLR(o, 1, gamma=0.0), "gamma"),
        (lambda o: MultiStepLR(o, [3, 3]), "increasing"),
        (lambda o: ExponentialLR(o, 0.0), "gamma"),
        (lambda o: PolynomialLR(o, 0), "decay_batch"),
        (lambda o: CosineAnnealingWarmRestarts(o, 0), "T_0"),
        (lambda o: CosineAnnealingWarmRestarts(o, 1, 0), "T_mult"),
        (lambda o: LambdaLR(o, [abs, abs]), "Expected 1 lr_lambdas"),
        (lambda o: ChainedScheduler([]), "greater than 0"),
        (lambda o: ChainedScheduler([o]), "list of schedulers"),
        (lambda o: ChainedScheduler([StepLR(o, 1), StepLR(sgd(), 1)]), "same optimizer"),
        (lambda o: SequentialLR(o, [], []), "at least one"),
        (lambda o: SequentialLR(o, [StepLR(o, 1)], [1]), "one more"),
        (lambda o: SequentialLR(o, [StepLR(o, 1)] * 2, [1], [True] * 2), "interval_rescaling"),
        (lambda o: WarmupLR(o, warmup_iters=0), "equal to 0"),
        (lambda o: WarmupLR(o, warmup_method="cosine"), "warmup_method"),
        (lambda o: WarmupLR(3), "scheduler_or_optimizer"),
        (lambda o: WarmupLR(StepLR(sgd(1.0, 2.0), 1)), "different warmup configs"),
        (lambda o: GradScaler(backoff_factor=0.25), "backoff_factor"),
        (lambda o: autocast("xpu"), "device_type"),
    ],
)
def test_refused(make, words):
    with pytest.raises(InvalidOption, match=words):
        make(sgd())


def test_a_warm_up_needs_a_formula():
    with pytest.raises(NotImplementedError, match="LambdaLR does not say get_lr"):
        WarmupLR(LambdaLR(sgd(), lambda step: 1.0))


def test_no_optimizer_and_no_first_rate():
    with pytest.raises(TypeError, match="not an Optimizer"):
        StepLR(3, 1)
    with pytest.raises(KeyError, match="initial_lr"):
        StepLR(sgd(), 1, last_step=3)


def test_a_scaler_scales_in_eager_and_has_oneflows_backoff():
    scaler = GradScaler(8.0, growth_factor=4.0, backoff_factor=0.25, growth_interval=1)
    parameter = nn.Parameter(torch.ones(2))
    optimizer = SGD([parameter], lr=1.0)
    scales = []
    for factor in (1.0, float("inf"), 1.0):
        optimizer.zero_grad()
        scaler.scale((parameter * factor).sum()).backward()
        scaler.step(optimizer)
        scaler.update()
        scales.append(scaler.get_scale())
    assert scales == [32.0, 8.0, 32.0]
    assert parameter.tolist() == [-1.0, -1.0]


def test_autocast_on_the_cpu_casts_nothing_and_warns():
    with pytest.warns(UserWarning, match="CPU autocast is not supported"):
        region = autocast("cpu")
    a = torch.ones(2, 2)
    with region:
        assert (a @ a).dtype == torch.float32
    assert autocast_decorator(region, torch.matmul)(a, a).dtype == torch.float32
    assert region(torch.matmul)(a, a).dtype == torch.float32


def test_the_dtype_of_autocast_is_set_by_device():
    kinds = {
        "cuda": (get_autocast_gpu_dtype, set_autocast_gpu_dtype, torch.float16),
        "cpu": (get_autocast_cpu_dtype, set_autocast_cpu_dtype, torch.bfloat16),
    }
    for device, (get, put, first) in kinds.items():
        assert get() == first
        put(torch.float32)
        try:
            assert get() == torch.get_autocast_dtype(device) == torch.float32
        finally:
            put(first)


def test_autocast_inside_of_a_build_casts_nothing_and_warns():
    class Product(tg.Graph):
        def build(self, a):
            with autocast("cpu"):
                return a @ a

    with (
        pytest.warns(UserWarning, match="CPU autocast"),
        pytest.warns(UserWarning, match="not supported for lazy mode"),
    ):
        found = Product()(torch.ones(2, 2))
    assert found.dtype == torch.float32
