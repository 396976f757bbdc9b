"""`tg.optim.Graphed` in loops that know an optimizer only, bitwise beside the plain optimizer."""

from __future__ import annotations

import copy
import io
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.nn.utils import clip_grad_norm_, clip_grad_value_
from torch.optim.lr_scheduler import OneCycleLR, StepLR
from torch.optim.optimizer import register_optimizer_step_post_hook
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

import torchgraph as tg
from tests.support import same_bits, thinned
from torchgraph.errors import EagerWarning, InvalidOption, NotAnOptimizer

STEPS = 30


class Net(torch.nn.Module):
    """Two ways through it: ``late`` has a gradient only where it is used."""

    def __init__(self, dtype: torch.dtype = torch.float32) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first = torch.nn.Linear(6, 8, dtype=dtype)
        self.late = torch.nn.Linear(8, 8, dtype=dtype)
        self.last = torch.nn.Linear(8, 3, dtype=dtype)

    def forward(self, x: torch.Tensor, use_late: bool = True) -> torch.Tensor:
        x = self.first(x).tanh()
        return self.last(self.late(x) if use_late else x)


class Plain(torch.optim.Optimizer):
    """An optimizer of a third party: a state of its own, updated through ``.data``."""

    def __init__(self, params: Any, lr: float = 0.1) -> None:
        super().__init__(params, {"lr": lr})

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is None:
                    continue
                state = self.state[p]
                if not state:
                    state["count"], state["mean"] = 0, torch.zeros_like(p)
                state["count"] += 1
                state["mean"].lerp_(p.grad, 1 / (1 + state["count"]))
                p.data.add_(state["mean"].sign() * -group["lr"])
        return loss


class Twice(Plain):
    """One that evaluates its closure twice, as a sharpness-aware one does."""

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        if closure is not None:
            with torch.enable_grad():
                closure()
        return super().step(closure)


def alike(left: Any, right: Any) -> bool:
    """`same_bits` of trees, in the order of their keys."""
    if type(left) is not type(right):
        return False
    if isinstance(left, dict):
        return list(left) == list(right) and alike([*left.values()], [*right.values()])
    if isinstance(left, (list, tuple)):
        return len(left) == len(right) and all(map(alike, left, right))
    return same_bits(left, right)


class Side:
    """A model, its optimizer, and what they have left so far."""

    def __init__(
        self,
        make: Callable[..., Any],
        graphed: bool,
        dtype: torch.dtype = torch.float32,
        **more: Any,
    ) -> None:
        self.net = Net(dtype)
        self.plain = make(self.net.parameters())
        self.opt: Any = self.plain
        if graphed:
            self.opt = tg.optim.Graphed(self.plain, **more)
            self.opt.graph.config.set_backend("aten")
        self.graphed, self.dtype, self.losses = graphed, dtype, []

    def backward(self, number: int, use_late: bool = True, scale: Any = None) -> torch.Tensor:
        generator = torch.Generator().manual_seed(number)
        x = torch.randn(5, 6, generator=generator).to(self.dtype)
        loss = self.net(x, use_late).square().mean()
        (loss if scale is None else scale(loss)).backward()
        self.losses.append(loss.detach())
        return loss

    def left(self) -> Any:
        gradients = [p.grad for p in self.net.parameters()]
        return [self.losses, self.net.state_dict(), gradients, self.opt.state_dict()]


def beside(
    make: Callable[..., Any],
    loop: Callable[[Side], None],
    *,
    served: int | None = None,
    **settings: Any,
) -> Side:
    """Run the loop with the plain optimizer and with the graphed one: the same bits."""
    plain, ours = Side(make, False), Side(make, True, **settings)
    if "dtype" in settings:
        plain = Side(make, False, settings["dtype"])
    loop(plain)
    loop(ours)
    assert alike(plain.left(), ours.left())
    if served is not None:
        assert calls(ours) >= served
    return ours


def calls(side: Side) -> int:
    """By programs."""
    return side.opt.graph.report().calls.programs


def plain_loop(side: Side) -> None:
    for number in range(STEPS):
        side.opt.zero_grad()
        side.backward(number)
        side.opt.step()


OPTIMIZERS: dict[str, Callable[..., Any]] = {
    "AdamW": lambda p: torch.optim.AdamW(p, lr=1e-2),
    "AdamW, foreach": lambda p: torch.optim.AdamW(p, lr=1e-2, foreach=True),
    "AdamW, fused": lambda p: torch.optim.AdamW(p, lr=1e-2, fused=True),
    "SGD, momentum": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, nesterov=True),
    "RMSprop": lambda p: torch.optim.RMSprop(p, lr=1e-2, centered=True),
    "Adagrad": lambda p: torch.optim.Adagrad(p, lr=1e-2),
    "NAdam": lambda p: torch.optim.NAdam(p, lr=1e-2),
    "LAMB": lambda p: tg.optim.LAMB(p, lr=1e-2),
    "Lion": lambda p: tg.optim.Lion(p, lr=1e-3),
    "third party": Plain,
}


FAST = ("AdamW", "AdamW, fused", "SGD, momentum", "third party")


@pytest.mark.parametrize("name", thinned(OPTIMIZERS, keep=FAST))
def test_optimizers(name):
    beside(OPTIMIZERS[name], plain_loop, served=STEPS - 6)


def adamw(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.AdamW(parameters, lr=1e-2)


def test_gradients_that_stay_where_they_are():
    def loop(side: Side) -> None:
        for number in range(STEPS):
            side.opt.zero_grad(set_to_none=number % 3 == 0)
            side.backward(number)
            side.backward(number + 100)  # accumulates
            side.opt.step()

    beside(adamw, loop, served=STEPS - 8)


def test_a_parameter_without_a_gradient_at_first_and_one_that_is_frozen():
    def loop(side: Side) -> None:
        for number in range(STEPS):
            if number == 20:
                side.net.first.requires_grad_(False)
            side.opt.zero_grad()
            side.backward(number, use_late=number >= 10)
            side.opt.step()

    beside(adamw, loop, served=STEPS - 16)


def test_settings_that_are_moved_by_hand_and_by_schedulers():
    def loop(side: Side) -> None:
        one = StepLR(side.opt, 4, 0.5)
        cycle = OneCycleLR(side.opt, max_lr=0.1, total_steps=STEPS + 1)
        for number in range(STEPS):
            side.opt.zero_grad()
            side.backward(number)
            side.opt.step()
            (one if number < 10 else cycle).step()
            group = side.opt.param_groups[0]
            if number == 15:
                group["weight_decay"], group["betas"] = 0.3, (0.8, 0.9)

    ours = beside(adamw, loop, served=STEPS - 10)
    assert ours.plain.param_groups[0]["weight_decay"] == 0.3


def test_a_scheduler_over_the_plain_one_moves_the_graphed_one():
    def loop(side: Side) -> None:
        scheduler = StepLR(side.plain, 4, 0.5)
        for number in range(STEPS):
            side.opt.zero_grad()
            side.backward(number)
            side.opt.step()
            scheduler.step()

    beside(adamw, loop, served=STEPS - 6)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_other_dtypes(dtype):
    beside(adamw, plain_loop, dtype=dtype, served=STEPS - 6)


@pytest.mark.parametrize("fused", [False, True])
def test_clipping_in_the_step(fused):
    def make(parameters: Any) -> Any:
        return torch.optim.AdamW(parameters, lr=1e-2, fused=fused)

    norms: dict[bool, list[torch.Tensor]] = {False: [], True: []}

    def loop(side: Side) -> None:
        for number in range(STEPS):
            side.opt.zero_grad()
            side.backward(number)
            if not side.graphed:
                norm = clip_grad_norm_(side.net.parameters(), 0.5)
                clip_grad_value_(side.net.parameters(), 0.1)
            side.opt.step()
            norms[side.graphed].append(side.opt.grad_norm if side.graphed else norm)

    beside(make, loop, clip_grad_norm=0.5, clip_grad_value=0.1, served=STEPS - 6)
    assert alike(norms[False], norms[True])


def scaled(side: Side, scaler: Any, *, unscale: bool) -> None:
    """The loop of Ultralytics and others."""
    for number in range(STEPS):
        side.backward(number, scale=scaler.scale)
        if number in (0, 12):
            side.net.last.weight.grad[0, 0] = torch.inf
        if unscale:
            scaler.unscale_(side.opt)
            clip_grad_norm_(side.net.parameters(), 10.0)
        scaler.step(side.opt)
        scaler.update()
        side.opt.zero_grad()
    side.losses.append(scaler.state_dict())


@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("unscale", [False, True])
def test_a_grad_scaler(fused, unscale):
    def loop(side: Side) -> None:
        scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, growth_interval=5)
        scaled(side, scaler, unscale=unscale)

    def make(parameters: Any) -> Any:
        return torch.optim.AdamW(parameters, lr=1e-2, fused=fused)

    beside(make, loop, served=STEPS - 9)


def test_a_grad_scaler_unscales_before_the_step_clips():
    def loop(side: Side) -> None:
        scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, growth_interval=5)
        for number in range(STEPS):
            side.backward(number, scale=scaler.scale)
            if not side.graphed:
                scaler.unscale_(side.opt)
                clip_grad_norm_(side.net.parameters(), 0.05)
            scaler.step(side.opt)
            scaler.update()
            side.opt.zero_grad()

    def make(parameters: Any) -> Any:
        return torch.optim.AdamW(parameters, lr=1e-2, fused=True)

    beside(make, loop, served=STEPS - 6, clip_grad_norm=0.05)


class ModelEMA:
    """An average as Ultralytics' trainer keeps it, with a decay that its count moves."""

    def __init__(self, model: torch.nn.Module) -> None:
        self.ema, self.updates = copy.deepcopy(model).eval(), 0

    def update(self, model: torch.nn.Module) -> None:
        self.updates += 1
        decay = 0.99 * (1 - 1 / (1 + self.updates))
        new = model.state_dict()
        for name, value in self.ema.state_dict().items():
            if value.dtype.is_floating_point:
                value *= decay
                value += (1 - decay) * new[name].detach()


@pytest.mark.parametrize("kind", ["torch", "ultralytics"])
def test_an_average_of_the_weights_in_the_step(kind):
    kept: list[Any] = []

    def run(graphed: bool) -> None:
        side = Side(adamw, False)
        if kind == "torch":
            average: Any = AveragedModel(side.net, multi_avg_fn=get_ema_multi_avg_fn(0.9))
            held, update = average, average.update_parameters
        else:
            average = ModelEMA(side.net)
            held, update = average.ema, average.update
        if graphed:
            side.opt = tg.optim.Graphed(side.plain, ema=lambda: update(side.net))
            side.opt.graph.config.set_backend("aten")
        for number in range(STEPS):
            side.opt.zero_grad()
            side.backward(number)
            side.opt.step()
            if not graphed:
                update(side.net)
        kept.append([side.left(), held.state_dict(), getattr(average, "updates", 0)])
        if graphed:
            assert calls(side) >= STEPS - 8

    run(False)
    run(True)
    assert alike(*kept)


@pytest.mark.parametrize("how", ["plain", "map_location", "into the plain one"])
def test_a_state_is_loaded(how):
    def loop(side: Side) -> None:
        saved: Any = None
        for number in range(STEPS):
            side.opt.zero_grad()
            side.backward(number)
            side.opt.step()
            if number == 8:
                file = io.BytesIO()
                torch.save(side.opt.state_dict(), file)
                file.seek(0)
                saved = torch.load(file, map_location="cpu")
            if number == 15:
                target = side.plain if how == "into the plain one" else side.opt
                target.load_state_dict(state_dict=saved)
            if number == 20:  # of an optimizer that has stepped nothing yet
                side.opt.load_state_dict(adamw(side.net.parameters()).state_dict())

    beside(adamw, loop, served=STEPS - 14)


def test_a_group_is_added():
    def loop(side: Side) -> None:
        for number in range(STEPS):
            if number == 10:
                side.opt.add_param_group({"params": side.net.late.parameters(), "lr": 0.5})
            side.opt.zero_grad()
            side.backward(number)
            side.opt.step()
            side.net.late.zero_grad()

    def make(parameters: Any) -> Any:
        parameters = list(parameters)
        return torch.optim.SGD([*parameters[:2], *parameters[4:]], lr=0.1, momentum=0.9)

    beside(make, loop, served=STEPS - 10)


@pytest.mark.parametrize("make", [adamw, Plain])
def test_a_closure_runs_forward_and_backward(make):
    def loop(side: Side) -> None:
        for number in range(STEPS):

            def closure(number: int = number) -> torch.Tensor:
                side.opt.zero_grad()
                return side.backward(number)

            with torch.no_grad():
                assert side.opt.step(closure=closure) is not None
            assert len(side.losses) == number + 1

    beside(make, loop, served=STEPS - 7)


@pytest.mark.parametrize("kind", ["LBFGS", "Twice"])
def test_a_closure_that_is_evaluated_more_than_once_stays_in_eager(kind):
    def loop(side: Side) -> None:
        for number in range(6):

            def closure(number: int = number) -> torch.Tensor:
                side.opt.zero_grad()
                return side.backward(number)

            side.opt.step(closure)

    make = Twice if kind == "Twice" else lambda p: torch.optim.LBFGS(p, max_iter=3)
    with pytest.warns(EagerWarning, match=f"Graphed\\({kind}\\) steps in eager") as told:
        beside(make, loop)
    assert len(told) == 1


def test_sparse_gradients_stay_in_eager():
    def run(graphed: bool) -> Any:
        torch.manual_seed(0)
        table = torch.nn.Embedding(10, 3, sparse=True)
        optimizer: Any = torch.optim.SGD(table.parameters(), lr=0.1)
        if graphed:
            optimizer = tg.optim.Graphed(optimizer)
        for number in range(8):
            optimizer.zero_grad()
            table(torch.tensor([number, 9 - number])).square().sum().backward()
            optimizer.step()
        return table.state_dict()

    with pytest.warns(EagerWarning):
        assert alike(run(False), run(True))


def test_two_over_one_model():
    kept = []
    for graphed in (False, True):
        net = Net()
        one: Any = torch.optim.AdamW(net.first.parameters(), lr=1e-2)
        two: Any = torch.optim.SGD([*net.late.parameters(), *net.last.parameters()], lr=0.1)
        if graphed:
            one, two = tg.optim.Graphed(one, clip_grad_norm=0.1), tg.optim.Graphed(two)
            for each in (one, two):
                each.graph.config.set_backend("aten")
        for number in range(STEPS):
            net.zero_grad()
            net(torch.full((2, 6), number / 10)).square().mean().backward()
            if not graphed:
                clip_grad_norm_(net.first.parameters(), 0.1)
            one.step()
            if number % 2:
                two.step()
        kept.append([net.state_dict(), one.state_dict(), two.state_dict()])
        if graphed:
            assert one.graph.report().calls.programs >= STEPS - 6
            assert two.graph.report().calls.programs >= STEPS // 2 - 6
    assert alike(*kept)


def test_hooks_run_at_each_step():
    told: dict[bool, list[Any]] = {False: [], True: []}

    def loop(side: Side) -> None:
        heard = told[side.graphed]
        side.opt.register_step_pre_hook(lambda o, a, k: heard.append(("before", o is side.opt)))
        side.opt.register_step_post_hook(lambda o, a, k: heard.append(len(o.state)))
        side.opt.register_state_dict_pre_hook(lambda o: heard.append("saved"))
        side.opt.register_load_state_dict_post_hook(lambda o: heard.append("loaded"))
        plain_loop(side)
        side.opt.load_state_dict(side.opt.state_dict())

    beside(adamw, loop, served=STEPS - 6)
    assert told[True] == told[False]
    assert len(told[True]) == 2 * STEPS + 3


def test_hooks_of_all_optimizers_stay_in_eager():
    told: dict[bool, list[Any]] = {False: [], True: []}

    def loop(side: Side) -> None:
        def hook(optimizer: Any, *_: Any) -> None:
            told[side.graphed].append(type(optimizer))

        handle = register_optimizer_step_post_hook(hook)
        try:
            plain_loop(side)
        finally:
            handle.remove()

    with pytest.warns(EagerWarning, match="registered for every optimizer"):
        beside(adamw, loop)
    assert told[True] == told[False]
    assert len(told[True]) == STEPS


@pytest.mark.parametrize("how", ["deepcopy", "pickle"])
def test_a_copy_goes_on_by_itself(how):
    side = Side(adamw, True, clip_grad_norm=0.5)
    plain_loop(side)
    if how == "deepcopy":
        net, optimizer = copy.deepcopy((side.net, side.opt))
    else:
        net, optimizer = pickle.loads(pickle.dumps((side.net, side.opt)))
    assert alike(side.opt.state_dict(), optimizer.state_dict())
    assert type(optimizer) is tg.optim.Graphed
    assert optimizer.optimizer is not side.plain
    before = copy.deepcopy(side.net.state_dict())
    optimizer.graph.config.set_backend("aten")
    for number in range(6):
        optimizer.zero_grad()
        net(torch.full((2, 6), number / 10)).square().mean().backward()
        optimizer.step()
    assert optimizer.graph.report().calls.programs >= 1
    assert alike(before, side.net.state_dict())
    assert not torch.equal(net.first.weight, side.net.first.weight)
    assert optimizer.param_groups[0]["params"][0] is net.first.weight


def test_inside_of_a_step_it_is_part_of_that_program():
    def loop(side: Side) -> None:
        def body(x: torch.Tensor) -> torch.Tensor:
            optimizer.zero_grad()
            loss = net(x).square().mean()
            loss.backward()
            if not side.graphed:
                clip_grad_norm_(net.parameters(), 0.5)
            optimizer.step()
            return loss

        net, optimizer = side.net, side.opt
        step: Any = body
        if side.graphed:
            step = tg.step(body)
            step.config.set_backend("aten")
        for number in range(STEPS):
            side.losses.append(step(torch.full((2, 6), number / 10)).detach())
        if side.graphed:
            assert step.report().calls.programs >= STEPS - 6

    beside(adamw, loop, clip_grad_norm=0.5)


def test_it_is_the_optimizer():
    net = Net()
    plain = torch.optim.AdamW(net.parameters(), lr=1e-2, fused=True)
    ours = tg.optim.Graphed(plain)
    assert isinstance(ours, torch.optim.Optimizer)
    assert ours.state is plain.state
    assert ours.param_groups is plain.param_groups
    assert ours.defaults is plain.defaults
    assert ours.optimizer is plain
    assert not ours._step_supports_amp_scaling
    assert repr(ours).startswith("Graphed(AdamW (")
    assert {type(one).__module__ for one in (ours, tg.optim.Lion([net.first.weight]))} == {
        "torchgraph.optim"
    }
    with pytest.raises(AttributeError, match="nothing"):
        ours.nothing  # noqa: B018


def test_what_is_refused():
    plain = adamw(Net().parameters())
    with pytest.raises(NotAnOptimizer, match=r"torch\.optim\.Optimizer"):
        tg.optim.Graphed(Net())
    with pytest.raises(InvalidOption, match="Graphed already"):
        tg.optim.Graphed(tg.optim.Graphed(plain))
    for wrong in ({"clip_grad_norm": 0}, {"clip_grad_value": "1"}, {"norm_type": None}):
        with pytest.raises(InvalidOption, match=next(iter(wrong))):
            tg.optim.Graphed(plain, **wrong)
    with pytest.raises(InvalidOption, match="without arguments"):
        tg.optim.Graphed(plain, ema=3)
