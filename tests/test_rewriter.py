from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import Any

import pytest
import torch

from tests import support
from torchgraph.ir import text
from torchgraph.ir.program import Phase, Program, Refusal, provenance
from torchgraph.ir.rewriter import EditLimitReached, Rewriter
from torchgraph.ir.verify import Stage, verify

aten = torch.ops.aten


def step(x: Any, lr: Any) -> Sequence[Any]:
    return (aten.mul.Tensor(aten.sin.default(x), lr * 2.0),)


def small() -> Program:
    return support.build(step, torch.randn(2, 3), 0.5)


def check(program: Program) -> None:
    program.gm.recompile()
    verify(program, Stage.OPTIMIZED, strict=True)


def test_call_computes_value_and_copies_provenance() -> None:
    program = small()
    edit = Rewriter(program, "mine")
    sin = support.find(program, aten.sin.default)
    new = edit.call(aten.t.default, (sin,), before=program.output, like=sin)
    assert tuple(new.meta["val"].shape) == (3, 2)
    assert new.meta["val"].fake_mode is sin.meta["val"].fake_mode
    origin = provenance(new)
    assert (origin.module, origin.phase, origin.made_by) == ("net", Phase.FORWARD, "mine")
    assert origin.frames == provenance(sin).frames
    assert (new.name, edit.edits) == ("t", 1)
    check(program)


def test_call_with_symbolic_scalars() -> None:
    program = small()
    edit = Rewriter(program, "mine")
    lr = program.placeholders[1]
    mul = support.find(program, aten.mul.Tensor)
    half = edit.call(torch.sym_max, (lr, 0.25), before=mul, like=mul)
    assert isinstance(half.meta["val"], torch.SymFloat)
    new = edit.call(
        aten.add.Tensor, (mul.args[0], mul.args[0]), {"alpha": half}, before=mul, like=mul
    )
    edit.replace(mul, new)
    check(program)
    x = torch.randn(2, 3)
    (got,) = program.gm(x, 0.125)
    assert torch.equal(got, torch.add(x.sin(), x.sin(), alpha=0.25))


def test_call_that_does_not_fit_raises_and_changes_nothing() -> None:
    program = small()
    before = text.render(program)
    edit = Rewriter(program, "mine")
    x = program.placeholders[0]
    with pytest.raises(RuntimeError):
        edit.call(aten.mm.default, (x, x), before=program.output, like=x)
    assert (text.render(program), edit.edits) == (before, 0)


def test_call_ignores_the_callers_modes() -> None:
    program = small()
    edit = Rewriter(program, "mine")
    x = program.placeholders[0]
    with torch.autocast("cpu", dtype=torch.bfloat16), torch.inference_mode():
        turned = edit.call(aten.t.default, (x,), before=program.output, like=x)
        new = edit.call(aten.mm.default, (x, turned), before=program.output, like=x)
    assert new.meta["val"].dtype == torch.float32
    assert not new.meta["val"].is_inference()


def test_replace_erases_what_is_unused_and_pure() -> None:
    program = small()
    edit = Rewriter(program, "mine")
    sin = support.find(program, aten.sin.default)
    new = edit.call(aten.cos.default, sin.args, before=sin, like=sin)
    edit.replace(sin, new)
    assert "sin" not in support.targets(program)
    check(program)


def test_replace_keeps_inputs_and_effects() -> None:
    def noisy(x: Any) -> Sequence[Any]:
        return (aten.rand_like.default(x),)

    program = support.build(noisy, torch.randn(2))
    edit = Rewriter(program, "mine")
    edit.replace(support.find(program, aten.rand_like.default), program.placeholders[0])
    assert support.targets(program) == ["rand_like"]
    assert program.results == (program.placeholders[0],)


def test_replace_by_a_user_of_the_node() -> None:
    program = small()
    edit = Rewriter(program, "mine")
    sin = support.find(program, aten.sin.default)
    new = edit.call(aten.neg.default, (sin,), before=sin.next, like=sin)
    edit.replace(sin, new)
    assert new.args == (sin,)
    assert support.find(program, aten.mul.Tensor).args[0] is new
    check(program)


def two_clones(x: Any) -> Sequence[Any]:
    return (aten.mul.Tensor(aten.clone.default(x), aten.clone.default(aten.sin.default(x))),)


@pytest.mark.parametrize(
    ("limit", "left"),
    [
        (None, ["sin", "mul.Tensor"]),
        (1, ["clone", "sin", "mul.Tensor"]),
        (0, ["clone", "sin", "clone", "mul.Tensor"]),
    ],
)
def test_replace_all_stops_at_the_limit(limit: int | None, left: list[str]) -> None:
    program = support.build(two_clones, torch.randn(2))
    edit = Rewriter(program, "mine", limit=limit)
    clones = [node for node in program.nodes if node.target is aten.clone.default]
    others = {node: node.all_input_nodes[0] for node in reversed(clones)}
    expected = contextlib.nullcontext() if limit is None else pytest.raises(EditLimitReached)
    with expected:
        edit.replace_all(others)
    assert support.targets(program) == left
    assert edit.edits == 4 - len(left)
    check(program)


def test_rewire_one_user() -> None:
    def twice(x: Any, wide: Any) -> Sequence[Any]:
        y = aten.sin.default(x)
        return aten.neg.default(y), aten.cos.default(y)

    program = support.build(twice, torch.randn(2), torch.randn(2, dtype=torch.float64))
    edit = Rewriter(program, "mine")
    sin, cos = (support.find(program, op.default) for op in (aten.sin, aten.cos))
    edit.rewire(cos, sin, program.placeholders[1])
    assert support.find(program, aten.neg.default).args == (sin,)
    assert cos.meta["val"].dtype == torch.float64
    check(program)


def test_constant() -> None:
    program = small()
    edit = Rewriter(program, "mine")
    sin = support.find(program, aten.sin.default)
    one = edit.constant(torch.ones(2, 3), "one", before=sin, like=sin)
    other = edit.constant(torch.zeros(2, 3), "one", before=sin, like=sin)
    assert one.target != other.target
    edit.replace(sin, edit.call(aten.add.Tensor, (one, other), before=sin, like=sin))
    check(program)
    (got,) = program.gm(torch.randn(2, 3), 1.0)
    assert torch.equal(got, torch.full((2, 3), 2.0))


def test_erase() -> None:
    program = small()
    edit = Rewriter(program, "mine")
    for node in (program.placeholders[0], program.output):
        with pytest.raises(ValueError, match="signature"):
            edit.erase(node)
    with pytest.raises(RuntimeError):
        edit.erase(support.find(program, aten.sin.default))


def test_move() -> None:
    program = small()
    edit = Rewriter(program, "mine")
    sin = support.find(program, aten.sin.default)
    edit.move(sin, before=support.find(program, aten.mul.Tensor))
    assert sin.next.target is aten.mul.Tensor
    check(program)


def test_the_limit_stops_before_the_edit() -> None:
    program = small()
    edit = Rewriter(program, "mine", limit=1)
    x, sin = program.placeholders[0], support.find(program, aten.sin.default)
    new = edit.call(aten.cos.default, (x,), before=sin, like=sin)
    with pytest.raises(EditLimitReached):
        edit.replace(sin, new)
    assert edit.edits == 1
    check(program)


def test_together_is_one_edit() -> None:
    program = small()
    edit = Rewriter(program, "mine", limit=1)
    x, sin = program.placeholders[0], support.find(program, aten.sin.default)
    with edit.together():
        edit.replace(sin, edit.call(aten.cos.default, (x,), before=sin, like=sin))
    assert edit.edits == 1
    with pytest.raises(EditLimitReached), edit.together():
        raise AssertionError("the block must not start")
    check(program)


def test_a_program_without_tensors() -> None:
    program = support.build(lambda lr: (lr * 2.0,), 0.5)
    edit = Rewriter(program, "mine")
    lr = program.placeholders[0]
    new = edit.call(torch.sym_max, (lr, 0.0), before=program.output, like=lr)
    edit.rewire(program.output, program.results[0], new)
    check(program)


def test_a_refusal_is_no_edit_and_equal_ones_are_counted() -> None:
    program = support.build(lambda x: (x.sin(), x.cos(), x.exp()), torch.ones(2))
    edit = Rewriter(program, "picky", limit=0)
    sin, cos, exp = (node for node in program.nodes if node.op == "call_function")
    edit.refuse(sin, "two users")
    edit.refuse(cos, "two users")
    edit.refuse(exp, "another dtype")
    assert edit.edits == 0
    line = provenance(exp).line
    assert Refusal("another dtype", line) in edit.refusals()
    assert sum(refusal.count for refusal in edit.refusals()) == 3


def test_a_node_that_was_rewritten_after_all_is_no_refusal() -> None:
    program = support.build(lambda x: [x.sin()], torch.ones(2))
    edit = Rewriter(program, "picky")
    (sin,) = (node for node in program.nodes if node.op == "call_function")
    edit.refuse(sin, "not yet")
    edit.replace(sin, program.placeholders[0])
    assert edit.refusals() == ()
