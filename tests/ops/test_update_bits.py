"""Where the update ops give torch's own bits: its fused kernels, and the ops of its other loops."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from tests.ops.cases import Case, equal, make
from torchgraph.optim import Lion
from torchgraph.passes.fusions.model_update import op as update

SIZES = (*range(1, 36), 1000, 4099, 20_001)
SETTINGS: dict[str, tuple[str, dict[str, Any]]] = {
    "AdamW": ("adam", {"decoupled": True}),
    "AdamW, no decay, maximize": (
        "adam",
        {"decoupled": True, "weight_decay": 0.0, "maximize": True},
    ),
    "AdamW, amsgrad": ("adam", {"decoupled": True, "amsgrad": True}),
    "AdamW, large lr": ("adam", {"decoupled": True, "lr": 0.77, "weight_decay": 0.83}),
    "Adam": ("adam", {}),
    "Adam, amsgrad, maximize": ("adam", {"amsgrad": True, "maximize": True}),
    "Adam, small beta1": ("adam", {"beta1": 0.31}),
    "SGD": ("sgd", {"momentum": 0.0}),
    "SGD, momentum, dampening": ("sgd", {}),
    "SGD, first step": ("sgd", {"is_first_step": True}),
    "SGD, nesterov, maximize": ("sgd", {"nesterov": True, "dampening": 0.0, "maximize": True}),
    "Adagrad": ("adagrad", {}),
    "Adagrad, maximize": ("adagrad", {"weight_decay": 0.0, "maximize": True}),
}
HALF = (torch.bfloat16, torch.float16)

pytestmark = pytest.mark.skipif(
    "AVX" not in torch.backends.cpu.get_cpu_capability(),
    reason="the compiled kernels round as torch's do on x86-64 with AVX2",
)


def fused(case: Case) -> Case:
    """A copy after torch's fused kernel."""
    done = case.copy()
    o = case.all_options()
    own = {name: tensors for name, tensors in done.lists.items() if name != "copies"}
    for step in own.get("steps", []):
        step += 1
    if case.rule == "sgd":
        if not o["momentum"]:
            own["momentum_buffers"] = []
        names = ["weight_decay", "momentum", "lr", "dampening", "nesterov", "is_first_step"]
        kernel = torch._fused_sgd_
    elif case.rule == "adagrad":
        names = ["lr", "lr_decay", "weight_decay", "eps"]
        kernel = torch._fused_adagrad_
    else:
        if not o["amsgrad"]:
            own["max_exp_avg_sqs"] = []
        names = ["lr", "beta1", "beta2", "weight_decay", "eps", "amsgrad"]
        kernel = torch._fused_adamw_ if o["decoupled"] else torch._fused_adam_
    kernel(*own.values(), **{name: o[name] for name in (*names, "maximize")})
    return done


def assert_same(one: Case, other: Case) -> None:
    for name, tensors in one.lists.items():
        for left, right in zip(tensors, other.lists[name], strict=True):
            assert equal(left, right), f"{name}: {left[left != right]}, {right[left != right]}"


def some_numbers() -> dict[str, float]:
    return {
        "lr": random.uniform(1e-4, 0.1),
        "beta2": random.uniform(0.9, 0.999),
        "weight_decay": random.uniform(1e-3, 0.2),
        "eps": random.uniform(1e-9, 1e-3),
    }


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("setting", SETTINGS)
def test_as_the_fused_kernel(setting, dtype):
    rule, options = SETTINGS[setting]
    numbers = {n: v for n, v in some_numbers().items() if n in update.RULES[rule].numbers}
    case = make(rule, [(n,) for n in SIZES], dtype, **{**numbers, **options})
    wanted = fused(case)
    assert_same(case.run(), wanted)
    assert_same(case.run(compiled=False), wanted)


@pytest.mark.parametrize("setting", ["AdamW", "SGD, momentum, dampening", "Adagrad"])
def test_as_the_fused_kernel_by_two_threads(setting, two_threads):
    rule, options = SETTINGS[setting]
    case = make(rule, [(200_003,), (5,), (70_001,)], **options)
    assert_same(case.run(), fused(case))


@pytest.fixture
def two_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize("dtype", HALF)
@pytest.mark.parametrize("setting", SETTINGS)
def test_as_the_fused_kernel_in_half_precision(setting, dtype):
    rule, options = SETTINGS[setting]
    case = make(rule, [(n,) for n in SIZES], dtype, **options)
    if rule != "adam" and not fused_half_is_sound():
        pytest.skip("before torch 2.15 its fused SGD and Adagrad are wrong in half precision")
    assert_same(case.run(), fused(case))


def fused_half_is_sound() -> bool:
    case = make("sgd", [(64,)], torch.bfloat16, momentum=0.0, weight_decay=0.0, lr=1.0)
    return not equal(fused(case).lists["params"][0], case.lists["params"][0])


def test_with_unscaling_clipping_and_a_copy_as_torch_s_separate_calls():
    scale, clip = torch.tensor(1024.0), torch.tensor(0.37)
    options = {"decoupled": True, "grad_scale": scale, "clip_coef": clip}
    case = make("adam", [(n,) for n in SIZES], copy_dtype=torch.bfloat16, **options)
    grads = [(grad / scale) * clip for grad in case.lists["grads"]]
    options = {**case.options, "grad_scale": None, "clip_coef": None}
    wanted = fused(Case("adam", {**case.lists, "grads": grads}, options))
    done = case.run()
    assert_same(Case("adam", {**done.lists, "grads": grads}, {}), with_copies(wanted))


def with_copies(case: Case) -> Case:
    copies = [param.to(torch.bfloat16) for param in case.lists["params"]]
    return Case(case.rule, {**case.lists, "copies": copies}, case.options)


def test_channels_last_parameters_take_gradients_of_another_layout():
    case = make("adam", [(5, 4, 3, 3)], decoupled=True)
    plain = case.run().lists["params"][0]
    for name in ("params", "exp_avgs", "exp_avg_sqs"):
        case.lists[name][0] = case.lists[name][0].to(memory_format=torch.channels_last)
    done = case.run().lists["params"][0]
    assert done.is_contiguous(memory_format=torch.channels_last)
    assert torch.allclose(done, plain, rtol=1e-6, atol=0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("decay", [0.0, 0.1])
def test_lion_as_its_eager_form(dtype, decay):
    case = make("lion", [(n,) for n in SIZES], dtype, weight_decay=decay)
    params = [param.clone().requires_grad_() for param in case.lists["params"]]
    o = case.options
    betas = (o["beta1"], o["beta2"])
    optimizer = Lion(params, lr=o["lr"], betas=betas, weight_decay=decay)
    for param, grad, moment in zip(
        params, case.lists["grads"], case.lists["exp_avgs"], strict=True
    ):
        param.grad = grad.clone()
        optimizer.state[param]["exp_avg"] = moment.clone()
    optimizer.step()
    done = case.run()
    for param, got, moment in zip(
        params, done.lists["params"], done.lists["exp_avgs"], strict=True
    ):
        assert equal(got, param.detach())
        assert equal(moment, optimizer.state[param]["exp_avg"])


@pytest.mark.parametrize("momentum", [0.0, 0.9])
@pytest.mark.parametrize("centered", [False, True])
def test_rmsprop_as_its_default_loop_with_an_exact_root(centered, momentum):
    """All roundings are those of ``foreach=False``; only torch.sqrt of MKL is not the nearest."""
    case = make("rmsprop", [(n,) for n in SIZES], centered=centered, momentum=momentum)
    o, lists = case.options, case.copy().lists
    for i, p in enumerate(lists["params"]):
        square, g = lists["square_avgs"][i], lists["grads"][i].add(p, alpha=o["weight_decay"])
        square.mul_(o["alpha"]).addcmul_(g, g, value=1 - o["alpha"])
        spread = square
        if centered:
            mean = lists["grad_avgs"][i].lerp_(g, 1 - o["alpha"])
            spread = square.addcmul(mean, mean, value=-1)
        divisor = nearest_root(spread).add_(o["eps"])
        if momentum:
            buffer = lists["momentum_buffers"][i].mul_(momentum).addcdiv_(g, divisor)
            p.add_(buffer, alpha=-o["lr"])
        else:
            p.addcdiv_(g, divisor, value=-o["lr"])
    lists["steps"] = [step + 1 for step in lists["steps"]]
    assert_same(case.run(), Case("rmsprop", lists, {}))


def test_adadelta_as_its_default_loop_with_an_exact_root():
    case = make("adadelta", [(n,) for n in SIZES])
    o, lists = case.options, case.copy().lists
    for i, p in enumerate(lists["params"]):
        square, deltas = lists["square_avgs"][i], lists["acc_deltas"][i]
        g = lists["grads"][i].add(p, alpha=o["weight_decay"])
        square.mul_(o["rho"]).addcmul_(g, g, value=1 - o["rho"])
        change = nearest_root(deltas.add(o["eps"])).div_(nearest_root(square.add(o["eps"])))
        change.mul_(g)
        deltas.mul_(o["rho"]).addcmul_(change, change, value=1 - o["rho"])
        p.add_(change, alpha=-o["lr"])
    lists["steps"] = [step + 1 for step in lists["steps"]]
    assert_same(case.run(), Case("adadelta", lists, {}))


def nearest_root(values: torch.Tensor) -> torch.Tensor:
    return values.double().sqrt().float()


@pytest.mark.parametrize("rule", ["lamb", "adam"])
def test_the_number_of_threads_does_not_matter(rule):
    case = make(rule, [(100_003,), (7,), (40_000,)], copy_dtype=torch.bfloat16)
    before = torch.get_num_threads()
    results = []
    for count in (1, 2, 3):
        torch.set_num_threads(count)
        results.append(case.run())
    torch.set_num_threads(before)
    for done in results[1:]:
        assert_same(results[0], done)
