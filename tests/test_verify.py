from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch

from tests import support
from torchgraph import _torch
from torchgraph.errors import VerifyError
from torchgraph.ir.program import OutputKind, OutputSpec, Program
from torchgraph.ir.verify import Promises, Stage, verify, verify_promises

aten = torch.ops.aten


def step(weight: Any, x: Any, lr: Any) -> Sequence[Any]:
    loss = aten.sum.default(aten.mul.Tensor(weight, x))
    return loss, aten.add.Tensor(weight, x, alpha=-lr)


def small() -> Program:
    return support.build(step, torch.randn(2, 3), torch.randn(2, 3), 0.5, updates=("weight",))


def change_inputs(program: Program, **changes: Any) -> None:
    first, *rest = program.signature.inputs
    inputs = (replace(first, **changes), *rest)
    program.signature = replace(program.signature, inputs=inputs)


def meta_with(program: Program, **changes: Any) -> dict[str, Any]:
    meta = program.signature.inputs[0].meta
    assert meta is not None
    return {"meta": replace(meta, **changes)}


def another_output(program: Program) -> None:
    program.gm.graph.output(program.output.args[0])


def later_argument(program: Program) -> None:
    support.find(program, aten.sum.default).append(support.find(program, aten.mul.Tensor))


def late_placeholder(program: Program) -> None:
    support.find(program, aten.sum.default).append(program.placeholders[2])


def packet_target(program: Program) -> None:
    support.find(program, aten.sum.default).target = aten.sum


def any_function(program: Program) -> None:
    support.find(program, aten.sum.default).target = print


def no_value(program: Program) -> None:
    del support.find(program, aten.sum.default).meta["val"]


def real_value(program: Program) -> None:
    support.find(program, aten.sum.default).meta["val"] = torch.zeros(())


def other_mode(program: Program) -> None:
    fake = _torch.fake_mode().from_tensor(torch.zeros(()))
    support.find(program, aten.sum.default).meta["val"] = fake


def mutation(program: Program) -> None:
    support.find(program, aten.mul.Tensor).target = aten.mul_.Tensor


def no_provenance(program: Program) -> None:
    del support.find(program, aten.sum.default).meta["provenance"]


def missing_input(program: Program) -> None:
    program.signature = replace(program.signature, inputs=program.signature.inputs[:-1])


def missing_output(program: Program) -> None:
    program.signature = replace(program.signature, outputs=program.signature.outputs[:-1])


def unknown_state(program: Program) -> None:
    outputs = (program.signature.outputs[0], OutputSpec(OutputKind.UPDATE, "bias"))
    program.signature = replace(program.signature, outputs=outputs)


def wrong_update(program: Program) -> None:
    program.output.args = (program.results[::-1],)


def same_name(program: Program) -> None:
    change_inputs(program, fqn="x")


BREAKS: list[tuple[Callable[[Program], None], str]] = [
    (another_output, "one output"),
    (later_argument, "arguments before their users"),
    (late_placeholder, "inputs first"),
    (packet_target, "targets are ops"),
    (any_function, "targets are ops"),
    (no_value, "no meta"),
    (real_value, "real tensor"),
    (other_mode, "another fake mode"),
    (mutation, "functional"),
    (no_provenance, "provenance"),
    (missing_input, "3 placeholders for 2 inputs"),
    (missing_output, "2 results for 1 outputs"),
    (unknown_state, "no input is called bias"),
    (wrong_update, "the update of weight: shape"),
    (same_name, "2 inputs are called x"),
    (lambda p: change_inputs(p, name="w"), "the signature has w"),
    (lambda p: change_inputs(p, meta=None), "the signature has a number"),
    (lambda p: change_inputs(p, **meta_with(p, shape=(3, 2))), "shape"),
    (lambda p: change_inputs(p, **meta_with(p, stride=(1, 2))), "stride"),
    (lambda p: change_inputs(p, **meta_with(p, dtype=torch.int64)), "dtype"),
    (lambda p: change_inputs(p, **meta_with(p, device=torch.device("meta"))), "device"),
]


@pytest.mark.parametrize("stage", Stage)
def test_legal(stage: Stage) -> None:
    verify(small(), stage, strict=True)


@pytest.mark.parametrize(("break_it", "why"), BREAKS)
def test_illegal(break_it: Callable[[Program], None], why: str) -> None:
    program = small()
    break_it(program)
    with pytest.raises(VerifyError, match=why):
        verify(program, Stage.OPTIMIZED, made_by="mine")


def test_the_error_names_the_pass_and_marks_the_node() -> None:
    program = small()
    mutation(program)
    with pytest.raises(VerifyError) as caught:
        verify(program, Stage.OPTIMIZED, made_by="mine")
    support.assert_golden("verify_error", str(caught.value) + "\n")


def test_lowered_programs_may_mutate() -> None:
    def lowered(weight: Any, x: Any) -> Sequence[Any]:
        weight.copy_(x)
        return (aten.sum.default(x),)

    program = support.build(lowered, torch.randn(3), torch.randn(3))
    with pytest.raises(VerifyError, match=r"aten\.copy_\.default writes one of its arguments"):
        verify(program, Stage.CAPTURED)
    with pytest.raises(VerifyError, match="copy_ writes weight, which no step may"):
        verify(program, Stage.LOWERED)
    update = OutputSpec(OutputKind.UPDATE, "weight")
    outputs = (*program.signature.outputs, update)
    program.signature = replace(program.signature, outputs=outputs)
    verify(program, Stage.LOWERED, strict=True)


def test_an_op_whose_schema_lies_is_a_mutation() -> None:
    def norm(x: Any, mean: Any, var: Any) -> Sequence[Any]:
        return (aten.native_batch_norm.default(x, None, None, mean, var, True, 0.1, 1e-5)[0],)

    program = support.build(norm, torch.randn(4, 3), torch.zeros(3), torch.ones(3))
    with pytest.raises(VerifyError, match="writes"):
        verify(program)


@pytest.mark.parametrize("wrong", [torch.zeros(3, 2), torch.zeros(2, 3, dtype=torch.float64)])
def test_strict_recomputes_values(wrong: torch.Tensor) -> None:
    program = small()
    mul = support.find(program, aten.mul.Tensor)
    mul.meta["val"] = mul.meta["val"].fake_mode.from_tensor(wrong, static_shapes=True)
    verify(program)
    with pytest.raises(VerifyError, match="recomputed"):
        verify(program, strict=True)


def test_strict_sees_strides() -> None:
    program = small()
    add = support.find(program, aten.add.Tensor)
    add.meta["val"] = add.meta["val"].fake_mode.from_tensor(
        torch.zeros(3, 2).t(), static_shapes=True
    )
    with pytest.raises(VerifyError, match="stride"):
        verify(program, strict=True)


def test_strict_sees_the_type_of_numbers() -> None:
    program = small()
    node = support.find(program, operator.neg)
    node.meta["val"] = 1
    with pytest.raises(VerifyError, match="int against float"):
        verify(program, strict=True)


def test_strict_compares_constants() -> None:
    program = support.build(lambda x: (x + torch.tensor([1.0, 2.0]),), torch.randn(2))
    name = next(node.target for node in program.nodes if node.op == "get_attr")
    setattr(program.gm, str(name), torch.zeros(3))
    with pytest.raises(VerifyError, match="the constant is recorded with shape"):
        verify(program, strict=True)


def test_strict_computes_no_random_numbers() -> None:
    program = support.build(lambda x: (torch.rand_like(x), torch.randperm(4)), torch.randn(2))
    state = torch.get_rng_state()
    verify(program, strict=True)
    assert torch.equal(state, torch.get_rng_state())


def draws(x: Any) -> Sequence[Any]:
    return aten.rand_like.default(x), aten.bernoulli.p(x, 0.5)


def swapped(x: Any) -> Sequence[Any]:
    return aten.bernoulli.p(x, 0.5), aten.rand_like.default(x)


def one_less(x: Any) -> Sequence[Any]:
    return aten.rand_like.default(x), x


def other_shape(x: Any) -> Sequence[Any]:
    return aten.rand_like.default(aten.t.default(x)), aten.bernoulli.p(x, 0.5)


@pytest.mark.parametrize(
    ("after", "why"),
    [
        (swapped, "ordered call 0 was aten.rand_like"),
        (one_less, "there were 2 ordered calls and there are 1"),
        (other_shape, r"f32\[3, 2\]"),
    ],
)
def test_random_draws_keep_their_order(after: Any, why: str) -> None:
    before = Promises.of(support.build(draws, torch.randn(2, 3)))
    verify_promises(before, support.build(draws, torch.randn(2, 3)))
    with pytest.raises(VerifyError, match=why):
        verify_promises(before, support.build(after, torch.randn(2, 3)), made_by="mine")


def test_a_pass_may_say_what_it_removes() -> None:
    before = Promises.of(support.build(draws, torch.randn(2, 3)))
    after = support.build(one_less, torch.randn(2, 3))
    with pytest.raises(VerifyError, match="output 1"):
        verify_promises(before, after, removes=frozenset({"aten"}))


def returned_input(x: Any) -> Sequence[Any]:
    return aten.t.default(x), aten.sin.default(x)


def returned_twice(x: Any) -> Sequence[Any]:
    y = aten.sin.default(x)
    return aten.t.default(y), y


def returned_constant(x: Any) -> Sequence[Any]:
    return aten.alias.default(torch.tensor([[1.0]])), aten.sin.default(x)


@pytest.mark.parametrize("after", [returned_input, returned_twice])
def test_outputs_share_no_new_memory(after: Any) -> None:
    def fresh(x: Any) -> Sequence[Any]:
        return aten.t.default(aten.sin.default(x)), aten.sin.default(x)

    before, program = support.build(fresh, torch.randn(2)), support.build(after, torch.randn(2))
    with pytest.raises(VerifyError, match="share memory"):
        verify_promises(Promises.of(before), program, made_by="mine")
    verify_promises(Promises.of(program), before)
    verify_promises(Promises.of(program), program)


def test_a_missing_gradient_has_no_value() -> None:
    def backward(x: Any, weight: Any, grad: Any) -> Sequence[Any]:
        args = (grad, x, weight, [2], [1], [0], [1], False, [0], 1, [False, True, True])
        _, weight_grad, bias_grad = aten.convolution_backward.default(*args)
        return weight_grad, bias_grad

    examples = (torch.randn(1, 2, 5), torch.randn(2, 2, 3), torch.randn(1, 2, 3))
    program = support.build(backward, *examples)
    assert "val" not in support.find(program, operator.getitem).meta
    verify(program, strict=True)
