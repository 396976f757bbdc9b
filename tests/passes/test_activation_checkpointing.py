"""The pass alone: what it keeps, what it repeats, and where it cuts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch

from tests import support
from torchgraph.ir.program import RECOMPUTED, Phase, Program, provenance
from torchgraph.passes import ActivationCheckpointing
from torchgraph.passes.checkpointing.segments import Activation, cheapest, crosses

aten = torch.ops.aten
X, W = torch.randn(4, 6), torch.randn(6, 6)


def layer(x: Any, w: Any) -> tuple[Any, Any]:
    product = aten.mm.default(x, w)
    return product, aten.relu.default(product)


def two_layers(x: Any, w: Any) -> Sequence[Any]:
    first, h = layer(x, w)
    second, y = layer(h, w)
    gradient = aten.threshold_backward.default(y, second, 0)
    weight = aten.mm.default(aten.t.default(h), gradient)
    below = aten.threshold_backward.default(aten.mm.default(gradient, aten.t.default(w)), first, 0)
    return y, aten.add.Tensor(weight, aten.mm.default(aten.t.default(x), below))


def in_modules(step: Callable[..., Sequence[Any]], *examples: torch.Tensor) -> Program:
    """Ops up to the first gradient are forward; each product begins a call of another module."""
    program = support.build(step, *examples)
    phase, call = Phase.FORWARD, 0
    for node in program.nodes:
        if node.op != "call_function":
            continue
        if "backward" in str(node.target):
            phase = Phase.BACKWARD
        if node.target is aten.mm.default and phase is Phase.FORWARD:
            call += 1
        calls = ((f"net.{call}", call),) if phase is Phase.FORWARD else ()
        origin = replace(provenance(node), phase=phase, module=f"net.{call}", calls=calls)
        node.meta["provenance"] = origin
    return program


BOTH = ActivationCheckpointing((("net.1", True), ("net.2", True)))


def test_match() -> None:
    before = in_modules(two_layers, X, W)
    done, edits = support.apply(BOTH, before)
    support.assert_golden("activation_checkpointing", support.before_and_after(before, done))
    assert edits > 0
    support.assert_parity(before, done, X, W)
    saved = {one.region: one for one in done.history[-1].savings}
    nbytes = X.numel() * 4
    # The product is repeated; y is what the user gets, h what the second layer reads.
    assert saved["net.1"].kept_before == 2 * nbytes
    assert saved["net.1"].kept_after == nbytes
    assert saved["net.2"].recomputed == 1


@pytest.mark.parametrize(
    "one",
    [
        ActivationCheckpointing((("net.1", False), ("net.2", False))),
        ActivationCheckpointing((("other", True),)),
        ActivationCheckpointing(policy=1.0),
        ActivationCheckpointing(policy=1 << 30),
        ActivationCheckpointing(policy=(aten.mm, aten.relu)),
    ],
)
def test_no_match(one: ActivationCheckpointing) -> None:
    support.assert_unchanged(one, in_modules(two_layers, X, W))


def test_edits_once() -> None:
    done, _ = support.apply(BOTH, in_modules(two_layers, X, W))
    assert support.apply(BOTH, done)[1] == 0


def test_effects_kept() -> None:
    def step(x: Any, w: Any) -> Sequence[Any]:
        product = aten.mm.default(x, w)
        noise = aten.rand_like.default(product)
        coins = aten.bernoulli.p(product, 0.5)
        hidden = aten.mul.Tensor(aten.mul.Tensor(product, noise), coins)
        y = aten.mm.default(hidden, w)
        gradient = aten.threshold_backward.default(y, aten.relu.default(y), 0)
        return y, aten.mul.Tensor(gradient, hidden), aten.mul.Tensor(gradient, coins)

    before = in_modules(step, X, W)
    done, _ = support.apply(ActivationCheckpointing((("net.1", True),)), before)
    support.assert_parity(before, done, X, W)
    names = support.targets(done)
    assert names.count("rand_like") == 1
    assert names.count("bernoulli.p") == 1
    kept = [n for n in done.nodes if n.meta.get("val") is not None and n.op == "call_function"]
    assert any(n.meta["val"].dtype is torch.bool for n in kept)  # the coins


def test_batch_norm_is_kept() -> None:
    def step(x: Any, w: Any) -> Sequence[Any]:
        product = aten.mm.default(x, w)
        mean, var = aten.sum.dim_IntList(w, [0]), aten.sum.dim_IntList(w, [1])
        normed = aten._native_batch_norm_legit_functional.default(
            product, None, None, mean, var, True, 0.1, 1e-5
        )
        y = aten.relu.default(normed[0])
        z = aten.mm.default(y, w)
        gradient = aten.threshold_backward.default(z, z, 0)
        return z, aten.mul.Tensor(gradient, aten.mul.Tensor(y, normed[0]))

    before = in_modules(step, X, W)
    done, _ = support.apply(ActivationCheckpointing((("net.1", True),)), before)
    support.assert_parity(before, done, X, W)
    assert support.targets(done).count("_native_batch_norm_legit_functional") == 1


@pytest.mark.parametrize("policy", ["matmuls", (aten.relu.default,), 0.5, 0, 200])
def test_policies(policy: Any) -> None:
    before = in_modules(two_layers, X, W)
    done, _ = support.apply(ActivationCheckpointing(policy=policy), before)
    support.assert_parity(before, done, X, W)
    again = [str(n.target) for n in done.nodes if RECOMPUTED in n.meta]
    if policy == "matmuls":
        assert "aten.mm.default" not in again
    if policy == (aten.relu.default,):
        assert "aten.relu.default" not in again


def test_an_impossible_budget_says_what_is_possible() -> None:
    done, _ = support.apply(ActivationCheckpointing(policy=1), in_modules(two_layers, X, W))
    (refusal,) = done.history[-1].refusals
    assert "1 bytes" in refusal.reason


def chain(sizes: Sequence[int]) -> list[Activation]:
    """Each value is read by the next op and by the backward."""
    node: Any = None
    last = len(sizes) - 1
    return [Activation(i, min(i + 1, last), size, True, node) for i, size in enumerate(sizes)]


def test_a_long_chain_is_cut_into_about_the_square_root() -> None:
    values = chain([1] * 100)
    found = cheapest(values, 100)
    assert 7 <= len(found.cuts) <= 13
    assert found.peak <= 20  # 2 sqrt(n), Chen et al.
    assert found.crossing == sum(crosses(value, found.cuts) for value in values)


def test_cuts_are_where_little_crosses() -> None:
    values = chain([10, 1, 10, 10, 1, 10, 10, 1, 10])
    found = cheapest(values, 9)
    assert found.cuts
    assert all(values[cut - 1].size == 1 for cut in found.cuts)


def test_one_value_cannot_be_cut() -> None:
    assert cheapest(chain([5]), 1).peak == 5
