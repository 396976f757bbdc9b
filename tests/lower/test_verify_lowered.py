"""The rules of the last stage: each is broken once, in a program or in what lowering decides."""

from __future__ import annotations

import operator
from collections.abc import Callable

import pytest
import torch
from torch import fx, nn, optim

import torchgraph as tg
from tests import support
from tests.expecting import add_expect
from torchgraph.errors import VerifyError
from torchgraph.ir import effects
from torchgraph.ir.effects import other_form
from torchgraph.ir.program import SKIPPED_BY, Program, Provenance
from torchgraph.ir.writes import written_by
from torchgraph.lower import lower
from torchgraph.lower.inplace import reinplace as rewriting
from torchgraph.lower.inplace.reinplace import reinplace
from torchgraph.lower.inplace.verify import verify_lowered
from torchgraph.testing import counters

aten = torch.ops.aten
X, W = torch.randn(3, 4), torch.randn(3, 4)


def step(x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """``w`` is updated and read before; two temporaries; two draws."""
    y = torch.tanh(x + w)
    z = torch.bernoulli(torch.sigmoid(y)) + torch.rand_like(y)
    return z.sum(), torch.exp(y).t(), w - 0.1 * z


def node_of(program: Program, target: object) -> fx.Node:
    return next(node for node in program.nodes if node.target is target)


def copy_over(program: Program, into: fx.Node, source: fx.Node, before: fx.Node) -> fx.Node:
    with program.gm.graph.inserting_before(before):
        made = program.gm.graph.call_function(aten.copy_.default, (into, source))
    made.meta.update(val=into.meta["val"], provenance=Provenance())
    return made


def write_an_input(lowered: Program) -> None:
    x, w = lowered.placeholders
    copy_over(lowered, x, w, before=w.next)


def write_a_constant(lowered: Program) -> None:
    w = lowered.placeholders[1]
    lowered.gm.register_buffer("held", torch.zeros(3, 4))
    with lowered.gm.graph.inserting_after(w):
        held = lowered.gm.graph.get_attr("held")
    held.meta["val"] = torch.empty_like(w.meta["val"])
    copy_over(lowered, held, w, before=held.next)


def read_what_is_gone(lowered: Program) -> None:
    """The weight is read after its update."""
    graph, total = lowered.gm.graph, node_of(lowered, aten.sum.default)
    with graph.inserting_before(lowered.output):
        late = graph.call_function(aten.sum.default, (lowered.placeholders[1],))
    late.meta.update(total.meta)
    lowered.output.args = ((late, *lowered.results[1:]),)


def leave_the_state(lowered: Program) -> None:
    w = lowered.placeholders[1]
    writing = next(node for node in w.users if w in written_by(node))
    writing.target = other_form(writing.target)


def draw_in_another_order(lowered: Program) -> None:
    first, second = (node for node in lowered.nodes if effects.of(node).random)
    first.prepend(second)


def leave_a_value_to_a_flag(lowered: Program) -> None:
    node_of(lowered, aten.tanh_.default).meta[SKIPPED_BY] = "optimizer.0"


def another_layout(lowered: Program) -> None:
    node = node_of(lowered, aten.tanh_.default)
    node.meta["val"] = node.meta["val"].t().contiguous().t()


FAULTS: dict[Callable[[Program], None], str] = {
    write_an_input: "writes x, which no step may",
    write_a_constant: "writes the constant held, which no step may",
    read_what_is_gone: "reads w_1, which was overwritten before",
    leave_the_state: "nothing writes w, which the step updates",
    draw_in_another_order: "ordered call 0 of 2 is another now",
    leave_a_value_to_a_flag: "which a skipped step leaves out",
    another_layout: "laid out otherwise than what it is written over",
}


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.__name__)
def test_a_fault_in_a_lowered_program(fault):
    program = support.build(step, X, W, updates=["w"])
    lowered = reinplace(program)
    verify_lowered(program, lowered, strict=True)
    fault(lowered)
    with pytest.raises(VerifyError, match=FAULTS[fault]):
        verify_lowered(program, lowered, strict=False)


def test_a_write_before_a_predicate():
    program = support.build(step, X, W, updates=["w"])
    add_expect(program, node_of(program, aten.sum.default), torch.tensor(1.0))
    lowered = reinplace(program)
    verify_lowered(program, lowered, strict=True)
    x, w = lowered.placeholders
    copy_over(lowered, w, x, before=w.next)
    with pytest.raises(VerifyError, match="writes w before the last predicate has held"):
        verify_lowered(program, lowered, strict=False)


def uses_both(x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Each value is read once more after an op that could write over it."""
    a = x.exp()
    b = torch.relu(a)
    c = torch.tanh(w)
    return (a * b).sum() + c.sum(), w + b, w * c


def widens(x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """A sum that does not fit into its first addend."""
    return torch.exp(x) + torch.tanh(w).double(), x + 1.0, w + 1.0


MUTANTS: dict[str, tuple[object, str, object]] = {
    "nothing is read later": (rewriting._Reinplace, "_free_after", lambda self, node, at: True),
    "everything fits": (rewriting, "fits_in", lambda first, result: True),
    "no state changes": (rewriting._Reinplace, "_updated_states", lambda self: {}),
}


@pytest.mark.parametrize("mutant", MUTANTS)
def test_a_lowering_that_errs_is_found(mutant, monkeypatch):
    program = support.build(
        widens if mutant == "everything fits" else uses_both, X, W, updates=["x", "w"]
    )
    lower(program, "test")
    monkeypatch.setattr(*MUTANTS[mutant])
    with pytest.raises(VerifyError):
        lower(program, "test")


def test_an_item_of_a_list_is_followed():
    """What an op over lists writes is read under its own name afterwards."""

    def many(x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, ...]:
        first, second = torch._foreach_add([x, w], 1.0)
        return (first + second).sum(), first, second

    program = support.build(many, X, W, updates=["x", "w"])
    lowered = reinplace(program)
    verify_lowered(program, lowered, strict=True)
    assert not any(node.target is operator.getitem for node in lowered.nodes)


def test_an_item_is_read_after_another_was_overwritten():
    """Activation checkpointing takes the items of an op apart where each is read."""

    def step(x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, ...]:
        out, mean, _ = torch.native_layer_norm(x, [4], None, None, 1e-5)
        return (torch.exp(out) * mean).sum(), w + 1.0

    program = support.build(step, X, W, updates=["w"])
    mean = next(n for n in program.nodes if n.target is operator.getitem and n.args[1] == 1)
    next(iter(mean.users)).prepend(mean)
    lowered = reinplace(program)
    assert has_in_place(lowered, aten.exp_.default)
    verify_lowered(program, lowered, strict=True)


def has_in_place(program: Program, op: object) -> bool:
    return any(node.target is op for node in program.nodes)


class Flat(nn.Module):
    """Two parameters in one memory, of which one is frozen."""

    def __init__(self) -> None:
        super().__init__()
        flat = torch.randn(20)
        self.first = nn.Parameter(flat[:10])
        self.frozen = nn.Parameter(flat[10:], requires_grad=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (x * self.first).sum() + (x * self.frozen).sin().sum()


def test_a_frozen_part_of_one_memory():
    model, twin = Flat(), Flat()
    twin.load_state_dict(model.state_dict())
    graph = tg.train_step(model, lambda loss, _: loss, optim.SGD([model.first], 0.1))
    reference = optim.SGD([twin.first], 0.1)
    with counters.expect(replays=2):
        for _ in range(4):
            x = torch.randn(10)
            graph(x, x)
            reference.zero_grad()
            twin(x).backward()
            reference.step()
    assert torch.equal(model.first, twin.first)
