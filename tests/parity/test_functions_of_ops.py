"""Ops that take functions: `torch.cond`, loops, scans, flex_attention; eager's bits by programs.

Eager traces their functions for the gradients in each call: a few calls are enough.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional

import torchgraph as tg
from tests.cases.plays import Play, adam, pairs, singles, trains
from tests.cases.table import Table
from torchgraph.errors import EagerWarning, NoProgram

case = Table(least=1, says=None)
NUMBERS_MOVE = tuple(map(int, torch.__version__.split(".")[:2])) < (2, 15)
"""False where eager raises an error of Dynamo's once a number that a function reads is another."""


def op(name: str, module: str = "") -> Callable[..., Any]:
    """An op of torch's that has no public name in each version."""
    found: Any = importlib.import_module(f"torch._higher_order_ops.{module or name}")
    return getattr(found, name)


class Parts(nn.Module):
    """What the functions take from around them."""

    def __init__(self) -> None:
        super().__init__()
        self.left, self.right = nn.Linear(4, 4), nn.Linear(4, 4)
        self.weight, self.other = (nn.Parameter(torch.randn(4)) for _ in range(2))
        self.factor = 2.0


def loss_of(loss: Callable[[Parts, torch.Tensor], torch.Tensor]) -> Play:
    """A training step."""
    parts = Parts()
    return trains(parts, lambda x, y: loss(parts, x), adam(parts), calls=pairs(4))


def branch(m: Parts, x: torch.Tensor, threshold: float = -1e9) -> torch.Tensor:
    """Each side takes a weight of its own, whose gradient is zeros on the other and not None."""
    taken = torch.cond(
        x.sum() > threshold,
        lambda t: m.left(t) * m.weight * m.factor + m.weight,
        lambda t: m.right(t) - m.other,
        (x,),
    )
    return (taken * m.weight).sum()


def mapped(m: Parts, x: torch.Tensor) -> torch.Tensor:
    """Random draws in each slice."""
    return op("map")(lambda t: functional.dropout(m.left(t) * m.weight, 0.3), x).sum()


def scanned(m: Parts, x: torch.Tensor) -> torch.Tensor:
    """A recurrent cell."""
    carry, each = op("scan")(
        lambda c, t: (torch.tanh(m.left(t) + m.right(c)), c * m.weight), torch.zeros(4), x
    )
    return carry.sum() + each.sum()


def looped(m: Parts, x: torch.Tensor) -> torch.Tensor:
    """As many turns as the data says, with a number and a tensor."""
    with torch.no_grad():
        count, value = op("while_loop")(
            lambda i, t: t.sum() < 300, lambda i, t: (i + 1, t * 1.5 + m.weight.abs()), (0, x.abs())
        )
    return (m.left(x) * value).sum() * count


def nested(m: Parts, x: torch.Tensor) -> torch.Tensor:
    """One op within a function of another, and dicts for arguments."""
    taken = torch.cond(
        x.sum() > -1e9,
        lambda d: {
            "r": torch.cond(d["h"].sum() > -1e9, torch.sin, torch.cos, (d["h"],)) * m.weight
        },
        lambda d: {"r": d["h"] * m.other},
        ({"h": m.left(x)},),
    )
    return taken["r"].sum()


def accumulated(m: Parts, x: torch.Tensor) -> torch.Tensor:
    """A product along the rows."""
    scan = op("associative_scan")
    return scan(lambda a, b: a * b * m.weight, m.left(x), 0, combine_mode="generic").sum()


def in_half(m: Parts, x: torch.Tensor) -> torch.Tensor:
    """Under autocast."""
    with torch.autocast("cpu", dtype=torch.bfloat16):
        return branch(m, x).float() + mapped(m, x).float()


def checkpointed(m: Parts, x: torch.Tensor) -> torch.Tensor:
    """Computed again in backward."""
    from torch.utils.checkpoint import checkpoint

    return checkpoint(lambda t: branch(m, t), m.right(x), use_reentrant=False)


LOSSES = {
    "looped": looped, "scanned": scanned, "mapped": mapped, "nested": nested,
    "accumulated": accumulated, "in half": in_half, "checkpointed": checkpointed,
    "twice": lambda m, x: branch(m, x) + branch(m, x * 2),
}  # fmt: skip
case.rows({name: lambda loss=loss: loss_of(loss) for name, loss in LOSSES.items()}, slow=True)
case.rows({"a Graph": lambda: loss_of(branch)}, forms="graph", slow=True)


@case
def a_number_that_a_function_reads_is_set():
    parts = Parts()

    def set_to(value: float) -> None:
        parts.factor = value

    before = {3: lambda: set_to(0.5)} if NUMBERS_MOVE else {}
    return trains(parts, lambda x, y: branch(parts, x), adam(parts), before=before, calls=pairs(4))


@case(slow=True)
def sides_in_turn():
    parts = Parts()
    calls = [(torch.ones(5, 4) * (1 if n % 3 else -1), None) for n in range(12)]
    return trains(parts, lambda x, y: branch(parts, x, 0.0), adam(parts), calls=calls)


@case(slow=True)
def a_buffer_is_written_by_a_loop():
    count = torch.zeros(4)

    def body(i, t):
        count.add_(1)
        return i + 1, t + count

    def step(x):
        with torch.no_grad():
            return op("while_loop")(lambda i, t: i < 3, body, (torch.tensor(0), x.clone()))[1]

    return Play(step, [count], calls=singles())


def attention(**options: Any) -> Play:
    """flex_attention with a trained bias, which eager has no backward for on the CPU."""
    flex = importlib.import_module("torch.nn.attention.flex_attention")
    parts, bias = Parts(), torch.randn(2, 5, 5)
    known = torch.tensor([0, 0, 1, 1, 1])
    mask = flex.create_block_mask(
        lambda b, h, i, j: known[i] == known[j], None, None, 5, 5, device="cpu"
    )

    def step(x):
        query = parts.left(x).view(5, 2, 2).transpose(0, 1)[None]
        key = query[:, :1] if options.get("enable_gqa") else query
        return flex.flex_attention(
            query, key, key,
            score_mod=lambda s, b, h, i, j: s * parts.factor + bias[h, i, j],
            block_mask=mask, **options,
        )  # fmt: skip

    def call(x):
        with torch.no_grad():
            return step(x)

    def set_factor() -> None:
        parts.factor = 3.0

    return Play(
        call, [parts, bias], calls=singles(5), before={4: set_factor} if NUMBERS_MOVE else {}
    )


case.rows({"flex": attention})
case.rows(
    {
        "flex of groups": lambda: attention(enable_gqa=True),
        "flex with lse": lambda: attention(return_lse=True),
    },
    slow=True,
)


@case(refused=NoProgram, least=0, says=r"(?s)torch\.func.*# here.*torch\.where")
def within_vmap():
    def chosen(t):
        return torch.cond(t.sum() > 0, torch.sin, torch.cos, (t,))  # here

    return Play(torch.func.vmap(chosen), calls=singles(3))


@pytest.mark.parametrize("case", case)
@pytest.mark.filterwarnings("ignore:flex_attention called without", "ignore:return_lse is")
def test_ops_with_functions(case):
    case.check()


@pytest.mark.parametrize("trains", [False, pytest.param(True, marks=pytest.mark.slow)])
@pytest.mark.filterwarnings("ignore:flex_attention called without")
def test_attention_that_is_compiled_is_left_to_eager(monkeypatch, trains):
    """There it holds no scores; in each call, also in that which is recorded, it is fused."""
    flex = importlib.import_module("torch.nn.attention.flex_attention")
    monkeypatch.setattr(flex, "_validate_device", lambda *_: None)  # for gradients on a CPU
    debugging = importlib.import_module("torch._dynamo.backends.debugging")
    plain, backend, fused = debugging.aot_eager, [], []

    def counted(graph_module, inputs):
        backend.append(graph_module)
        run = plain(graph_module, inputs)

        def call(*args: Any) -> object:
            fused.append(args)
            return run(*args)

        return call

    def steps(make):
        torch.manual_seed(0)
        torch.compiler.reset()
        model, bias = nn.Linear(4, 4), torch.randn(5, 5)
        optimizer = adam(model)

        @functools.partial(torch.compile, backend=counted)
        def attended(x):
            query = model(x).view(5, 2, 2).transpose(0, 1)[None]
            return flex.flex_attention(  # here
                query, query, query, score_mod=lambda s, b, h, i, j: s + bias[i, j]
            )

        def step(x):
            with torch.set_grad_enabled(trains):
                loss = attended(x).square().sum()
            if trains:
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
            return loss

        run = make(step)
        return [run(x).clone() for (x,) in singles(5)]

    expected = steps(lambda step: step)
    fused.clear()
    with pytest.warns(EagerWarning, match=r"flex_attention .*torch\.compile.*here"):
        found = steps(tg.step)
    assert all(map(torch.equal, expected, found))
    assert len(fused) == 5
    assert all("flex_attention" in one.print_readable(print_output=False) for one in backend)


@pytest.mark.skipif(not NUMBERS_MOVE, reason="eager raises")
def test_what_a_function_reads_of_an_object_is_compared():
    class Held:
        factor = 2.0

    held = Held()
    step = tg.step(
        lambda x: torch.cond(x.sum() > 0, lambda x: x * held.factor, lambda x: x - 1, (x,))
    )
    for n in range(14):
        held.factor = 2.0 if n < 10 else 0.5
        assert step(torch.ones(3)).tolist() == [held.factor] * 3
    assert step.report().calls.programs > 6
