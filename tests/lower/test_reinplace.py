"""Re-inplacing: what is written in place, what is refused, and that nobody can tell."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from hypothesis import given, settings, strategies as st

from tests import support
from tests.passes.test_random_programs import Line, contents, interpret, lines, results
from torchgraph.ir.program import OutputKind, Program
from torchgraph.lower import Target, lower
from torchgraph.lower.inplace.forms import in_place_form
from torchgraph.lower.inplace.reinplace import reinplace
from torchgraph.lower.write.executable import Executable
from torchgraph.options.options import Options
from torchgraph.passes import pipeline, run

aten = torch.ops.aten
DEFAULT_OPTIONS = Options()


def run_lowered(executable: Executable, *examples: Any) -> tuple[Sequence[Any], list[Any]]:
    """(results, the examples as the run left them)."""
    live = [value.clone() if isinstance(value, torch.Tensor) else value for value in examples]
    for value, example in zip(live, examples, strict=True):
        if isinstance(value, torch.Tensor):
            assert value.stride() == example.stride()
    with torch.no_grad():
        return executable.function(live), live


def assert_same(program: Program, *examples: Any, options: Options = DEFAULT_OPTIONS) -> Executable:
    """The lowered program returns what the functional one does, and writes its updates."""
    executable = lower(program, "test", Target(options)).runs
    torch.manual_seed(0)
    expected = program.gm(*examples)
    torch.manual_seed(0)
    got, live = run_lowered(executable, *examples)
    names = [spec.fqn for spec in program.signature.inputs]
    returned = iter(got)
    written = set()
    for out, value in zip(program.signature.outputs, expected, strict=True):
        if out.kind is OutputKind.UPDATE and isinstance(value, torch.Tensor):
            written.add(out.target)
            state = live[names.index(out.target)]  # keeps its strides, whatever the value's are
            assert support.same_bits(value.contiguous(), state.contiguous()), out.target
        else:
            assert support.same_bits(value, next(returned)), out
    for name, before, after in zip(names, examples, live, strict=True):
        if name not in written and isinstance(before, torch.Tensor):
            assert support.same_bits(before, after), f"{name} was overwritten"
    return executable


def mutating(program: Program) -> list[str]:
    return [
        name for name in support.targets(reinplace(program)) if name.split(".")[0].endswith("_")
    ]


def test_an_update_writes_the_state_without_a_copy() -> None:
    def step(weight: Any, gradient: Any) -> Sequence[Any]:
        decayed = aten.mul.Tensor(weight, 0.9)
        return [aten.add.Tensor(decayed, gradient, alpha=-0.1)]

    examples = (torch.randn(3), torch.randn(3))
    program = support.build(step, *examples, updates=("weight",))
    assert mutating(program) == ["mul_.Tensor", "add_.Tensor"]
    assert_same(program, *examples)


def test_rows_are_written_into_a_table_without_a_copy() -> None:
    def step(table: Any, indices: Any, rows: Any) -> Sequence[Any]:
        moved = aten.add.Tensor(aten.embedding.default(table, indices), rows)
        return [aten.index_put.default(table, [indices], moved)]

    examples = (torch.randn(9, 3), torch.tensor([4, 1]), torch.randn(2, 3))
    program = support.build(step, *examples, updates=("table",))
    assert mutating(program) == ["add_.Tensor", "index_put_"]
    assert_same(program, *examples)


def test_rows_of_a_table_that_is_read_later_are_written_into_a_copy() -> None:
    def step(table: Any, indices: Any, rows: Any) -> Sequence[Any]:
        new = aten.index_put.default(table, [indices], rows)
        return [aten.sum.default(table), new]

    examples = (torch.randn(9, 3), torch.tensor([4, 1]), torch.randn(2, 3))
    program = support.build(step, *examples, updates=("table",))
    assert mutating(program) == ["copy_"]
    assert_same(program, *examples)


def test_an_input_that_is_no_state_is_never_written() -> None:
    def step(x: Any) -> Sequence[Any]:
        return [aten.add.Tensor(aten.mul.Tensor(x, 2.0), 1.0)]

    program = support.build(step, torch.randn(3))
    assert mutating(program) == ["add_.Tensor"]  # on the temporary alone
    assert_same(program, torch.randn(3))


def test_an_old_value_that_is_read_later_is_kept() -> None:
    def step(weight: Any) -> Sequence[Any]:
        new = aten.mul.Tensor(weight, 2.0)
        return [aten.sin.default(weight), new]

    program = support.build(step, torch.randn(3), updates=("weight",))
    assert "mul_.Tensor" not in mutating(program)
    assert_same(program, torch.randn(3))


def test_a_view_that_is_read_later_keeps_the_memory() -> None:
    def step(weight: Any) -> Sequence[Any]:
        view = aten.t.default(weight)
        new = aten.mul.Tensor(weight, 2.0)
        return [aten.clone.default(view), new]

    program = support.build(step, torch.randn(3, 4), updates=("weight",))
    assert "mul_.Tensor" not in mutating(program)
    assert_same(program, torch.randn(3, 4))


def test_a_result_of_another_layout_is_copied() -> None:
    def step(weight: Any, gradient: Any) -> Sequence[Any]:
        return [aten.add.Tensor(gradient, weight)]

    examples = (torch.randn(3, 4), torch.randn(4, 3).t())
    program = support.build(step, *examples, updates=("weight",))
    assert mutating(program) == ["copy_"]
    assert_same(program, *examples)


def test_states_that_trade_places() -> None:
    def step(left: Any, right: Any) -> Sequence[Any]:
        return [aten.neg.default(right), aten.neg.default(left)]

    examples = (torch.randn(3), torch.randn(3))
    assert_same(support.build(step, *examples, updates=("left", "right")), *examples)


def test_states_that_exchange_values_as_they_are() -> None:
    def step(left: Any, right: Any) -> Sequence[Any]:
        return [right, left]

    examples = (torch.randn(3), torch.randn(3))
    assert_same(support.build(step, *examples, updates=("left", "right")), *examples)


def test_an_expanded_temporary_is_not_written() -> None:
    def step(x: Any) -> Sequence[Any]:
        wide = aten.expand.default(aten.mul.Tensor(x, 2.0), [4, 3])
        return [aten.add.Tensor(wide, 1.0)]

    program = support.build(step, torch.randn(3))
    assert mutating(program) == []
    assert_same(program, torch.randn(3))


def test_a_product_accumulates_onto_what_dies() -> None:
    def step(a: Any, b: Any, c: Any) -> Sequence[Any]:
        first = aten.addmm.default(aten.sin.default(c), a, b)
        return [first, aten.baddbmm.default(aten.cos.default(aten.unsqueeze.default(c, 0)), *ab)]

    a, b, c = torch.randn(4, 5), torch.randn(5, 6), torch.randn(4, 6)
    ab = a.unsqueeze(0), b.unsqueeze(0)
    program = support.build(step, a, b, c)
    assert mutating(program) == ["addmm_", "baddbmm_"]
    assert_same(program, a, b, c)


def test_a_product_does_not_overwrite_its_factor() -> None:
    def step(x: Any) -> Sequence[Any]:
        square = aten.sin.default(x)
        return [aten.addmm.default(square, square, x), aten.addmm.default(x, x, x)]

    def through_a_view(x: Any) -> Sequence[Any]:
        square = aten.sin.default(x)
        return [aten.addmm.default(square, x, aten.t.default(square))]

    for wrong in (step, through_a_view):
        program = support.build(wrong, torch.randn(4, 4))
        assert not mutating(program)
        assert_same(program, torch.randn(4, 4))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
def test_an_accumulating_product_in_place_has_the_same_bits(dtype: torch.dtype) -> None:
    """What makes `reinplace` exact for ops that are not elementwise."""
    for rows, inner, columns in itertools.product((1, 3, 16, 65), (1, 7, 64, 300), (1, 5, 32, 130)):
        a = torch.randn(inner, rows).to(dtype).t() if rows % 2 else torch.randn(rows, inner)
        b = torch.randn(columns, inner).to(dtype).t() if inner % 2 else torch.randn(inner, columns)
        a, b, c = a.to(dtype), b.to(dtype), torch.randn(rows, columns).to(dtype)
        for numbers in ({}, {"beta": 0.5, "alpha": -1.5}):
            fresh = torch.addmm(c, a, b, **numbers)
            assert support.same_bits(fresh, c.clone().addmm_(a, b, **numbers))
            batch = torch.baddbmm(c[None], a[None], b[None], **numbers)
            assert support.same_bits(batch, c.clone()[None].baddbmm_(a[None], b[None], **numbers))


def test_random_and_unknown_ops_have_no_in_place_form() -> None:
    assert in_place_form(aten.bernoulli.p) is None
    assert in_place_form(aten.mm.default) is None
    assert in_place_form(aten.add.Tensor) is aten.add_.Tensor
    assert in_place_form(aten.add_.Tensor) is None


def test_values_die_after_their_last_use() -> None:
    def step(x: Any) -> Sequence[Any]:
        return [aten.sin.default(aten.mm.default(x, x))]

    executable = lower(support.build(step, torch.randn(3, 3)), "test").runs
    assert "del mm" in executable.source


def test_lines_lead_to_nodes() -> None:
    def step(x: Any, index: Any) -> Sequence[Any]:
        return [aten.index_select.default(aten.sin.default(x), 0, index)]

    executable = lower(support.build(step, torch.randn(3), torch.tensor([0])), "test").runs
    try:
        executable.function([torch.randn(3), torch.tensor([7])])
    except (IndexError, RuntimeError) as error:
        node = executable.node_at(error)
        assert "index_select" in str(node)
        assert str(executable.line_of(node)).startswith("model.py:2")
    else:
        raise AssertionError("an index out of range must raise")


@settings(max_examples=80, deadline=None, database=None)
@given(code=lines, returned=results, strided=st.booleans(), optimized=st.booleans())
def test_any_program_lowers_exactly(
    code: list[Line], returned: list[int], strided: bool, optimized: bool
) -> None:
    examples = (contents(strided), contents(not strided))

    def step(weight: Any, x: Any) -> Sequence[Any]:
        return interpret(code, returned, weight, x)

    program = support.build(step, *examples, updates=("weight",))
    if optimized:
        program = run(program, pipeline(Options()), support.STRICT)
    assert_same(program, *examples)


def test_a_view_whose_copy_a_pass_removed_is_a_view_of_the_input() -> None:
    def step(x: Any, y: Any) -> Sequence[Any]:
        copied = aten.mul.Tensor(x, 1)  # canonicalize reads x itself
        return [aten.sum.default(aten.add.Tensor(aten.t.default(copied), y))]

    examples = (torch.randn(3, 4), torch.randn(4, 3))
    program = run(support.build(step, *examples), pipeline(Options()), support.STRICT)
    assert support.targets(program) == ["t", "add.Tensor", "sum"]
    assert mutating(program) == []
    assert_same(program, *examples)
