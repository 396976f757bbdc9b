"""Passes and predicates: they stay, in their order, about the same numbers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import pytest
import torch

from tests import support
from tests.expecting import add_expect_shape
from torchgraph import ops, passes
from torchgraph.errors import VerifyError
from torchgraph.ir.program import Phase, Program, provenance
from torchgraph.ir.rewriter import Rewriter
from torchgraph.library import ValueMoved
from torchgraph.options.options import Options
from torchgraph.passes import (
    ActivationCheckpointing,
    ChannelsLast,
    CommonSubexpressions,
    DeadCode,
    DelayVariables,
    FoldConstants,
    MixedPrecision,
    Pass,
    pipeline,
    run,
)

aten = torch.ops.aten
TRUE = torch.tensor(True)
X = torch.linspace(-1, 1, 12).reshape(3, 4)


def expects(program: Program) -> int:
    return sum(node.target is ops.expect for node in program.nodes)


def constants(x):
    table = torch.tensor([3, 1, 2])
    ops.expect((table.max() < 4).all(), TRUE)
    ops.expect_shape(table, [3])
    ops.expect((x > 0).any(), TRUE)
    return (x * table.sum(),)


def test_fold_looks_at_constants_once():
    program = support.build(constants, X)
    assert expects(program) == 2
    done, _ = support.apply(FoldConstants(), program)
    assert expects(done) == 1
    assert "torchgraph.expect_shape" not in " ".join(support.targets(done))
    assert done.gm(X)[0].equal(X * 6)
    with pytest.raises(ValueMoved):
        done.gm(-X.abs())


def wrong(x):
    ops.expect(torch.tensor(3).add(1), torch.tensor(4))
    return (x * 2,)


def test_fold_leaves_what_never_holds():
    program = support.build(wrong, X)
    held = [node.target for node in program.nodes if node.op == "get_attr"]
    getattr(program.gm, str(held[-1])).fill_(5)
    done, _ = support.apply(FoldConstants(), program)
    assert expects(done) == 1
    with pytest.raises(ValueMoved, match="expected 5, found 4"):
        done.gm(X)


def doubled(x):
    ops.expect((x > 0).any(), TRUE)
    ops.expect((x > 0).any(), TRUE)
    return (x * 2,)


@pytest.mark.parametrize("one", [CommonSubexpressions(), DeadCode()])
def test_equal_ones_stay_two(one):
    done, _ = support.apply(one, support.build(doubled, X))
    assert expects(done) == 2


@dataclass(frozen=True)
class Drops(Pass):
    """Breaks the rule."""

    name: ClassVar[str] = "drops"

    def exact(self, program: Program) -> bool:
        return True

    def apply(self, program: Program, edit: Rewriter) -> None:
        edit.erase(support.find(program, ops.expect))


@dataclass(frozen=True)
class Swaps(Drops):
    """Moves a predicate over a draw."""

    name: ClassVar[str] = "swaps"

    def apply(self, program: Program, edit: Rewriter) -> None:
        draw = support.find(program, aten.bernoulli.p)
        edit.move(support.find(program, ops.expect), before=draw.next)


def drawing(x):
    ops.expect((x > 0).any(), TRUE)
    return (x * x.bernoulli(0.5),)


@pytest.mark.parametrize("one", [Drops(), Swaps()])
def test_the_verifier_sees_a_pass_that_does_not_keep_them(one):
    with pytest.raises(VerifyError, match="effects keep their order"):
        support.apply(one, support.build(drawing, X))


def casting(w, x):
    half = w.to(torch.float16)
    ops.expect((half < 9).all(), TRUE)
    y = x * 2
    ops.expect((y < 9).all(), TRUE)
    return (y + half.float(),)


def test_delayed_variables():
    program = support.build(casting, X, X)
    done, _ = support.apply(DelayVariables(), program)
    assert expects(done) == 2
    support.assert_parity(program, done, X, X)


def network(x, w):
    h = (x @ w).relu()
    ops.expect((h < 99).all(), TRUE)
    h = h.exp()
    out = h.log1p().sum()
    back = h * w.sum()
    ops.expect((h > 0).all(), TRUE)
    return out, back * h.sigmoid()


def test_recomputation_repeats_no_predicate():
    program = support.build(network, torch.ones(4, 4), torch.ones(4, 4))
    nodes = [node for node in program.nodes if node.op == "call_function"]
    first = nodes.index(support.find(program, aten.log1p.default)) + 2
    for node in nodes[first:]:
        origin = provenance(node)
        node.meta["provenance"] = type(origin)(origin.module, Phase.BACKWARD, origin.frames)
    done, edits = support.apply(ActivationCheckpointing(policy=[]), program)
    assert edits
    targets = [node.target for node in done.nodes]
    assert targets.count(aten.exp.default) == 2
    assert expects(done) == 2
    support.assert_parity(program, done, torch.ones(4, 4), torch.ones(4, 4))


def mixed(x, w):
    y = x @ w
    ops.expect(y.argmax(), torch.tensor(3))
    ops.expect(y, torch.full((4, 4), 4.0))
    return ((y @ w).sum(),)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_mixed_precision_shows_them_the_recorded_type(dtype):
    x, w = torch.ones(4, 4), torch.ones(4, 4)
    program = support.build(mixed, x, w)
    done, edits = support.apply(MixedPrecision(dtype), program)
    assert edits
    assert expects(done) == 2
    value = support.find(done, ops.expect, 1).args[0]
    assert value.meta["val"].dtype is torch.float32
    half = [node for node in done.nodes if node.target is aten.mm.default]
    assert all(node.meta["val"].dtype is dtype for node in half)


def masked(x, w):
    chosen = (x @ w)[x[:, 0] > 0]
    return ((chosen @ w).relu().sum(),)


@pytest.mark.parametrize("one", [MixedPrecision(torch.bfloat16), None])
def test_recorded_sizes_survive(one):
    program = support.build(masked, torch.ones(4, 4), torch.ones(4, 4))
    add_expect_shape(program, support.find(program, aten.index.Tensor), 3, 4)
    chosen = (one,) if one is not None else pipeline(Options())
    done = run(program, chosen, support.STRICT)
    index = support.find(done, aten.index.Tensor)
    assert index.meta["val"].shape == (3, 4)
    if one is not None:
        assert index.meta["val"].dtype is torch.bfloat16
    products = [node for node in done.nodes if node.target is aten.mm.default]
    assert products[-1].meta["val"].shape == (3, 4)
    x = torch.ones(4, 4)
    x[0, 0] = -1
    done.gm(x, torch.ones(4, 4))
    with pytest.raises(ValueMoved):
        done.gm(torch.ones(4, 4), torch.ones(4, 4))


def convolved(x, w, v):
    y = torch.conv2d(x, w).relu()
    ops.expect(y, torch.full((4, 16, 14, 14), 27.0))
    for _ in range(4):
        y = torch.conv2d(y, v, padding=1).relu()
    return (y.sum(),)


def test_channels_last_gives_them_the_recorded_numbers():
    x, w, v = torch.ones(4, 3, 16, 16), torch.ones(16, 3, 3, 3), torch.ones(16, 16, 3, 3)
    program = support.build(convolved, x, w, v)
    done = run(program, (ChannelsLast(),), support.STRICT)
    assert done.history[-1].edits
    assert expects(done) == 1
    program.gm(x, w, v)
    done.gm(x, w, v)
    with pytest.raises(ValueMoved):
        done.gm(x * 2, w, v)


def test_every_pass_keeps_them():
    kept = [
        one
        for one in map(passes.__dict__.get, passes.__all__)
        if isinstance(one, type) and issubclass(one, Pass) and one is not Pass
    ]
    removing = {one.name for one in kept if "predicates" in one.removes}
    assert removing == {"fold", "fuse_cross_entropy", "fuse_linear_cross_entropy"}
