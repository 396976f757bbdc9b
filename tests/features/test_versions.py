"""Where torch 2.15 computes otherwise than 2.13: eager of the installed torch, and a step of it.

The rows of docs/versions.md: each computes in eager and in a step on `aten`, whose bits are equal,
and is what the page says of the installed torch.
"""

import importlib
import re
import warnings
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import torchgraph as tg
from torchgraph.errors import NoProgram

NEW = tuple(map(int, re.findall(r"\d+", torch.__version__)[:2])) >= (2, 15)
PAGE = Path(__file__).parents[2] / "docs" / "versions.md"
needs_new = pytest.mark.skipif(not NEW, reason="torch has it from 2.15 on")


def gradients(function, *inputs: list[float] | list[list[float]]):
    """The gradients of a sum, in eager and by the program of a step, which are the same bits."""

    def step(*inputs: torch.Tensor):
        leaves = [one.detach().requires_grad_() for one in inputs]
        return torch.autograd.grad(function(*leaves).sum(), leaves)

    inputs = [torch.tensor(one) for one in inputs]
    expected = step(*inputs)
    program = tg.step(step)
    program.config.set_backend("aten")
    for _ in range(4):
        found = program(*inputs)
    assert program.report().calls.programs == 2
    assert all(map(torch.equal, found, expected))
    return [one.tolist() for one in expected]


# --- derivatives where two values are equal -------------------------------------------------------

BOUND = {
    "clamp": lambda x: x.clamp(-1.0, 1.0),
    "clamp_min": lambda x: x.clamp_min(-1.0).clamp_max(1.0),
}
OUTSIDE_OF_BOUNDS = {"hardtanh": F.hardtanh, "relu6": lambda x: F.relu6(x * 3 + 3)}


@pytest.mark.parametrize("name", BOUND)
def test_a_clamp_at_its_bound(name):
    at_bound = 0.0 if NEW else 1.0
    assert gradients(BOUND[name], [-1.0, 1.0, 0.5, 2.0]) == [[at_bound, at_bound, 1.0, 0.0]]


@pytest.mark.parametrize("name", OUTSIDE_OF_BOUNDS)
def test_activations_with_bounds_are_the_same_in_all_versions(name):
    (found,) = gradients(OUTSIDE_OF_BOUNDS[name], [-1.0, 1.0, 0.5])
    assert found[:2] == [0.0, 0.0]
    assert found[2] > 0


def test_a_clamp_at_a_tensor():
    x, bound = gradients(lambda x, bound: x.clamp(min=bound), [0.0, 1.0], [0.0, 0.0])
    assert (x, bound) == (([0.5, 1.0], [0.5, 0.0]) if NEW else ([1.0, 1.0], [0.0, 0.0]))


@pytest.mark.parametrize("name", ["fmax", "fmin", "maximum", "minimum"])
def test_the_larger_and_the_smaller_of_equal_ones(name):
    first, second = gradients(getattr(torch, name), [1.0], [1.0])
    halves = NEW or name in ("maximum", "minimum")
    assert (first, second) == (([0.5], [0.5]) if halves else ([1.0], [0.0]))


def test_the_median_of_equal_ones_is_the_same_in_all_versions():
    rows = [[1.0, 1.0, 1.0, 2.0], [2.0, 2.0, 2.0, 2.0], [3.0, 1.0, 1.0, 1.0]]
    (found,) = gradients(lambda x: x.median(1)[0], rows)
    assert found == [[0, 1, 0, 0], [0, 1, 0, 0], [0, 0, 1, 0]]


@pytest.mark.parametrize("name", ["quantile", "nanquantile"])
def test_the_quantile_of_equal_ones(name):
    rows = [[1.0, 1.0, 1.0, 2.0, 2.0], [2.0] * 5]
    (found,) = gradients(lambda x: getattr(x, name)(0.75, 1), rows)
    selected, by_sort = [[0, 0, 0, 1, 0], [1, 0, 0, 0, 0]], [[0, 0, 0, 1, 0]] * 2
    assert found == (selected if NEW else by_sort)


# --- optimizers -----------------------------------------------------------------------------------


def trained(made, dtype):
    """The state of an optimizer after four steps in eager, and, the same, by a step's program."""

    def run(wrap):
        torch.manual_seed(0)
        weight = nn.Parameter(torch.randn(8, 8).to(dtype))
        optimizer, states = made([weight]), []
        batches = [torch.randn(8, 8).to(dtype) for _ in range(4)]

        def step(x):
            optimizer.zero_grad()
            (weight * x).sum().backward()
            optimizer.step()

        wrapped = wrap(step)
        for batch in batches:
            wrapped(batch)
            states += [weight.detach().clone(), optimizer.state[weight]["momentum_buffer"].clone()]
        return batches, states

    batches, expected = run(lambda step: step)
    assert all(map(torch.equal, run(tg.step)[1], expected))
    return batches, expected[-1]


@pytest.mark.parametrize("nesterov", [True, False])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_momentum_of_muon(dtype, nesterov):
    batches, found = trained(lambda weights: torch.optim.Muon(weights, nesterov=nesterov), dtype)
    average = torch.zeros(8, 8, dtype=dtype)
    for gradient in batches:
        average.lerp_(gradient, 1 - 0.95)
    wrong = not NEW and dtype is torch.bfloat16 and not nesterov
    assert torch.equal(found, average) is not wrong


@needs_new
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_a_fused_sgd_of_half_precision(dtype):
    """Not tested before 2.15: what it computes there goes by what memory held before."""
    fused, plain = (
        trained(lambda ps, f=f: torch.optim.SGD(ps, 0.1, momentum=0.85, fused=f), dtype)[1]
        for f in (True, False)
    )
    assert torch.allclose(fused, plain, rtol=2e-2, atol=2e-2)


# --- what is new in 2.15 --------------------------------------------------------------------------


def test_new_names():
    assert hasattr(torch, "foreach") is NEW
    assert hasattr(torch.optim, "functional") is NEW
    assert hasattr(torch.autograd.function.FunctionCtx, "input_grad_buffers") is NEW
    assert hasattr(torch.ops._c10d_functional, "wait_tensors") is NEW


def by_lists(parameters):
    def update(gradients):
        torch.foreach.add_(parameters, torch.foreach.mul(gradients, 0.5), alpha=-0.1)

    return update


def by_function(parameters):
    functional = importlib.import_module("torch.optim.functional")
    momenta = [torch.zeros_like(one) for one in parameters]
    plain = dict.fromkeys(("nesterov", "maximize"), False)
    numbers = {"weight_decay": 0.1, "momentum": 0.9, "lr": 0.1, "dampening": 0.0}

    def update(gradients):
        functional.sgd(parameters, gradients, momenta, **plain, **numbers)

    return update


def all_reduced(parameters):
    ops, group = torch.ops._c10d_functional, torch.distributed.group.WORLD.group_name

    def update(gradients):
        begun = [ops.all_reduce(one, "sum", group) for one in gradients]
        for parameter, gradient in zip(parameters, ops.wait_tensors(begun), strict=True):
            parameter.sub_(gradient.mul_(0.1))

    return update


@pytest.fixture(name="alone_in_a_group")
def _alone_in_a_group():
    store = torch.distributed.HashStore()
    torch.distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
    yield
    torch.distributed.destroy_process_group()


def compare(made):
    """A loop in eager and by programs; the source of the last program."""

    def run(wrap):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2))
        parameters = list(model.parameters())
        update = made(parameters)

        @wrap
        def step(x):
            loss = model(x).square().mean()
            gradients = torch.autograd.grad(loss, parameters)
            with torch.no_grad():
                update(list(gradients))
            return loss

        return [step(torch.randn(3, 4)) for _ in range(6)] + parameters, step

    expected, _ = run(lambda step: step)
    found, step = run(tg.step)
    assert all(map(torch.equal, found, expected))
    assert step.report().calls.programs >= 2
    return str(step.report().source)


@needs_new
@pytest.mark.parametrize("made", [by_lists, by_function])
def test_functions_over_lists(made):
    compare(made)


@needs_new
def test_waiting_for_several_collectives(alone_in_a_group):
    assert "wait_tensors(" not in compare(all_reduced)


@needs_new
def test_sums_of_the_engine_in_a_backward():
    """A step is refused whose backward asks for them; under the fallback later calls are eager."""
    seen = []

    class Scaled(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x) -> torch.Tensor:
            return x * 0.3

        @staticmethod
        def backward(ctx, gradient) -> torch.Tensor:
            (held,) = ctx.input_grad_buffers
            seen.append(held is not None)
            return gradient * 0.3

    weight = nn.Parameter(torch.randn(4))

    def step():
        weight.grad = None
        hidden = weight * 1.0
        (Scaled.apply(hidden).sum() + hidden.pow(3).sum()).backward()

    step()
    refused, falls_back = tg.step(step), tg.step(step)
    falls_back.config.set_fallback("eager")
    with pytest.raises(NoProgram, match="input_grad_buffers"):
        refused()
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        for _ in range(3):
            falls_back()
    assert seen == [True, False, True, True]
    assert "ctx.input_grad_buffers" in str(said[0].message)


def test_a_number_that_a_function_of_cond_reads_is_set():
    """From 2.15 on eager raises, and so does a step."""
    torch.manual_seed(0)

    def calls(wrap):
        torch.compiler.reset()
        held = nn.Module()

        @wrap
        def step(x):
            return torch.cond(x.sum() > 0, lambda x: x * held.factor, lambda x: x - 1, (x,))

        for n in range(6):
            held.factor = 2.0 if n < 3 else 0.5
            try:
                yield step(torch.ones(3)).tolist()
            except RuntimeError as error:
                yield type(error).__name__

    expected = list(calls(lambda step: step))
    assert expected[3] == ("TorchRuntimeError" if NEW else [0.5] * 3)
    assert list(calls(tg.step))[:4] == expected[:4]


# --- Inductor -------------------------------------------------------------------------------------


def test_defaults_of_inductor():
    """Of code for a GPU; what it rounds no CPU can show."""
    config = importlib.import_module("torch._inductor.config")
    assert getattr(config.triton, "nested_reduction", False) is NEW
    assert config.triton.mix_order_reduction
    assert config.loop_ordering_after_fusion
    assert hasattr(config, "numerics") is NEW


# --- the page -------------------------------------------------------------------------------------


def test_each_row_of_the_page_names_a_test():
    rows = [line for line in PAGE.read_text().splitlines() if re.match(r"\| (?!what|---)", line)]
    named = [re.search(r"`(test_\w+)`|on a GPU alone|not tested", row) for row in rows]
    assert len(rows) > 10
    assert all(named)
    assert {found[1] for found in named if found and found[1]} <= set(globals())
