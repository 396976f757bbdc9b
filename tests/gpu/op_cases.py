"""Each op of ours beside what it must give, in float64 on the CPU, from fresh random inputs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any, NamedTuple

import torch
from torch.nn import functional as F

from tests.ops.cases import RULES, Case, expected, laid_out, make, moved_to
from torchgraph import ops
from torchgraph.library.dtypes import wide
from torchgraph.passes.fusions.bce_mean import op as bce
from torchgraph.passes.fusions.cross_entropy import op as cross_entropy
from torchgraph.passes.fusions.model_update import op as update
from torchgraph.passes.fusions.norm import op as norm

Tensor = torch.Tensor
SHAPES = [(3,), (0,), (2, 5), (4, 3, 3, 3), (70001,), (), (257, 129)]
LAYOUTS = ("contiguous", "transposed", "gaps", "offset")
ROWS = ((1, 2), (7, 3), (64, 1000), (33, 50257), (5, 4099))


class Pair(NamedTuple):
    """A result and what it should be. ``exact``: to the bit, else within rounding."""

    found: Tensor
    right: Tensor
    exact: bool = False


class NotThere(Exception):
    """There is nothing to compare with, in a dtype or on a device."""


@dataclass(frozen=True)
class Given:
    """Where the op runs, in which dtype, and where its inputs come from."""

    device: torch.device
    dtype: torch.dtype
    random: torch.Generator

    def normal(self, *shape: int, layout: str = "") -> Tensor:
        """A tensor of the dtype on the CPU, in a random layout unless one is named."""
        values = torch.randn(shape, generator=self.random, dtype=torch.float64)
        return laid_out(values.to(self.dtype), layout or self.one_of(LAYOUTS))

    def one_of(self, choices: Sequence[Any]) -> Any:
        """One of them at random."""
        return choices[self.integer(len(choices))]

    def integer(self, below: int) -> int:
        """A random number below that."""
        return int(torch.randint(below, (), generator=self.random))

    def classes(self, below: int, count: int) -> Tensor:
        """Class indices; every fifth is ignored by a loss."""
        found = torch.randint(below, (count,), generator=self.random)
        found[::5] = -100
        return found

    def there(self, value: Any) -> Any:
        """The value on the device, with the same strides."""
        return moved_to(self.device, value)


# --- the multi-tensor updates ---------------------------------------------------------------------


def updates(rule: str, *, device_numbers: bool) -> Callable[[Given], Iterator[Pair]]:
    """An update rule, its numbers from the host or as tensors on the device."""

    def pairs(given: Given) -> Iterator[Pair]:
        case = _update(rule, given)
        right = expected(case)
        done = _on_device(case, given, steps=device_numbers)
        options = _numbers_as_tensors(done, given) if device_numbers else done.options
        op = update.writing(rule, device=device_numbers)
        returned = update.functional(rule, device=device_numbers)(*done.lists.values(), **options)
        op(*done.lists.values(), **options)
        for name, tensors in done.lists.items():
            if name == "copies":
                params = done.lists["params"]
                yield from (
                    Pair(c, p.to(c.dtype), True) for c, p in zip(tensors, params, strict=True)
                )
            elif name != "grads":
                yield from map(Pair, tensors, right[name])
        written = [t for name, ts in done.lists.items() if name != "grads" for t in ts]
        yield from (Pair(a, b, True) for a, b in zip(returned, written, strict=True))
        yield from _skipped(op, case, given, device_numbers=device_numbers)

    return pairs


def _update(rule: str, given: Given) -> Case:
    layouts = {name: given.one_of(LAYOUTS) for name in update.RULES[rule].lists}
    layouts["grads"] = given.one_of((*LAYOUTS, "expanded"))
    case = make(
        rule,
        SHAPES,
        given.dtype,
        copy_dtype=torch.bfloat16,
        layouts=layouts,
        seed=given.integer(1 << 30),
        l1=0.01,
    )
    for copy in case.lists["copies"]:
        copy.fill_(torch.nan)
    scalars = {"grad_scale": 1.0 + given.integer(8), "clip_coef": 1.0 / (1 + given.integer(4))}
    return replace(
        case, options={**case.options, **{k: torch.tensor(v) for k, v in scalars.items()}}
    )


def _on_device(case: Case, given: Given, *, steps: bool) -> Case:
    """On the device; the steps stay on the CPU for an op that takes numbers of the host."""
    lists = {
        name: list(map(given.there, tensors)) if steps or name != "steps" else tensors
        for name, tensors in case.copy().lists.items()
    }
    return replace(case, lists=lists, options={k: given.there(v) for k, v in case.options.items()})


def _numbers_as_tensors(case: Case, given: Given) -> dict[str, Any]:
    return {
        name: torch.tensor(value, dtype=torch.float64, device=given.device)
        if type(value) is float
        else value
        for name, value in case.options.items()
    }


def _skipped(op: Any, case: Case, given: Given, *, device_numbers: bool) -> Iterator[Pair]:
    """With an infinity found nothing is written, nor counted where the steps lie on the CPU."""
    done = _on_device(case, given, steps=device_numbers)
    before = [t.clone() for tensors in done.lists.values() for t in tensors]
    options = _numbers_as_tensors(done, given) if device_numbers else done.options
    found = torch.ones((), device=given.device)
    op(*done.lists.values(), **options, found_inf=found)
    after = [t for tensors in done.lists.values() for t in tensors]
    yield from (Pair(a, b, True) for a, b in zip(after, before, strict=True))


# --- losses ---------------------------------------------------------------------------------------


def cross_entropies(given: Given) -> Iterator[Pair]:
    """Softmax cross-entropy forward, backward, and backward in the logits' own memory."""
    for rows, classes in ROWS:
        logits, target = given.normal(rows, classes), given.classes(classes, rows)
        target[-1] = classes - 1  # the mean of no targets is NaN
        weight = torch.rand(classes, generator=given.random).to(wide(given.dtype)) + 0.1
        options: dict[str, Any] = {
            "weight": given.one_of((None, weight)),
            "reduction": given.one_of(("mean", "sum", "none")),
            "label_smoothing": given.one_of((0.0, 0.1)),
        }
        exact = logits.double().detach().requires_grad_()
        double = {**options, "weight": None if options["weight"] is None else weight.double()}
        right = F.cross_entropy(exact, target, **double)
        by_loss = torch.randn(right.shape, generator=given.random).to(wide(given.dtype))
        # Scaled, as under a grad scaler: small probabilities are too small for float16.
        by_loss *= max(1.0, classes / 8) * (rows if options["reduction"] == "mean" else 1)
        (gradient,) = torch.autograd.grad(right, exact, by_loss.double())
        yield from _cross_entropy(given, logits, target, options, by_loss, right, gradient)


def _cross_entropy(
    given: Given,
    logits: Tensor,
    target: Tensor,
    options: dict[str, Any],
    by_loss: Tensor,
    right: Tensor,
    gradient: Tensor,
) -> Iterator[Pair]:
    x, y = given.there(logits), given.there(target)
    reduction = ("none", "mean", "sum").index(options["reduction"])
    rest = (given.there(options["weight"]), reduction, -100, options["label_smoothing"])
    loss, lse, total = cross_entropy.forward(x, y, *rest)
    yield Pair(loss, right.detach())
    statistics = (given.there(by_loss), y, lse, total)
    found = cross_entropy.backward(x, *statistics, *rest)
    yield Pair(found, gradient)
    dense = x.contiguous().clone()
    cross_entropy.backward_in_place(dense, *statistics, *rest)
    yield Pair(dense, found, True)
    through = x.detach().requires_grad_()
    ops.cross_entropy(through, y, **{**options, "weight": rest[0]}).backward(statistics[0])
    assert through.grad is not None
    yield Pair(through.grad, found, True)


def binary_cross_entropies(given: Given) -> Iterator[Pair]:
    """The mean binary cross-entropy and its gradient by the logits."""
    for shape in ((), (5,), (37, 40), (1 << 17,)):
        layout = given.one_of((*LAYOUTS, "expanded"))
        logits = given.normal(*shape, layout=layout)
        target = laid_out(torch.rand(shape, generator=given.random).to(given.dtype), layout)
        exact = logits.double().detach().clone().requires_grad_()
        right = F.binary_cross_entropy_with_logits(exact, target.double())
        (gradient,) = torch.autograd.grad(right, exact)
        x, y = given.there(logits), given.there(target)
        loss = bce.forward(x, y)
        yield Pair(loss, right.detach())
        # Scaled, as under a grad scaler: a share of the mean is too small for float16.
        scale = float(max(1, logits.numel()))
        found = bce.backward(torch.full_like(loss, scale), x, y)
        yield Pair(found, gradient * scale)


# --- arithmetic -----------------------------------------------------------------------------------


def cast_scales(given: Given) -> Iterator[Pair]:
    """A cast and its scales; to the bit what the separate ops give on the same device."""
    for shape in ((), (5,), (37, 40), (1 << 17,)):
        x = given.there(given.normal(*shape, layout=given.one_of((*LAYOUTS, "expanded"))))
        for dtype in (torch.float32, torch.float64):
            by = torch.rand((), generator=given.random, dtype=torch.float64).to(dtype)
            found = ops.cast_scale(x, given.there(by), -3e-5, dtype=dtype)
            yield Pair(found, x.cpu().double() * -3e-5 * by.double())
            yield Pair(found, x.to(dtype, copy=True).mul_(-3e-5).mul_(given.there(by)), True)


def layer_norms(given: Given) -> Iterator[Pair]:
    """``layer_norm(x + residual)`` and its gradients."""
    yield from _norms(given, F.layer_norm, norm.add_layer_norm, norm.add_layer_norm_backward, True)


def rms_norms(given: Given) -> Iterator[Pair]:
    """``rms_norm(x + residual)`` and its gradients."""
    yield from _norms(given, F.rms_norm, norm.add_rms_norm, norm.add_rms_norm_backward, False)


def _norms(
    given: Given, exactly: Any, forward: Any, backward: Any, has_bias: bool
) -> Iterator[Pair]:
    for shape in ((3, 8), (2, 5, 257), (64, 1024)):
        x, residual, by_out, by_sum = (given.normal(*shape) for _ in range(4))
        weight, bias = (given.normal(shape[-1], layout="contiguous") for _ in range(2))
        # What is normalized has been rounded to the dtype: of that sum the rest is checked.
        total = (x + residual).contiguous()
        leaves = [t.double().detach().requires_grad_() for t in (total, weight, bias)]
        affine = leaves[1:] if has_bias else leaves[1:2]
        right = exactly(leaves[0], shape[-1:], *affine, eps=1e-5)
        gradients = torch.autograd.grad(right, [leaves[0], *affine], by_out.double())
        there = [given.there(t) for t in (x, residual, weight, *([bias] if has_bias else []))]
        found_sum, out, *statistics = forward(*there, 1e-5)
        yield Pair(found_sum, total.double())
        yield Pair(out, right.detach())
        by = (given.there(by_out), given.there(by_sum))
        found = backward(*by, found_sum, *statistics, there[2])
        yield Pair(found[0], gradients[0] + by_sum.double())
        yield from map(Pair, found[1:], gradients[1:])


# --- a grad scaler, draws, predicates -------------------------------------------------------------


def scalings(given: Given) -> Iterator[Pair]:
    """A grad scaler: unscale and look, keep old states, move the scale."""
    if given.device.type == "cuda" and given.dtype == torch.bfloat16:
        raise NotThere("torch has no such kernel, and no scaler is needed")
    cpu = [given.normal(*shape, layout="contiguous") for shape in ((5,), (300, 7), (1 << 16,))]
    grads = list(map(given.there, cpu))
    zero, scale = (torch.full((), v, device=given.device) for v in (0.0, 512.0))
    yield Pair(ops.find_inf(grads), torch.zeros(()), True)
    *unscaled, found = ops.unscale(grads, zero, scale)
    yield from (Pair(g, c.double() / 512) for g, c in zip(unscaled, cpu, strict=True))
    yield Pair(found, torch.zeros(()), True)
    bad = [g.clone() for g in grads]
    bad[1][3, 3] = given.one_of((torch.inf, -torch.inf, torch.nan))
    yield Pair(ops.find_inf(bad), torch.ones(()), True)
    one = ops.unscale(bad, zero, scale)[-1]
    yield Pair(one, torch.ones(()), True)
    kept, taken = ops.keep(grads, bad, one), ops.keep(grads, unscaled, zero)
    yield from (Pair(k, g, True) for k, g in zip(kept, grads, strict=True))
    yield from (Pair(t, u, True) for t, u in zip(taken, unscaled, strict=True))
    tracker = torch.full((), 1, dtype=torch.int32, device=given.device)
    for flag, state in ((zero, (1024.0, 0.0)), (one, (256.0, 0.0))):
        moved = ops.update_scale([scale, tracker], flag, 2.0, 0.5, 2)
        yield from (Pair(m, torch.tensor(s)) for m, s in zip(moved, state, strict=True))


def draws(given: Given) -> Iterator[Pair]:
    """Bernoulli and normal numbers: those that the op in place draws from the same generator."""
    seed = given.integer(1 << 30)
    for shape in ((4, 5), (1000,), (33, 257)):
        like = given.there(given.normal(*shape, layout=given.one_of(("contiguous", "transposed"))))
        for op, name, numbers in (
            (ops.bernoulli, "bernoulli_", (0.7,)),
            (ops.normal, "normal_", (1.0, 2.0)),
        ):
            wanted = torch.empty_strided(
                like.shape, like.stride(), dtype=like.dtype, device=like.device
            )
            torch.manual_seed(seed)
            getattr(wanted, name)(*numbers)
            torch.manual_seed(seed)
            yield Pair(op(like, *numbers), wanted, True)


def predicates(given: Given) -> Iterator[Pair]:
    """Ops that tell whether a value has moved since a program was recorded."""
    value = given.there(given.normal(7, 5))
    other = value.clone()
    other[3, 2] = -other[3, 2] - 1
    yield Pair(ops.differs(value, value.clone()), torch.tensor(False), True)
    yield Pair(ops.differs(value, other), torch.tensor(True), True)
    nan = torch.full((), torch.nan, dtype=given.dtype, device=given.device)
    yield Pair(ops.differs(nan, nan.clone()), torch.tensor(False), True)
    raised = []
    for op, arguments in (
        (ops.expect, (value, other)),
        (ops.expect_shape, (value, [7, 4])),
        (ops.expect_none, ([ops.differs(value, value), ops.differs(value, other)],)),
        (ops.expect, (value, value.clone())),
        (ops.expect_shape, (value, [7, 5])),
        (ops.expect_none, ([ops.differs(value, value.clone())],)),
    ):
        try:
            op(*arguments)
        except ops.ValueMoved:
            raised.append(True)
        else:
            raised.append(False)
    yield Pair(torch.tensor(raised), torch.tensor([True] * 3 + [False] * 3), True)


def fused_optimizers(given: Given) -> Iterator[Pair]:
    """Ops in the place of torch's fused optimizers: their bits."""
    if given.device.type == "cpu" and given.dtype != torch.float32:
        raise NotThere("torch's own do not repeat themselves: their loops go by alignment")
    number = {"lr": 0.01, "weight_decay": 0.1, "maximize": False}
    adam = {**number, "beta1": 0.9, "beta2": 0.99, "eps": 1e-8, "amsgrad": False}
    of_sgd = {"momentum": 0.9, "dampening": 0.1, "nesterov": False, "is_first_step": False}
    for name, states, options in (
        ("_fused_adam_", 2, adam),
        ("_fused_adamw_", 2, adam),
        ("_fused_sgd_", 1, {**number, **of_sgd}),
    ):
        shapes = ((5,), (300, 7), (1 << 16,))
        params, grads, *slots = (
            [given.there(given.normal(*s, layout="contiguous").abs()) for s in shapes]
            for _ in range(2 + states)
        )
        lists = [params, grads, *slots]
        if states == 2:
            steps = [torch.full((), 3.0, device=given.device) for _ in shapes]
            lists += [[], steps]
        mine, theirs = ([[t.clone() for t in each] for each in lists] for _ in range(2))
        getattr(torch.ops.torchgraph, name)(*mine, **options)
        getattr(torch.ops.aten, name)(*theirs, **options)
        flat = zip(chain(*mine), chain(*theirs), strict=True)
        yield from (Pair(a, b, True) for a, b in flat)


UPDATES: dict[str, Callable[[Given], Iterator[Pair]]] = {
    f"{rule}_update_{'.device' if device else ''}": updates(rule, device_numbers=device)
    for rule in RULES
    for device in (False, True)
}
CASES: dict[str, Callable[[Given], Iterator[Pair]]] = {
    **UPDATES,
    "cross_entropy": cross_entropies,
    "bce_with_logits_mean": binary_cross_entropies,
    "cast_scale": cast_scales,
    "add_layer_norm": layer_norms,
    "add_rms_norm": rms_norms,
    "grad scaler": scalings,
    "draws": draws,
    "predicates": predicates,
    "fused optimizers": fused_optimizers,
}
