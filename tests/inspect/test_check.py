"""graph.check(): finds the wrong node, stays silent otherwise, and changes nothing."""

from __future__ import annotations

import copy
import random
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import pytest
import torch
from torch import fx, nn

import torchgraph as tg
from tests import support
from tests.support import confirm
from torchgraph.errors import ConfirmWarning, GradPresent
from torchgraph.ir import bits
from torchgraph.ir.program import Phase, Program
from torchgraph.ir.rewriter import Rewriter
from torchgraph.passes import Pass
from torchgraph.testing import counters

from .models import Evaluate, Net, Train, batch, trainer

aten = torch.ops.aten
OPTIMIZERS = [
    (torch.optim.AdamW, {}),
    (torch.optim.AdamW, {"foreach": True}),
    (torch.optim.SGD, {"lr": 0.1, "momentum": 0.9, "nesterov": True}),
    (torch.optim.RAdam, {}),
    (torch.optim.RMSprop, {"centered": True}),
]


@dataclass(frozen=True)
class Swap(Pass):
    """Calls ``new`` in the place of each call of ``old`` in a phase, with arguments of its own."""

    name: ClassVar[str] = "swap"
    old: Any
    new: Any
    arguments: Callable[[Any], tuple[Any, ...]] = tuple
    """From those of the old call."""
    phase: Phase = Phase.FORWARD

    def exact(self, program: Program) -> bool:
        return True  # a lie

    def apply(self, program: Program, edit: Rewriter) -> None:
        for node in list(program.nodes):
            if node.target is self.old and node.meta["provenance"].phase is self.phase:
                args = self.arguments(node.args)
                edit.replace(node, edit.call(self.new, args, before=node, like=node))


@dataclass(frozen=True)
class Forget(Pass):
    """Uses the argument of each ``relu`` in its place: no node of its own is wrong."""

    name: ClassVar[str] = "forget"

    def exact(self, program: Program) -> bool:
        return True

    def apply(self, program: Program, edit: Rewriter) -> None:
        for node in list(program.nodes):
            if node.target is aten.relu.default:
                assert isinstance(node.args[0], fx.Node)
                edit.replace(node, node.args[0])


def _half(args: Any) -> tuple[Any, ...]:
    return args[0], 0.5


@pytest.mark.parametrize(("kind", "options"), OPTIMIZERS)
def test_a_right_graph(kind, options):
    graph = trainer(kind, **options)
    for _ in range(3):
        assert graph.check(*batch()) is None
        graph(*batch())


def test_clipping_and_lr_scale():
    model = Net()
    group = {"params": model.parameters(), "lr_scale": 0.5, "clip_grad_max_norm": 0.1}
    graph = Train(model, torch.optim.SGD([group], lr=0.1))
    assert graph.check(*batch()) is None


def test_names_a_wrong_node_of_a_pass():
    graph = trainer()
    graph.config.passes.insert(Swap(aten.mul.Tensor, aten.mul.Tensor, _half), after="dce")
    found = graph.check(*batch())
    assert found is not None
    assert (found.op, found.phase, found.module) == ("aten.mul.Tensor", Phase.FORWARD, "model.drop")
    assert found.made_by == "swap"
    assert found.line is not None
    assert "self.drop(" in found.line.text
    assert found.reaches[0] == "output"
    assert "model.fc.weight" in found.reaches
    assert not found.lowering
    assert found.repeatable


def test_names_an_op_that_eager_does_not_have():
    graph = trainer()
    graph.config.passes.insert(Swap(aten.relu.default, aten.gelu.default))
    found = graph.check(*batch())
    assert found is not None
    assert (found.op, found.made_by) == ("aten.gelu.default", "swap")
    assert found.line is not None
    assert "torch.relu(" in found.line.text
    assert found.difference is not None
    assert 0.1 < found.difference < 0.2  # the depth of gelu below zero
    text = str(found)
    assert "gelu (aten.gelu.default, forward in model, made by the pass 'swap')" in text
    assert "models.py" in text
    assert "In the end these differ: output, " in text


def test_names_the_reader_of_a_value_that_a_pass_took_away():
    graph = trainer()
    graph.config.passes.insert(Forget())
    found = graph.check(*batch())
    assert found is not None
    assert (found.op, found.made_by) == ("aten.mul.Tensor", "capture")
    assert found.line is not None
    assert "self.drop(" in found.line.text


def test_a_wrong_backward_and_update():
    graph = trainer(torch.optim.SGD, lr=0.5)
    graph.config.passes.insert(Swap(aten.mm.default, aten.clone.default, phase=Phase.UPDATE))
    assert graph.check(*batch()) is None  # there is no such node
    old = aten.threshold_backward.default
    swap = Swap(old, aten.mul.Tensor, lambda args: args[:2], Phase.BACKWARD)
    graph = trainer(torch.optim.SGD, lr=0.5)
    graph.config.passes.insert(swap)
    found = graph.check(*batch())
    assert found is not None
    assert (found.phase, found.made_by, found.module) == (Phase.BACKWARD, "swap", "model")
    assert "output" not in found.reaches


def test_a_wrong_update_of_many_tensors_at_once():
    graph = trainer(torch.optim.AdamW, fused=True)
    count = aten._foreach_add.Scalar
    graph.config.passes.insert(Swap(count, count, lambda args: (args[0], 2), Phase.UPDATE))
    found = graph.check(*batch())
    assert found is not None
    assert found.phase is Phase.UPDATE
    parameters = [f"model.{name}" for name, _ in graph.model.named_parameters()]
    counters = [f"optimizer.0.state.{name}.step" for name in parameters]
    assert found.reaches == (*parameters, *counters)


def test_a_wrong_lowering():
    graph = trainer()
    confirm(graph, *batch())
    (replay,) = support.replays(graph)
    lowered = replay.executable.program.copy()
    for node in lowered.nodes:
        if node.target is aten.mse_loss.default:
            node.target = aten.smooth_l1_loss.default
    lowered.gm.recompile()
    right = replay.executable
    wrong = replace(right, function=lambda values: lowered.gm(*values))
    replay.code = replace(replay.code, executable=wrong)
    found = graph.check(*batch())
    assert found is not None
    assert (found.lowering, found.reaches) == (True, ("output",))
    assert found.op == "aten.mul.Tensor"  # what computes the output
    replay.code = replace(replay.code, executable=replace(wrong, program=lowered))
    found = graph.check(*batch())
    assert found is not None
    assert (found.lowering, found.op) == (True, "aten.smooth_l1_loss.default")
    assert "the in-place form that runs is not" in str(found)


def test_eager_that_is_not_repeatable():
    class VaryingValues(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc = nn.Linear(4, 2)
            self.state = {"draws": Counter()}

        def forward(self, x):
            return self.fc(x) * self.state["draws"].next()

    class Counter:
        n = 0

        def next(self) -> int:
            self.n += 1
            return self.n

    graph = Evaluate(VaryingValues())
    found = graph.check(batch()[0])
    assert found is not None
    assert not found.repeatable
    assert "may be noise" in str(found)


def test_evaluation():
    graph = Evaluate(Net())
    assert graph.check(batch()[0]) is None
    graph.model.eval()
    assert graph.check(batch()[0]) is None
    graph.config.passes.insert(Swap(aten.relu.default, aten.neg.default))
    found = graph.check(batch()[0])
    assert found is not None
    assert found.reaches == ("output['out']",)


def test_mutated_inputs_are_compared_and_put_back():
    class Adds(tg.Graph):
        def build(self, x):
            x.add_(1)
            return x * 2

    graph, x = Adds(), torch.zeros(3)
    assert graph.check(x) is None
    assert x.tolist() == [0, 0, 0]
    graph.config.passes.insert(Swap(aten.add.Tensor, aten.sub.Tensor))
    found = graph.check(x)
    assert found is not None
    assert found.reaches == ("output", "args[0]")
    assert x.tolist() == [0, 0, 0]


def test_refuses_gradients_that_are_there():
    graph = trainer()
    graph.model.fc.weight.grad = torch.zeros(8, 4)
    with pytest.raises(GradPresent):
        graph.check(*batch())


@pytest.mark.parametrize("calls", [0, 1, 2, 4])
@pytest.mark.parametrize("wrong", [False, True])
def test_changes_nothing(calls, wrong):
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    graph = Train(model, optimizer)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1)
    if wrong:
        swap = Swap(aten.relu.default, aten.gelu.default)
        graph.config.passes.insert(swap)
    with pytest.warns(ConfirmWarning) if wrong and calls > 2 else nullcontext():
        for _ in range(calls):
            graph(*batch())
    x, y = batch()
    confirmed = calls > 2 and not wrong
    with counters.expect(captures=int(not confirmed)):
        before = _everything(model, optimizer, schedule, x, y)
        assert (graph.check(x, y) is not None) is wrong
        _assert_same(before, _everything(model, optimizer, schedule, x, y))
        _assert_same(before[-1], _everything(model, optimizer, schedule, x, y)[-1])
    warns = pytest.warns(ConfirmWarning) if wrong and calls == 2 else nullcontext()
    with warns, counters.expect(captures=int(calls == 1), replays=int(confirmed)):
        graph(x, y)


def test_a_program_that_check_made_serves_no_call():
    graph = trainer(torch.optim.SGD, lr=0.5)
    graph.config.passes.insert(Swap(aten.relu.default, aten.gelu.default))
    twin = Net()
    twin.load_state_dict(graph.model.state_dict())
    eager = torch.optim.SGD(twin.parameters(), lr=0.5)
    x, y = batch()
    assert graph.check(x, y) is not None
    before = torch.get_rng_state()
    loss = graph(x, y)
    torch.set_rng_state(before)
    expected = nn.functional.mse_loss(twin(x), y)
    expected.backward()
    eager.step()
    assert torch.equal(loss, expected)
    assert all(map(torch.equal, graph.model.parameters(), twin.parameters()))


def _everything(model, optimizer, schedule, *tensors: torch.Tensor) -> list[Any]:
    slots = [(id(p), id(s), {k: id(v) for k, v in s.items()}) for p, s in optimizer.state.items()]
    identities = [id(p) for p in (*model.parameters(), *model.buffers())], slots
    values = [copy.deepcopy(model.state_dict()), copy.deepcopy(optimizer.state_dict())]
    attributes = [dict(vars(m)) for m in model.modules()]
    grads = [p.grad for p in model.parameters()]
    optimizer_attributes = {k: v for k, v in vars(optimizer).items() if k != "state"}
    generators = [torch.get_rng_state(), random.getstate()]
    inputs = [t.clone() for t in tensors]
    rest = [schedule.state_dict(), optimizer_attributes, attributes, grads]
    return [identities, values, inputs, generators, rest]


def _assert_same(old: Any, new: Any) -> None:
    assert type(old) is type(new)
    if isinstance(old, torch.Tensor):
        assert bits.same(old, new)
    elif isinstance(old, dict):
        assert list(old) == list(new)
        _assert_same(list(old.values()), list(new.values()))
    elif isinstance(old, (list, tuple)):
        assert len(old) == len(new)
        for left, right in zip(old, new, strict=True):
            _assert_same(left, right)
    else:
        assert old == new


def test_undoes_what_build_does_to_modules():
    class Restless(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("total", torch.zeros(2))
            self.fc = nn.Linear(4, 2)
            self.log = [1]

        def forward(self, x):
            out = self.fc(x)
            self.total = self.total + out.detach().sum(0)
            return out

    graph = Evaluate(Restless())
    total = graph.model.total
    assert graph.check(batch()[0]) is None
    assert graph.model.total is total
    assert total.tolist() == [0, 0]
    assert graph.model.log == [1]


@pytest.mark.parametrize(
    ("left", "right", "same"),
    [
        (torch.tensor(0.0), torch.tensor(-0.0), False),
        (torch.tensor(torch.nan), -torch.tensor(torch.nan), True),
        (torch.ones(2), torch.ones(2, dtype=torch.float64), False),
        (torch.ones(2, 3).t(), torch.ones(3, 2), True),
        (torch.ones(0), torch.ones(0), True),
        (torch.tensor([True]), torch.tensor([False]), False),
        (torch.tensor([1j]), torch.tensor([1j]).conj(), False),
        (1, 1.0, False),
        (float("nan"), float("nan"), True),
    ],
)
def test_bits(left, right, same):
    assert bits.same(left, right) is same
    if isinstance(left, torch.Tensor) and left.dtype == right.dtype:
        assert (bits.fingerprint(left) == bits.fingerprint(right)) is same
