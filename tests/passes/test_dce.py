from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from tests import support
from torchgraph.passes import DeadCode

aten = torch.ops.aten
X = torch.randn(3)


def dead_chain(x: Any) -> Sequence[Any]:
    aten.cos.default(aten.add.Tensor(x, torch.tensor([1.0, 2.0, 3.0])))
    return (aten.sin.default(x),)


def test_match() -> None:
    program = support.build(dead_chain, X)
    done, edits = support.apply(DeadCode(), program)
    support.assert_golden("dce", support.before_and_after(program, done))
    assert edits == 4
    assert not list(done.gm.buffers())


def test_no_match() -> None:
    support.assert_unchanged(DeadCode(), support.build(lambda x: (x + 1,), X))


def test_effects_kept() -> None:
    def step(x: Any) -> Sequence[Any]:
        aten.rand_like.default(x)
        aten._assert_async.default(aten.any.default(x))
        return (aten.rand_like.default(x),)

    program = support.build(step, torch.ones(3))
    support.assert_unchanged(DeadCode(), program)
    done, _ = support.apply(DeadCode(), program)
    support.assert_parity(program, done, torch.ones(3))


def test_unused_inputs_stay() -> None:
    program = support.build(lambda x, y: (x + 1,), X, X)
    done, edits = support.apply(DeadCode(), program)
    assert (len(done.placeholders), edits) == (2, 0)


def test_idempotent() -> None:
    done, _ = support.apply(DeadCode(), support.build(dead_chain, X))
    support.assert_unchanged(DeadCode(), done)


def test_parity() -> None:
    program = support.build(dead_chain, X)
    done, _ = support.apply(DeadCode(), program)
    support.assert_parity(program, done, X)
