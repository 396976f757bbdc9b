from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch

from tests import support
from torchgraph.config import GraphConfig
from torchgraph.errors import InvalidOption, PassFailed, VerifyError
from torchgraph.ir import text
from torchgraph.ir.program import PassRecord, Program
from torchgraph.ir.rewriter import Rewriter
from torchgraph.options.options import Options, PassOptions
from torchgraph.passes import (
    Canonicalize,
    CommonSubexpressions,
    DeadCode,
    FoldConstants,
    Pass,
    inductor_pipeline,
    pipeline,
    run,
)
from torchgraph.passes.runner import select

aten = torch.ops.aten
X = torch.randn(2, 3)


@dataclass(frozen=True)
class Nothing(Pass):
    name: ClassVar[str] = "nothing"

    def exact(self, program: Program) -> bool:
        return True

    def apply(self, program: Program, edit: Rewriter) -> None:
        return None


@dataclass(frozen=True)
class SinToCos(Pass):
    name: ClassVar[str] = "sin_to_cos"

    def exact(self, program: Program) -> bool:
        return False

    def apply(self, program: Program, edit: Rewriter) -> None:
        for node in list(program.nodes):
            if node.target is aten.sin.default:
                edit.replace(node, edit.call(aten.cos.default, node.args, before=node, like=node))


@dataclass(frozen=True)
class Raising(Nothing):
    name: ClassVar[str] = "raising"

    def apply(self, program: Program, edit: Rewriter) -> None:
        sin = support.find(program, aten.sin.default)
        edit.call(aten.mm.default, (*sin.args, *sin.args), before=sin, like=sin)


@dataclass(frozen=True)
class Illegal(Nothing):
    name: ClassVar[str] = "illegal"

    def apply(self, program: Program, edit: Rewriter) -> None:
        support.find(program, aten.rand_like.default).target = aten.randn_like.default


def step(x: Any) -> Sequence[Any]:
    noise = aten.rand_like.default(x)
    return (aten.add.Tensor(aten.sin.default(aten.sin.default(aten.alias.default(x))), noise),)


def small() -> Program:
    return support.build(step, X)


def test_default_pipeline() -> None:
    lines = [repr(one) for one in pipeline(Options())]
    support.assert_golden("pipeline", "\n".join(lines) + "\n")
    assert len({one.name for one in pipeline(Options())}) == len(lines)
    assert all(one.exact(small()) for one in pipeline(Options()))


def test_passes_are_values() -> None:
    assert FoldConstants() == FoldConstants()
    assert FoldConstants(max_elements=1) != FoldConstants()
    assert len({Canonicalize(), Canonicalize()}) == 1
    with pytest.raises(AttributeError):
        setattr(FoldConstants(), "max_elements", 1)  # noqa: B010  # the type checker knows


def test_run_returns_a_copy_with_history() -> None:
    program = small()
    before = text.render(program)
    done = run(program, (SinToCos(), Nothing()), support.STRICT)
    assert text.render(program) == before
    assert program.history == []
    first, second = done.history
    assert replace(first, seconds=0.0) == PassRecord("sin_to_cos", 4, 0.0, 5, 5, False)
    assert replace(second, seconds=0.0) == PassRecord("nothing", 0, 0.0, 5, 5, True)
    assert first.seconds > 0
    torch.manual_seed(0)
    noise = torch.rand_like(X)
    torch.manual_seed(0)
    assert torch.equal(done.gm(X)[0], X.cos().cos() + noise)


def test_on_pass_sees_each_program() -> None:
    seen: list[tuple[str, int]] = []
    run(
        small(),
        (SinToCos(), Nothing()),
        support.STRICT,
        on_pass=lambda one, program: seen.append((one.name, support.targets(program).count("cos"))),
    )
    assert seen == [("sin_to_cos", 2), ("nothing", 2)]


def ran(*passes: Pass, **options: Any) -> list[str]:
    done = run(small(), passes, PassOptions(verify="strict", **options))
    return [record.name for record in done.history]


def test_disabled() -> None:
    assert ran(Nothing(), DeadCode(), disabled=frozenset({"nothing"})) == ["dce"]


def test_inserted() -> None:
    inserted = (("dce", SinToCos()), ("", Nothing()), ("sin_to_cos", FoldConstants()))
    assert ran(DeadCode(), Canonicalize(), inserted=inserted) == [
        "nothing",
        "dce",
        "sin_to_cos",
        "fold",
        "canonicalize",
    ]


def test_inserted_after_a_disabled_pass() -> None:
    inserted = (("dce", Nothing()),)
    assert ran(DeadCode(), inserted=inserted, disabled=frozenset({"dce"})) == ["nothing"]


@pytest.mark.parametrize(
    "options",
    [
        PassOptions(disabled=frozenset({"cce"})),
        PassOptions(inserted=(("cce", Nothing()),)),
    ],
)
def test_unknown_names_are_errors(options: PassOptions) -> None:
    with pytest.raises(InvalidOption, match=r"'cce'.*dce"):
        run(small(), (DeadCode(),), options)


NAMES_OF_COMPILED = (
    *("channels_last", "fuse_linear_cross_entropy", "fuse_model_update"),
    *("rematerialize", "scatter_embedding"),
)


@pytest.mark.parametrize("name", NAMES_OF_COMPILED)
def test_a_pass_of_compiled_programs_can_be_switched_off(name: str) -> None:
    options = Options(training=True, passes=PassOptions(disabled=frozenset({name})))
    run(small(), (DeadCode(),), options.passes)  # which has no such pass
    compiled = inductor_pipeline(options, one_kernel=True, on_cpu=True)
    left = [one.name for one in select(compiled, options.passes)]
    assert sorted([*left, name]) == sorted(one.name for one in compiled)


def test_a_pass_of_compiled_programs_is_no_anchor_of_others() -> None:
    options = PassOptions(inserted=(("channels_last", Nothing()),))
    with pytest.raises(InvalidOption, match="'channels_last'"):
        run(small(), (DeadCode(),), options)


def test_inserting_in_a_circle_is_an_error() -> None:
    inserted = (("sin_to_cos", Nothing()), ("nothing", SinToCos()))
    with pytest.raises(InvalidOption, match="circle"):
        run(small(), (DeadCode(),), PassOptions(inserted=inserted))


def test_inserting_something_else_is_an_error() -> None:
    with pytest.raises(InvalidOption, match="Pass"):
        run(small(), (DeadCode(),), PassOptions(inserted=(("", object()),)))


def test_max_passes() -> None:
    assert ran(Nothing(), DeadCode(), Canonicalize(), max_passes=2) == ["nothing", "dce"]
    assert ran(Nothing(), max_passes=0) == []


@pytest.mark.parametrize(
    ("limit", "sines", "names"),
    [
        (0, 2, ["canonicalize"]),
        (1, 2, ["canonicalize", "sin_to_cos"]),
        (3, 1, ["canonicalize", "sin_to_cos"]),
        (5, 0, ["canonicalize", "sin_to_cos", "nothing"]),
        (9, 0, ["canonicalize", "sin_to_cos", "nothing"]),
    ],
)
def test_max_edits(limit: int, sines: int, names: list[str]) -> None:
    options = PassOptions(verify="strict", max_edits=limit)
    done = run(small(), (Canonicalize(), SinToCos(), Nothing()), options)
    assert support.targets(done).count("sin") == sines
    assert [record.name for record in done.history] == names
    assert sum(record.edits for record in done.history) == min(limit, 5)


def test_a_pass_that_raises() -> None:
    with pytest.raises(PassFailed, match=r"'raising' raised RuntimeError") as caught:
        run(small(), (Raising(),), support.STRICT)
    assert isinstance(caught.value.__cause__, RuntimeError)
    assert "Fix: mend it; until then, graph.config.passes.disable('raising')" in str(caught.value)


def test_a_pass_that_breaks_a_promise() -> None:
    with pytest.raises(VerifyError, match="After illegal: effects keep their order"):
        run(small(), (Illegal(),), support.STRICT)


def test_a_broken_capture_is_not_blamed_on_a_pass() -> None:
    program = small()
    del support.find(program, aten.alias.default).meta["provenance"]
    with pytest.raises(VerifyError, match="After captured"):
        run(program, (Nothing(),), PassOptions())


def test_dump(tmp_path: Path) -> None:
    options = PassOptions(verify="strict", dump=str(tmp_path / "dumps"))
    program = small()
    done = run(program, (SinToCos(), Nothing()), options)
    run(program, (Nothing(),), options)
    assert sorted(os.listdir(tmp_path / "dumps")) == ["program-000", "program-001"]
    first = tmp_path / "dumps" / "program-000"
    assert sorted(os.listdir(first)) == [
        "01-sin_to_cos.after.txt",
        "01-sin_to_cos.before.txt",
        "02-nothing.after.txt",
        "02-nothing.before.txt",
    ]
    assert (first / "01-sin_to_cos.before.txt").read_text() == text.render(program)
    assert (first / "02-nothing.after.txt").read_text() == text.render(done)


def test_an_illegal_program_is_dumped_before_the_error(tmp_path: Path) -> None:
    with pytest.raises(VerifyError):
        run(small(), (Illegal(),), PassOptions(dump=str(tmp_path)))
    assert (tmp_path / "program-000" / "01-illegal.after.txt").exists()


def test_options_from_the_configuration(monkeypatch: pytest.MonkeyPatch) -> None:
    config = GraphConfig()
    config.passes.disable("cse")
    config.passes.insert(Nothing(), after="dce")
    options = config.options
    assert options.passes.verify == "strict"
    done = run(small(), pipeline(options), options.passes)
    assert [record.name for record in done.history] == [
        "canonicalize",
        "fold",
        "delay_variables",
        "prune_depend",
        "dce",
        "nothing",
        "overlap_collectives",
    ]


def test_the_pipeline_is_idempotent_and_deterministic() -> None:
    def busy(x: Any) -> Sequence[Any]:
        y = aten.sin.default(aten.detach.default(x)) * torch.tensor([1.0, 2.0, 3.0]) * 2
        return y, aten.cos.default(aten.t.default(aten.t.default(x))), aten.sin.default(x) + 1

    passes = pipeline(Options())
    once = run(support.build(busy, X), passes, support.STRICT)
    again = run(support.build(busy, X), passes, support.STRICT)
    assert text.render(once) == text.render(again)
    twice = run(once, passes, support.STRICT)
    assert text.render(twice) == text.render(once)
    assert sum(record.edits for record in twice.history[len(once.history) :]) == 0
    assert CommonSubexpressions.name in [record.name for record in once.history]
