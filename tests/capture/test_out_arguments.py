"""``op(..., out=x)`` into memory that is not contiguous: served with eager's bits, or in eager."""

from __future__ import annotations

import warnings

import pytest
import torch

import torchgraph as tg

CASES = {
    "maximum": (lambda: torch.zeros(3, 2).t(), lambda w, x: torch.max(x, w, out=x)),
    "inputs_lie_otherwise": (
        lambda: torch.zeros(3, 2).t(),
        lambda w, x: torch.mul(w.contiguous(), 3, out=x),
    ),
    "a_function_over_the_same_layout": (
        lambda: torch.zeros(3, 2).t(),
        lambda w, x: torch.exp(w, out=x),
    ),
    "gaps": (lambda: torch.zeros(4, 6)[::2, ::2], lambda w, x: torch.add(w, x, out=x)),
    "a_part": (lambda: torch.zeros(4, 4), lambda w, x: torch.add(w, 1, out=x[1:3, 1:4])),
    "another_dtype": (
        lambda: torch.zeros(3, 2, dtype=torch.double).t(),
        lambda w, x: torch.sub(w, 1, out=x),
    ),
    "its_result_is_used": (
        lambda: torch.zeros(3, 2).t(),
        lambda w, x: x.add_(torch.maximum(w, x, out=x)),
    ),
    "a_view_is_read": (
        lambda: torch.zeros(3, 2).t(),
        lambda w, x, row=None: [row := x[0], torch.maximum(w, x, out=x), row.mul_(2)],
    ),
}
EAGER = {
    "a_function_over_another_layout": (
        lambda: torch.zeros(3, 2).t(),
        lambda w, x: torch.exp(w.contiguous(), out=x),
    ),
    "a_product": (lambda: torch.zeros(2, 2).t(), lambda w, x: torch.mm(w, w.t(), out=x)),
    "a_sum": (lambda: torch.zeros(4)[::2], lambda w, x: torch.sum(w, 1, out=x)),
}


def _run(make, write, wrap):
    torch.manual_seed(0)
    held, weight = make(), torch.nn.Parameter(torch.randn(3, 2).t())
    optimizer = torch.optim.SGD([weight], lr=0.1)

    def step(x):
        optimizer.zero_grad()
        loss = (weight * x).square().sum()
        loss.backward()
        optimizer.step()
        with torch.no_grad():
            write(weight, held)
        return loss

    run, seen = wrap(step), []
    for number in range(4):
        seen.append((run(torch.full((2, 3), number + 1.0)).clone(), held.clone()))
    return seen, run


def _graphed(step):
    found = tg.step(step)
    found.config.set_backend("aten")
    return found


@pytest.mark.parametrize("name", [*CASES, *EAGER])
def test_it_is_eagers(name):
    case = {**CASES, **EAGER}[name]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", tg.errors.EagerWarning)
        got, graph = _run(*case, _graphed)
    expected, _ = _run(*case, lambda step: step)
    torch.testing.assert_close(got, expected, rtol=0, atol=0)
    calls = graph.report().calls
    assert calls.programs == (2 if name in CASES else 0)
    assert all("writes what lies otherwise" in one.why for one in calls.eager)
