"""Twelve planted faults, each of another kind: check names the node and what brought it."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import pytest
import torch
from torch import fx, nn

import torchgraph as tg
from tests.support import confirm, replays
from torchgraph.calls import compiler
from torchgraph.errors import InvalidOption
from torchgraph.inspect.check import Accuracy, Divergence
from torchgraph.ir.program import Phase, Program, provenance
from torchgraph.ir.rewriter import Rewriter
from torchgraph.passes import Pass

from .models import Train, batch
from .mutants import Block, Classify, with_hazard

aten = torch.ops.aten


class Square(nn.Module):
    """Square weights, a residual, a difference, a norm, a root."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(4, 4, bias=False), nn.Linear(4, 4)
        self.norm = nn.LayerNorm(4)
        self.head = nn.Linear(4, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = self.norm(self.first(x)) + x
        other = torch.relu(self.second(hidden)) - 0.5 * hidden
        return self.head(other)


@dataclass(frozen=True)
class Plant(Pass):
    """Makes one call wrong: the first of ``target`` in a phase."""

    target: Any
    plant: Callable[[Rewriter, fx.Node], object]
    phase: Phase = Phase.FORWARD
    name: ClassVar[str] = "plant"

    def exact(self, program: Program) -> bool:
        return True  # a lie

    def apply(self, program: Program, edit: Rewriter) -> None:
        for node in list(program.nodes):
            if node.target is self.target and provenance(node).phase is self.phase:
                with edit.together():
                    self.plant(edit, node)
                return
        raise AssertionError(f"there is no {self.target}")


def _arguments(change: Callable[..., tuple[Any, ...]]) -> Any:
    return lambda edit, node: edit.recall(node, change(*node.args), node.kwargs)


def _behind(target: Any, *more: Any) -> Any:
    def plant(edit: Rewriter, node: fx.Node) -> None:
        edit.replace(node, edit.call(target, (node, *more), before=node.next, like=node))

    return plant


def _rounded(edit: Rewriter, node: fx.Node) -> None:
    readers, made = list(node.users), node
    for dtype in (torch.bfloat16, torch.float32):
        kwargs = {"dtype": dtype}
        made = edit.call(aten._to_copy.default, (made,), kwargs, before=made.next, like=node)
    for reader in readers:
        edit.rewire(reader, node, made)


def _renamed_alpha(edit: Rewriter, node: fx.Node) -> None:
    edit.recall(node, node.args, {"alpha": 2})


WRONG = {
    "a wrong scale": (Plant(aten.mul.Tensor, _arguments(lambda x, _: (x, 0.75))), "mul"),
    "a dropped add": (
        Plant(aten.add.Tensor, lambda edit, node: edit.replace(node, node.args[0])),
        "add",
    ),
    "a flipped sign": (
        Plant(aten.threshold_backward.default, _behind(aten.neg.default), Phase.BACKWARD),
        "neg",
    ),
    "swapped operands": (Plant(aten.sub.Tensor, _arguments(lambda x, y: (y, x))), "sub"),
    "a wrong constant": (
        Plant(aten.native_layer_norm.default, _arguments(lambda *a: (*a[:4], 0.1))),
        "native_layer_norm",
    ),
    "a cast too many": (Plant(aten.relu.default, _rounded), "_to_copy"),
    "a transposed weight": (
        Plant(aten.mm.default, lambda edit, node: _untransposed(edit, node)),
        "mm",
    ),
    "a wrong update": (Plant(aten.add.Tensor, _renamed_alpha, Phase.UPDATE), "add"),
}


def _untransposed(edit: Rewriter, node: fx.Node) -> None:
    transposed = node.args[1]
    assert isinstance(transposed, fx.Node)
    edit.recall(node, (node.args[0], transposed.args[0]), {})


def _graph() -> tuple[Train, tuple[torch.Tensor, ...]]:
    torch.manual_seed(3)
    model = Square()
    return Train(model, torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)), batch(6)


@pytest.mark.parametrize("what", WRONG)
def test_a_fault_of_a_pass(what):
    graph, arguments = _graph()
    plant, op = WRONG[what]
    graph.config.passes.insert(plant, after="dce")
    found = graph.check(*arguments)
    assert isinstance(found, Divergence)
    assert found.blame == "pass"
    assert found.culprit is not None
    assert (found.culprit.name, found.culprit.edit, found.culprit.edits) == ("plant", 1, 1)
    if what == "a dropped add":  # what reads it is named: the node is gone
        assert found.line is not None
        assert "hidden" in found.line.text
    else:
        assert found.op.split(".")[1] == op
    assert found.phase is plant.phase
    limit = f"config.passes.limit(passes={found.culprit.number}, edits={found.culprit.before})"
    assert "Edit 1 of 1 of the pass 'plant' brought it" in str(found)
    assert f"{limit} is still right" in str(found)
    graph.config.passes.limit(passes=found.culprit.number, edits=found.culprit.before)
    assert graph.check(*arguments) is None


def test_an_edit_among_many():
    @dataclass(frozen=True)
    class Most(Pass):
        """Rewrites each product as it is, but for the third."""

        name: ClassVar[str] = "most"

        def exact(self, program: Program) -> bool:
            return True

        def apply(self, program: Program, edit: Rewriter) -> None:
            products = [node for node in program.nodes if node.target is aten.mul.Tensor]
            for number, node in enumerate(products):
                args = (node.args[0], 3.0) if number == 2 else node.args
                edit.recall(node, args, {})

    graph, arguments = _graph()
    graph.config.passes.insert(Most(), after="dce")
    found = graph.check(*arguments)
    assert found is not None
    assert found.culprit is not None
    assert (found.culprit.name, found.culprit.edit) == ("most", 3)
    assert found.node in found.culprit.changed


def test_a_fault_of_lowering():
    graph, arguments = _graph()
    confirm(graph, *arguments)
    planted = with_hazard(replays(graph)[0], 1)
    assert planted is not None
    found = graph.check(*arguments)
    assert found is not None
    assert (found.blame, found.lowering, found.culprit) == ("lowering", True, None)
    assert found.node in {planted.node, *planted.consumers}


def test_a_fault_of_the_written_function():
    graph, arguments = _graph()
    confirm(graph, *arguments)
    replay = replays(graph)[0]
    right: Any = replay.executable

    def wrong(values: Any) -> tuple[Any, ...]:
        loss, *rest = right.function(values)
        return (loss * 2, *rest)

    replay.code = replace(replay.code, executable=replace(right, function=wrong))
    found = graph.check(*arguments)
    assert found is not None
    assert (found.blame, found.reaches) == ("lowering", ("output",))


def test_a_fault_of_capture(monkeypatch):
    original = compiler.program_of

    def wrong(*args: Any) -> Any:
        captured = original(*args)
        for node in captured.program.nodes:
            if node.target is aten.relu.default:
                node.target = aten.sigmoid.default
        captured.program.gm.recompile()
        return captured

    monkeypatch.setattr(compiler, "program_of", wrong)
    graph, arguments = _graph()
    found = graph.check(*arguments)
    assert found is not None
    assert (found.blame, found.op, found.culprit) == ("capture", "aten.sigmoid.default", None)
    assert "differs from eager before any pass runs" in str(found)


def test_a_fault_of_inductor():
    graph, arguments = _graph()
    graph.config.set_backend("inductor")
    for _ in range(5):
        graph(*arguments)
    assert graph.check(*arguments) is None  # rounding is none
    replay = replays(graph)[0]
    region = next(one for one in replay.code.regions if one.outputs)
    right = region._function
    assert right is not None

    def wrong(*inputs: torch.Tensor) -> list[torch.Tensor]:
        return [one * 1.01 if one.is_floating_point() else one for one in right(*inputs)]

    region.compiled(wrong)
    found = graph.check(*arguments)
    assert found is not None
    assert (found.blame, found.region) == ("inductor", region.__name__)
    assert found.error is not None
    assert found.explained is not None
    assert found.error > found.explained
    assert found.line is not None


@pytest.mark.parametrize("kind", ["float32", "bfloat16"])
def test_a_fault_in_a_program_that_promises_no_bits(kind):
    def graph() -> Classify:
        torch.manual_seed(1)
        model = Block()
        made = Classify(model, torch.optim.AdamW(model.parameters(), lr=0.01))
        made.config.allow_fuse_add_to_output()
        if kind == "bfloat16":
            made.config.enable_amp(dtype=torch.bfloat16)
        return made

    arguments = (torch.randint(11, (2, 5)), torch.randint(11, (2, 5)))
    healthy = graph().check(*arguments, precision="float64")
    assert isinstance(healthy, Accuracy)
    assert healthy.divergence is None
    assert healthy.eager > 0
    wrong = graph()
    plant = Plant(aten.gelu.default, _behind(aten.mul.Tensor, 1.25))
    wrong.config.passes.insert(plant, after="dce")
    found = wrong.check(*arguments)
    assert isinstance(found, Divergence)
    assert found.module == "model.mlp.1"
    assert found.culprit is not None
    assert found.culprit.name == "plant"


def test_how_far_from_float64():
    graph, arguments = _graph()
    graph.config.enable_amp(dtype=torch.bfloat16)
    graph(*arguments)  # the first step makes the momenta
    found = graph.check(*arguments, precision="float64")
    assert isinstance(found, Accuracy)
    names = [one.name for one in found.results]
    assert names[0] == "output"
    assert "model.first.weight" in names
    assert found.graph == found.eager  # equal bits, equal errors
    loss = found.results[0]
    assert 1e-6 < loss.eager < 0.05
    twin = copy.deepcopy(graph.model).double()
    expected = nn.functional.mse_loss(twin(arguments[0].double()), arguments[1].double()).detach()
    with torch.autocast("cpu", torch.bfloat16):
        low = nn.functional.mse_loss(graph.model(arguments[0]), arguments[1]).detach()
    assert loss.eager == pytest.approx(abs(float(low) - float(expected)) / float(expected))
    assert "From float64, relative, at most: graph " in str(found)


def test_draws_are_those_of_the_step():
    class Noisy(tg.Graph):
        def build(self, x):
            return nn.functional.dropout(x, 0.5) + torch.rand_like(x) * 1e-3

    found = Noisy().check(torch.randn(64), precision="float64")
    assert isinstance(found, Accuracy)
    assert found.eager < 1e-6  # another mask would be off by the values themselves


def test_an_op_without_a_kernel_for_float64():
    @torch.library.custom_op("tests_checking::only_float32", mutates_args=())
    def only(x: torch.Tensor) -> torch.Tensor:
        assert x.dtype is torch.float32, "float32 alone"
        return x * 3

    @only.register_fake
    def _(x: torch.Tensor) -> torch.Tensor:
        return torch.empty_like(x)

    class Own(tg.Graph):
        def build(self, x):
            return only(x / 3) * 2

    found = Own().check(torch.randn(8), precision="float64")
    assert isinstance(found, Accuracy)
    ((op, why),) = found.fallbacks
    assert op == "tests_checking.only_float32.default"
    assert "float32 alone" in why
    assert op in str(found)


def test_another_precision():
    graph, arguments = _graph()
    with pytest.raises(InvalidOption):
        graph.check(*arguments, precision="float16")
