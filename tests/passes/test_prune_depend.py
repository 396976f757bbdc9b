from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import nn

import torchgraph as tg
from tests import support
from torchgraph import ops
from torchgraph.ir.program import Program
from torchgraph.options.options import Options
from torchgraph.passes import CommonSubexpressions, DeadCode, PruneDepend, pipeline, run
from torchgraph.testing import Setup, assert_parity

aten = torch.ops.aten
X, Y = torch.randn(2, 3), torch.randn(2, 3)


def ordered(x: Any, y: Any) -> Sequence[Any]:
    first = aten.sin.default(y)
    return aten.cos.default(ops.after(x, [first])), first


def unordered(x: Any, y: Any) -> Sequence[Any]:
    return aten.cos.default(aten.clone.default(x)), aten.sin.default(y)


def outputs(x: Any, y: Any) -> Sequence[Any]:
    return ops.after(x, [y]), aten.view.default(ops.after(y, [x]), [6])


def test_match() -> None:
    before = support.build(ordered, X, Y)
    done, edits = support.apply(PruneDepend(), before)
    support.assert_golden("prune_depend", support.before_and_after(before, done))
    assert edits == 1
    assert support.targets(done) == ["sin", "cos"]


def test_no_match() -> None:
    support.assert_unchanged(PruneDepend(), support.build(unordered, X, Y))


def test_effects_kept() -> None:
    def step(x: Any, y: Any) -> Sequence[Any]:
        noise = aten.rand_like.default(y)
        return (aten.add.Tensor(ops.after(x, [noise]), aten.rand_like.default(x)),)

    before = support.build(step, X, Y)
    done = run(before, (PruneDepend(), DeadCode()), support.STRICT)
    assert support.targets(done) == ["rand_like", "rand_like", "add.Tensor"]
    support.assert_parity(before, done, X, Y)


def test_idempotent() -> None:
    done, _ = support.apply(PruneDepend(), support.build(outputs, X, Y))
    support.assert_unchanged(PruneDepend(), done)


@pytest.mark.parametrize("step", [ordered, outputs])
def test_parity(step: Any) -> None:
    for x in (X, X.t().contiguous().t(), torch.randn(3).expand(2, 3)):
        before = support.build(step, x, Y)
        done, _ = support.apply(PruneDepend(), before)
        assert ops.after not in [node.target for node in done.nodes]
        support.assert_parity(before, done, x, Y)


def test_until_then_it_is_no_common_subexpression() -> None:
    def step(x: Any, y: Any) -> Sequence[Any]:
        early = aten.cos.default(x)
        late = aten.cos.default(ops.after(x, [aten.sin.default(early)]))
        return (aten.add.Tensor(early, late),)

    before = support.build(step, X, Y)
    done = run(before, (CommonSubexpressions(), PruneDepend(), DeadCode()), support.STRICT)
    assert support.targets(done) == ["cos", "cos", "add.Tensor"]
    support.assert_parity(before, done, X, Y)


def test_what_nobody_reads_is_dead() -> None:
    def step(x: Any, y: Any) -> Sequence[Any]:
        ops.after(x, [aten.sin.default(y)])
        return (aten.cos.default(x),)

    done = run(support.build(step, X, Y), pipeline(Options()), support.STRICT)
    assert support.targets(done) == ["cos"]


class Prefetch(tg.Graph):
    """The cast of the second weight is wanted before the first layer runs."""

    def __init__(self, layers: nn.ModuleList, *, early: bool) -> None:
        super().__init__()
        self.layers = layers
        self.early = early

    def build(self, x: Any) -> Any:
        weight = self.layers[1].weight.double()
        if self.early:
            x = tg.depend(x, weight)
        return self.layers[0](x).double() @ weight


def targets(graph: tg.Graph) -> list[str]:
    program: Program = graph._runner.programs.compiler.latest[0].program
    return support.targets(program)


def test_the_order_holds_after_all_passes() -> None:
    layers = nn.ModuleList([nn.Linear(3, 3), nn.Linear(3, 3)])
    early, late = Prefetch(layers, early=True), Prefetch(layers, early=False)
    assert torch.equal(early(X), late(X))
    assert targets(late) == ["t", "addmm", "_to_copy", "_to_copy", "mm"]
    assert targets(early) == ["_to_copy", "t", "addmm", "_to_copy", "mm"]


def test_training_is_bitwise_eager() -> None:
    def make() -> Setup:
        model = nn.Sequential(nn.Linear(3, 3), nn.Dropout(0.5), nn.Linear(3, 3))
        return Setup(model, torch.optim.AdamW(model.parameters()), loss)

    def loss(model: Any, x: Any, y: Any) -> Any:
        hidden = model[0](x)
        other = model[2](y)
        return (model[1](tg.depend(hidden, other, x)) * other).sum()

    assert_parity(make, [(X, Y)] * 3)


def test_in_eager_mode_it_is_a_copy_with_a_gradient() -> None:
    x, y = X.clone().requires_grad_(), Y.clone().requires_grad_()
    z = tg.depend(x, y, y * 2)
    assert torch.equal(z, x)
    z.add_(1)
    assert torch.equal(x, X)  # in a Graph as in eager mode: the copy changed, not x
    z.sum().backward()
    assert x.grad is not None
    assert torch.equal(x.grad, torch.ones_like(X))
    assert y.grad is None


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor:UserWarning")  # torch's own
def test_the_op_keeps_the_rules_of_ops() -> None:
    torch.library.opcheck(ops.after, (X.clone().requires_grad_(), [Y]))


@pytest.mark.parametrize("arguments", [(X,), (X, 1), (None, X), (X, [Y])])
def test_wrong_arguments(arguments: Any) -> None:
    with pytest.raises(TypeError, match="depend"):
        tg.depend(*arguments)
