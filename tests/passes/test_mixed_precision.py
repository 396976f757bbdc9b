"""OneFlow's colouring: which nodes run in half precision, and where the casts are."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import fx, nn, optim

import torchgraph as tg
from tests import support
from torchgraph import ops
from torchgraph._torch import OpOverload
from torchgraph.ir.each import expanded
from torchgraph.ir.program import OutputKind, Phase, Program, provenance
from torchgraph.ir.verify import Promises, verify_promises
from torchgraph.passes import MixedPrecision
from torchgraph.passes.precision.lists import BLACK, CLEAR, GRAY, KEPT, ONEFLOW, WHITE
from torchgraph.passes.precision.rule import Colours

aten = torch.ops.aten
HALF = torch.bfloat16
X, W, B = torch.randn(4, 6), torch.randn(6, 6), torch.randn(6)


class Net(nn.Module):
    """Something of each colour."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(7, 6)
        self.first = nn.Linear(6, 8)
        self.norm = nn.LayerNorm(8)
        self.second = nn.Linear(8, 8)
        self.head = nn.Linear(8, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = nn.functional.gelu(self.norm(self.first(self.table(x))))
        hidden = torch.sigmoid(self.second(hidden)) * hidden
        return self.head(hidden)


class ConvNet(nn.Module):
    """A batch norm, whose statistics must stay float32."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(2, 4, 3, padding=1)
        self.norm = nn.BatchNorm2d(4)
        self.pool = nn.MaxPool2d(2)
        self.head = nn.Linear(4, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.pool(torch.relu(self.norm(self.conv(x))))
        return self.head(x.mean((2, 3)))


class Attention(nn.Module):
    """Both ways to write it."""

    def __init__(self) -> None:
        super().__init__()
        self.proj = nn.Linear(8, 24)
        self.out = nn.Linear(8, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = self.proj(x).chunk(3, dim=-1)
        fused = nn.functional.scaled_dot_product_attention(q[None], k[None], v[None])[0]
        weights = torch.softmax(q @ k.mT / 8**0.5, dim=-1)
        return self.out(fused + weights @ v).mean(1)


BATCHES: dict[type[nn.Module], Callable[[], torch.Tensor]] = {
    Net: lambda: torch.randint(0, 7, (5,)),
    ConvNet: lambda: torch.randn(5, 2, 8, 8),
    Attention: lambda: torch.randn(5, 4, 8),
}


class Train(tg.Graph):
    def __init__(self, model: nn.Module, loss: Any = nn.functional.cross_entropy) -> None:
        super().__init__()
        self.model, self.loss = model, loss
        self.add_optimizer(optim.SGD(model.parameters(), lr=0.1))

    def build(self, x: torch.Tensor, y: torch.Tensor) -> Any:
        loss = self.loss(self.model(x), y)
        loss.backward()
        return loss


def captured(model: type[nn.Module], loss: Any = nn.functional.cross_entropy) -> Program:
    """The float32 program of a step, as the pass meets it: each parameter has ops of its own."""
    graph = Train(model(), loss)
    graph(BATCHES[model](), torch.randint(0, 3, (5,)))
    return expanded(graph._runner.programs.last()[0].captured.program)


def black_loss(logits: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return nn.functional.cross_entropy(tg.amp.black(logits), y)


METADATA_ONLY = {
    aten._to_copy.default,
    aten.ones_like.default,
    aten.new_empty_strided.default,
}
"""What may read half precision anywhere: casts, and ops that read shapes only."""
LOSSES = {"plain": nn.functional.cross_entropy, "black": black_loss}
CASES = [(model, name) for model in BATCHES for name in LOSSES]


# --- the rules, a second time ---------------------------------------------------------------------


def colour(node: fx.Node) -> str:
    """By its op alone."""
    if not isinstance(node.target, OpOverload):
        return ""
    name = node.target._schema.name.removeprefix("aten::")
    names = {name, f"{name}.{node.target._overloadname}"}
    found = [
        colour for colour in ("white", "black", "gray", "clear") if names & getattr(ONEFLOW, colour)
    ]
    assert len(found) <= 1, f"{name} is in two lists"
    return "".join(found)


def readers(node: fx.Node) -> set[fx.Node]:
    parts = [user for user in node.users if user.target is operator.getitem]
    found = {user for user in node.users if user.target is not operator.getitem}
    return found.union(*(part.users for part in parts))


def sources(node: fx.Node) -> set[fx.Node]:
    return {n.args[0] if n.target is operator.getitem else n for n in node.all_input_nodes}


def closure(start: set[fx.Node], step: Any, allowed: set[fx.Node]) -> set[fx.Node]:
    """All that is reached from ``start`` by steps within ``allowed``."""
    found, waiting = set(start), list(start)
    while waiting:
        for node in step(waiting.pop()):
            if node in allowed and node not in found:
                found.add(node)
                waiting.append(node)
    return found


def results_of(node: fx.Node) -> list[torch.Tensor]:
    values = node.meta.get("val")
    values = values if isinstance(values, (tuple, list)) else [values]
    return [value for value in values if isinstance(value, torch.Tensor)]


def floats(node: fx.Node) -> bool:
    return any(value.dtype is torch.float32 for value in results_of(node))


def expected_half(program: Program) -> set[fx.Node]:
    """By paths: the definition in OneFlow's words."""
    nodes = {n for n in program.nodes if n.op == "call_function" and colour(n)}
    late = {n for n in program.nodes if provenance(n).phase is Phase.UPDATE}
    ends = {n for n in program.nodes if n.target is aten.copy.default} | late
    nodes = {n for n in nodes - closure(ends, readers, set(program.nodes)) if floats(n)}
    live = closure({program.output}, lambda n: n.all_input_nodes, set(program.nodes))
    nodes &= live
    by = {c: {n for n in nodes if colour(n) == c} for c in ("white", "black", "gray", "clear")}
    passable = by["gray"] | by["clear"]
    # Clear ops turn black only where they lead on to a gray or a black one.
    leading = closure(by["gray"] | by["black"], sources, by["clear"])
    black = closure(by["black"], readers, leading & (passable | by["black"]))
    between = passable - black
    ending = {n for n in between if readers(n) & ends}
    up = closure(by["white"] | ending, sources, between)
    half = closure(by["white"], readers, up & between)
    half = closure(half, readers, by["clear"] - black)
    return closure(half, sources, by["clear"] - black)


@pytest.mark.parametrize(("model", "loss"), CASES)
def test_the_colouring_is_the_definitions(model, loss):
    program = captured(model, LOSSES[loss])
    half = Colours(program, ONEFLOW).half
    starting = {n for n in expected_half(program) if not _without_data(n)}

    assert {n.name for n in half} == {n.name for n in starting}
    assert len(half) > 10


def _without_data(node: fx.Node) -> bool:
    """Computed from ``ones_like(loss)`` alone."""
    inputs = node.all_input_nodes
    return node.target is aten.ones_like.default or (
        bool(inputs) and all(n.op == "call_function" and _without_data(n) for n in inputs)
    )


def test_golden():
    program = captured(Net, black_loss)
    colours = Colours(program, ONEFLOW)
    black = {n.name for n in colours.black}
    done, _ = support.apply(MixedPrecision(HALF), program)
    lines = []
    for node in done.nodes:
        shown = node.op == "call_function" and node.target is not operator.getitem
        if shown and provenance(node).phase is not Phase.UPDATE:
            value = node.meta["val"]
            first = value[0] if isinstance(value, tuple) else value
            dtype = str(first.dtype).removeprefix("torch.") if first is not None else "-"
            kind = "black set" if node.name in black else ""
            line = f"{provenance(node).phase.value:9}{dtype:9}{colour(node) or '-':6}{node.target}"
            lines.append(f"{line}  {kind}".rstrip())
    support.assert_golden("mixed_precision", "\n".join(lines) + "\n")


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize(("model", "loss"), CASES)
def test_invariants(model, loss, dtype):
    before = captured(model, LOSSES[loss])
    colours = Colours(before, ONEFLOW)
    half, black = {n.name for n in colours.half}, {n.name for n in colours.black}
    done, _ = support.apply(MixedPrecision(dtype), before)
    casts = []
    for node in done.nodes:
        if node.op != "call_function" or node.target is operator.getitem:
            continue
        inputs = _typed_arguments(node)
        if node.name in half:
            kept = KEPT.get(node.target._schema.name.removeprefix("aten::"), ())
            on_cpu = ("weight", "bias") if "layer_norm" in str(node.target) else ()
            wrong = [n for n, dtypes in inputs if n not in (*kept, *on_cpu) and dtypes != {dtype}]
            assert not wrong, f"{node} reads float32: {wrong}"
        elif node.target not in METADATA_ONLY:
            assert all(dtype not in dtypes for _, dtypes in inputs), f"{node} reads {dtype}"
        if node.name in black:
            assert all(value.dtype is torch.float32 for value in results_of(node))
        if node.target is aten._to_copy.default:
            casts.append(node.args[0])
    assert len(casts) == len(set(casts)), "a tensor is cast twice"
    _assert_states_stay(before, done)


def _typed_arguments(node: fx.Node) -> list[tuple[str, set[torch.dtype]]]:
    """(argument, floating-point types in it)."""
    if not isinstance(node.target, OpOverload):
        return []
    found = []
    for argument, value in zip(node.target._schema.arguments, node.args, strict=False):
        held = value if isinstance(value, (list, tuple)) else [value]
        tensors = [n.meta["val"] for n in held if isinstance(n, fx.Node)]
        dtypes = {t.dtype for t in tensors if isinstance(t, torch.Tensor) and t.is_floating_point()}
        if dtypes:
            found.append((argument.name, dtypes))
    return found


def _assert_states_stay(before: Program, done: Program) -> None:
    assert done.signature == before.signature
    for spec, old, new in zip(before.signature.outputs, before.results, done.results, strict=True):
        assert old.meta["val"].dtype is new.meta["val"].dtype, spec
    kinds = {spec.kind for spec in before.signature.outputs}
    assert kinds == {OutputKind.USER, OutputKind.UPDATE}


# --- the pass -------------------------------------------------------------------------------------


def between(x: Any, w: Any, b: Any) -> Sequence[Any]:
    """Gray before the first white op, between two, and behind the last."""
    early = aten.tanh.default(x)
    first = aten.mm.default(early, w)
    middle = aten.add.Tensor(aten.relu.default(first), b)
    second = aten.mm.default(middle, w)
    return (aten.tanh.default(aten.view.default(second, [24])), middle)


def none_white(x: Any, w: Any, b: Any) -> Sequence[Any]:
    return (aten.add.Tensor(aten.tanh.default(x), b), aten.view.default(w, [36]))


def test_match() -> None:
    before = support.build(between, X, W, B)
    done, edits = support.apply(MixedPrecision(HALF), before)
    assert edits == 1
    dtypes = {n.name: str(n.meta["val"].dtype) for n in done.nodes if n.op == "call_function"}
    half = {name for name, dtype in dtypes.items() if "bfloat16" in dtype}
    assert half == {
        *("mm", "relu", "add", "mm_1", "view"),
        *("_to_copy", "_to_copy_1", "_to_copy_2"),  # tanh's result, w once for both, b
    }
    assert [str(value.meta["val"].dtype) for value in done.results] == ["torch.float32"] * 2


def test_what_it_computes() -> None:
    done, _ = support.apply(MixedPrecision(HALF), support.build(between, X, W, B))
    w, b = W.to(HALF), B.to(HALF)
    middle = torch.relu(torch.tanh(X).to(HALF) @ w) + b
    last, second = done.gm(X, W, B)

    assert torch.equal(last, torch.tanh((middle @ w).view(24).float()))
    assert torch.equal(second, middle.float())


def test_no_match() -> None:
    support.assert_unchanged(MixedPrecision(HALF), support.build(none_white, X, W, B))


@pytest.mark.parametrize("model", BATCHES)
def test_idempotent(model) -> None:
    done, _ = support.apply(MixedPrecision(HALF), captured(model))
    support.assert_unchanged(MixedPrecision(HALF), done)


def test_draws_keep_their_order_in_another_type() -> None:
    def step(x: Any, w: Any) -> Sequence[Any]:
        first = aten.native_dropout.default(aten.mm.default(x, w), 0.5, True)
        noise = aten.rand_like.default(x)
        return (aten.mm.default(first[0], w), noise)

    before = support.build(step, X, W)
    done, _ = support.apply(MixedPrecision(HALF), before)
    assert support.find(done, aten.native_dropout.default).meta["val"][0].dtype is HALF
    assert support.find(done, aten.rand_like.default).meta["val"].dtype is torch.float32
    verify_promises(Promises.of(before), done, retypes=True)


def test_strides_that_a_cast_changes() -> None:
    """The cast of an expanded tensor is dense: what reads it is typed anew."""

    def step(x: Any, w: Any) -> Sequence[Any]:
        rows = aten.expand.default(aten.mm.default(x, w), [3, 4, 6])
        return (aten.sin.default(rows),)

    done, _ = support.apply(MixedPrecision(HALF), support.build(step, X, W))
    (got,) = done.gm(X, W)
    assert torch.equal(got, torch.sin((X.to(HALF) @ W.to(HALF)).float()).expand(3, 4, 6))


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16])
def test_only_float32_is_cast(dtype) -> None:
    def step(x: Any, w: Any) -> Sequence[Any]:
        return (aten.add.Tensor(aten.mm.default(x, w), x),)

    program = support.build(step, X[:4, :4].to(dtype), W[:4, :4].to(dtype))
    support.assert_unchanged(MixedPrecision(HALF), program)


def test_a_sum_that_asks_for_its_type_stays() -> None:
    def step(x: Any, w: Any) -> Sequence[Any]:
        total = aten.sum.dim_IntList(aten.mm.default(x, w), [0], True, dtype=torch.float32)
        return (aten.mm.default(total, w),)

    done, _ = support.apply(MixedPrecision(HALF), support.build(step, X, W))
    assert support.find(done, aten.sum.dim_IntList).meta["val"].dtype is torch.float32


def test_white_marks_start_half_precision() -> None:
    def step(x: Any, w: Any) -> Sequence[Any]:
        return (aten.mm.default(aten.tanh.default(ops.amp_white(x)), w),)

    done, _ = support.apply(MixedPrecision(HALF), support.build(step, X, W))
    assert support.find(done, aten.tanh.default).meta["val"].dtype is HALF


def test_lists_of_ones_own() -> None:
    lists = type(ONEFLOW)(ONEFLOW.white - {"mm"}, ONEFLOW.black, ONEFLOW.gray, ONEFLOW.clear)
    program = support.build(between, X, W, B)
    support.assert_unchanged(MixedPrecision(HALF, lists), program)


def test_the_lists_name_ops_that_exist() -> None:
    rows = {**WHITE, **BLACK, **GRAY, **CLEAR}
    assert len(rows) == sum(map(len, (WHITE, BLACK, GRAY, CLEAR))), "a row in two lists"
    names = [name for ops in rows.values() for name in ops]
    assert len(names) == len(set(names)), "an op in two rows"
    missing = {name for name in names if not hasattr(_space(name), _packet(name))}
    assert not missing
    assert set(KEPT) <= set(names)


def _space(name: str) -> Any:
    return torch.ops.torchgraph if "::" in name else aten


def _packet(name: str) -> str:
    return name.rpartition("::")[2].partition(".")[0]
