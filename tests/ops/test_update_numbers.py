"""The update ops against torch.optim in float64, by the compiled kernels and by the references."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings, strategies as st

from tests.ops.cases import DTYPES, RULES, Case, equal, expected, make

LAYOUTS = ("contiguous", "transposed", "gaps", "offset")
FLAGS = {
    "sgd": ("nesterov", "is_first_step"),
    "adam": ("decoupled", "amsgrad"),
    "rmsprop": ("centered",),
    "lamb": ("decoupled", "bias_correction", "decay_in_trust_ratio"),
}
SPECIAL = (math.nan, math.inf, -math.inf, 0.0, -0.0, 1e-45, -1e-40, 1e-320)
shapes = st.lists(st.lists(st.integers(0, 9), max_size=3).map(tuple), max_size=3)


@st.composite
def cases(draw: Any) -> Case:
    rule = draw(st.sampled_from(RULES))
    dtype = draw(st.sampled_from(DTYPES))
    options: dict[str, Any] = {
        flag: draw(st.booleans()) for flag in (*FLAGS.get(rule, ()), "maximize")
    }
    for name, value in (("grad_scale", 64.0), ("clip_coef", 0.3)):
        if draw(st.booleans()):
            kind = draw(st.sampled_from((torch.float32, torch.float64)))
            options[name] = torch.tensor(value, dtype=kind)
    if draw(st.booleans()):
        options["l1"] = 0.0234
    if draw(st.booleans()):
        options["weight_decay"] = 0.0
    if options.get("nesterov"):
        options["dampening"] = 0.0
    elif rule in ("sgd", "rmsprop") and draw(st.booleans()):
        options["momentum"] = 0.0
    layouts = {
        name: draw(st.sampled_from((*LAYOUTS, "expanded") if name == "grads" else LAYOUTS))
        for name in ("params", "grads", "exp_avgs", "square_avgs", "momentum_buffers", "copies")
    }
    case = make(
        rule,
        draw(shapes),
        dtype,
        grad_dtype=draw(st.sampled_from((dtype, *DTYPES))),
        copy_dtype=draw(st.sampled_from((None, *DTYPES))),
        layouts=layouts,
        seed=draw(st.integers(0, 99)),
        **options,
    )
    # amsgrad's maximum forgets a NaN in a tensor's last elements, as torch's fused kernel does.
    special = SPECIAL[1:] if options.get("amsgrad") else SPECIAL
    for grad in case.lists["grads"]:
        if grad.numel() and 0 not in grad.stride() and draw(st.booleans()):
            grad[(0,) * grad.ndim] = draw(st.sampled_from(special))
    return case


@pytest.mark.parametrize("compiled", [True, False], ids=["compiled", "reference"])
def test_the_step_is_that_of_torch_optim_in_float64(compiled):
    @settings(
        max_examples=120, deadline=None, database=None, suppress_health_check=list(HealthCheck)
    )
    @given(cases())
    def check(case: Case) -> None:
        assert_is_the_step(case, case.run(compiled=compiled))

    check()


@pytest.mark.parametrize("compiled", [True, False], ids=["compiled", "reference"])
@pytest.mark.parametrize("rule", RULES)
def test_long_tensors(rule, compiled):
    """More than one stretch of the kernels, and ends of every length."""
    sizes = [(5000 + i,) for i in range(17)]
    case = make(rule, sizes, copy_dtype=torch.bfloat16, grad_dtype=torch.bfloat16, maximize=True)
    assert_is_the_step(case, case.run(compiled=compiled))


@pytest.mark.parametrize("rule", RULES)
def test_a_thousand_tensors_are_a_thousand_updates(rule):
    case = make(rule, [(1 + i % 37,) for i in range(1000)], copy_dtype=torch.bfloat16)
    together = case.run()
    for i in range(0, 1000, 41):
        alone = Case(rule, {k: v[i : i + 1] for k, v in case.lists.items()}, case.options).run()
        for name, tensors in alone.lists.items():
            assert all(equal(t, together.lists[name][i]) for t in tensors), name


@pytest.mark.parametrize("rule", RULES)
def test_numbers_as_tensors_give_the_same_bits(rule):
    case = make(rule, [(300,), (4, 5)], torch.float32, l1=0.1, copy_dtype=torch.float16)
    one, other = case.run(), case.run(device_numbers=True)
    for name in case.lists:
        assert all(map(equal, one.lists[name], other.lists[name])), name


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("compiled", [True, False], ids=["compiled", "reference"])
def test_nothing_changes_when_an_infinity_was_found(rule, compiled):
    case = make(rule, [(33,), (2, 3)], copy_dtype=torch.bfloat16, found_inf=torch.tensor(2.0))
    done = case.run(compiled=compiled)
    for name in case.lists:
        assert all(map(equal, case.lists[name], done.lists[name])), name
    case.options["found_inf"] = torch.tensor(0.0)
    assert not equal(case.run(compiled=compiled).lists["params"][0], case.lists["params"][0])


def assert_is_the_step(case: Case, done: Case) -> None:
    """Each element within the error of its arithmetic and half a unit in its last place."""
    wanted = expected(case)
    for name, tensors in done.lists.items():
        if name == "copies":
            for copy, param in zip(tensors, done.lists["params"], strict=bool(tensors)):
                assert equal(copy, param.to(copy.dtype))
        elif name == "grads":
            assert all(map(equal, tensors, case.lists[name])), "a gradient was written"
        else:
            for i, (got, want) in enumerate(zip(tensors, wanted[name], strict=True)):
                before = case.lists[name][i].double()
                bound = allowed(case, i, before, want, got.dtype)
                wrong = ((got.double() - want).abs() > bound) | (got.isnan() != want.isnan())
                wrong &= ~((got.double() == want) | (want.abs() > torch.finfo(got.dtype).max))
                assert not wrong.any(), f"{case.rule}: {name}[{i}]: {got[wrong]}, {want[wrong]}"


def allowed(
    case: Case, i: int, before: torch.Tensor, want: torch.Tensor, dtype: torch.dtype
) -> torch.Tensor:
    """The rounding to ``dtype``, and sixteen roundings of what goes in: none cancels much."""
    wide = torch.float64 if dtype == torch.float64 else torch.float32
    grad = case.lists["grads"][i].double().abs().nan_to_num(0.0, 0.0)
    scale = case.options.get("grad_scale")
    size = want.abs() + before.abs() + (grad if scale is None else grad / scale.double())
    error = 16 * torch.finfo(wide).eps * (size + 1e-30)
    if dtype != wide:
        info = torch.finfo(dtype)
        error = error + 0.5 * torch.maximum(info.eps * want.abs(), want * 0 + info.smallest_normal)
        if case.rule == "lamb":  # its second pass reads the moments as they are kept
            error = error + 2 * info.eps * (want - before).abs()
    return error
