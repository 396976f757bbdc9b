"""Programs with one planted fault each, by seed, and where it was planted."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import torch
from torch import fx, nn

import torchgraph as tg
from torchgraph.ir import effects
from torchgraph.ir.program import Program
from torchgraph.ir.rewriter import Rewriter
from torchgraph.passes import Pass
from torchgraph.replay.replay import Replay

from .models import Net, Train

aten = torch.ops.aten


@dataclass
class Planted:
    """What was planted, and the nodes that may be named for it."""

    kind: str = ""
    node: str = ""
    consumers: frozenset[str] = frozenset()


Plan = Callable[[Rewriter], fx.Node]
"""Plants one fault, and returns the node that is wrong from then on."""


def _floats(node: object) -> bool:
    value = node.meta.get("val") if isinstance(node, fx.Node) else None
    return isinstance(value, torch.Tensor) and value.is_floating_point()


def _recalled(node: fx.Node, place: int, new: Any) -> Plan:
    def plant(edit: Rewriter) -> fx.Node:
        args = list(node.args)
        args[place] = new
        edit.recall(node, tuple(args), dict(node.kwargs))
        return node

    return plant


def _swapped(node: fx.Node, target: Any) -> Plan:
    def plant(edit: Rewriter) -> fx.Node:
        made = edit.call(target, node.args, node.kwargs, before=node, like=node)
        edit.replace(node, made)
        return made

    return plant


def _behind(node: fx.Node, target: Any, *more: Any) -> Plan:
    """Another op behind the node, for all of its readers."""

    def plant(edit: Rewriter) -> fx.Node:
        made = edit.call(target, (node, *more), before=node.next, like=node)
        edit.replace(node, made)
        return made

    return plant


def _dropped(node: fx.Node) -> Plan:
    def plant(edit: Rewriter) -> fx.Node:
        first = node.args[0]
        assert isinstance(first, fx.Node)
        edit.replace(node, first)
        return first

    return plant


def _rounded(node: fx.Node) -> Plan:
    """A cast too many: through bfloat16 and back."""

    def plant(edit: Rewriter) -> fx.Node:
        readers, made, cast = list(node.users), node, aten._to_copy.default
        for dtype in (torch.bfloat16, node.meta["val"].dtype):
            made = edit.call(cast, (made,), {"dtype": dtype}, before=made.next, like=node)
        for reader in readers:
            edit.rewire(reader, node, made)
        return made

    return plant


_SWAPS = {
    aten.mul.Tensor: aten.add.Tensor,
    aten.add.Tensor: aten.sub.Tensor,
    aten.sub.Tensor: aten.add.Tensor,
    aten.div.Tensor: aten.mul.Tensor,
    aten.relu.default: aten.tanh.default,
    aten.gelu.default: aten.relu.default,
    aten.mean.dim: aten.amax.default,
    aten.sqrt.default: aten.abs.default,
}
_COMMUTED = (aten.sub.Tensor, aten.div.Tensor, aten.mm.default, aten.pow.Tensor_Tensor)


def _plans(node: fx.Node, others: list[fx.Node]) -> Iterator[tuple[str, Plan]]:
    if node.target in _SWAPS:
        yield "op", _swapped(node, _SWAPS[node.target])
    for place, argument in enumerate(node.args):
        if type(argument) is float:
            yield "constant", _recalled(node, place, argument * 1.5 + 0.1)
    if not _floats(node):
        return
    if node.target in _COMMUTED and _same_meta(node.args[0], node.args[1]):
        yield "operands", _recalled_both(node)
    if node.target is aten.add.Tensor and _same_meta(node, node.args[0]):
        yield "dropped", _dropped(node)
    yield "sign", _behind(node, aten.neg.default)
    yield "scale", _behind(node, aten.mul.Tensor, 1.25)
    yield "cast", _rounded(node)
    yield from _other_operands(node, others)


def _other_operands(node: fx.Node, others: list[fx.Node]) -> Iterator[tuple[str, Plan]]:
    for place, argument in enumerate(node.args):
        if isinstance(argument, fx.Node) and _floats(argument):
            for other in others:
                if other is not argument and _same_meta(other, argument):
                    yield "operand", _recalled(node, place, other)


def _recalled_both(node: fx.Node) -> Plan:
    def plant(edit: Rewriter) -> fx.Node:
        left, right, *rest = node.args
        edit.recall(node, (right, left, *rest), dict(node.kwargs))
        return node

    return plant


def _same_meta(left: object, right: object) -> bool:
    if not isinstance(left, fx.Node) or not isinstance(right, fx.Node):
        return False
    one, other = left.meta.get("val"), right.meta.get("val")
    if not isinstance(one, torch.Tensor) or not isinstance(other, torch.Tensor):
        return False
    return (one.shape, one.dtype, one.stride()) == (other.shape, other.dtype, other.stride())


@dataclass(frozen=True)
class Mutate(Pass):
    """Plants one fault, chosen by the seed: first its kind, then its place."""

    seed: int
    planted: Planted = field(default_factory=Planted, compare=False)
    name: ClassVar[str] = "mutate"

    def exact(self, program: Program) -> bool:
        return True  # a lie

    def apply(self, program: Program, edit: Rewriter) -> None:
        earlier: list[fx.Node] = []
        found: dict[str, list[tuple[fx.Node, Plan]]] = {}
        for node in program.nodes:
            if node.op == "call_function" and effects.of(node).pure:
                for kind, plan in _plans(node, earlier):
                    found.setdefault(kind, []).append((node, plan))
            if node.op in ("placeholder", "call_function"):
                earlier.append(node)
        draw = random.Random(self.seed)
        kind = draw.choice(sorted(found))
        node, plan = draw.choice(found[kind])
        readers = {user.name for user in node.users}
        with edit.together():
            wrong = plan(edit)
        if edit.edits:
            readers |= {user.name for user in wrong.users}
            readers |= {user.name for one in wrong.users for user in one.users if _is_view(one)}
            self.planted.kind, self.planted.node = kind, wrong.name
            self.planted.consumers = frozenset(readers)


def _is_view(node: fx.Node) -> bool:
    return getattr(node.target, "is_view", False)


def with_hazard(replay: Replay, seed: int) -> Planted | None:
    """Lets an op of the lowered program write over a value that is read later; None for none."""
    right: Any = replay.executable
    lowered = right.program.copy()
    nodes = list(lowered.nodes)
    places = {node: number for number, node in enumerate(nodes)}
    found = []
    for node in nodes:
        first = node.args[0] if node.op == "call_function" and node.args else None
        if not isinstance(first, fx.Node) or not _same_meta(node, first):
            continue
        form = effects.other_form(node.target) if hasattr(node.target, "_schema") else None
        later = [user for user in first.users if places[user] > places[node]]
        writes = form is not None and effects.of_target(form).mutates
        if writes and later and not effects.of(node).mutates:
            found.append((node, form, later))
    if not found:
        return None
    node, form, later = random.Random(seed).choice(found)
    node.target = form
    lowered.gm.recompile()
    wrong = replace(right, function=lambda values: lowered.gm(*values), program=lowered)
    replay.code = replace(replay.code, executable=wrong)
    names = {user.name for user in later}
    return Planted("hazard", node.name, frozenset(names))


class Block(nn.Module):
    """A transformer block over token embeddings, and a head."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(11, 8)
        self.norm = nn.LayerNorm(8)
        self.qkv = nn.Linear(8, 24)
        self.mlp = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 8))
        self.head = nn.Linear(8, 11)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.table(tokens)
        q, k, v = self.qkv(self.norm(x)).chunk(3, dim=-1)
        x = x + torch.softmax(q @ k.transpose(-1, -2) / 8**0.5, -1) @ v
        return self.head(x + self.mlp(x))


class Conv(nn.Module):
    """Convolutions, a batch norm, a pool."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(2, 4, 3, padding=1)
        self.norm = nn.BatchNorm2d(4)
        self.second = nn.Conv2d(4, 4, 3, padding=1)
        self.fc = nn.Linear(4 * 9, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.relu(self.norm(self.first(x)))
        x = nn.functional.max_pool2d(x + torch.sigmoid(self.second(x)), 2)
        return self.fc(x.flatten(1))


class Classify(tg.Graph):
    """Cross entropy over the last dimension."""

    def __init__(self, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        super().__init__()
        self.model = model
        self.add_optimizer(optimizer)

    def build(self, x: torch.Tensor, y: torch.Tensor) -> Any:
        loss = nn.functional.cross_entropy(self.model(x).flatten(0, -2), y.flatten())
        loss.backward()
        return loss


def subject(number: int) -> tuple[tg.Graph, tuple[torch.Tensor, ...]]:
    """One of several Graphs, with a batch for it."""
    torch.manual_seed(number)
    kind = number % 3
    model = (Net, Block, Conv)[kind]()
    optimizer: Any = (
        lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9),
        lambda p: torch.optim.AdamW(p, lr=0.01),
        lambda p: torch.optim.RMSprop(p, lr=0.01, centered=True),
    )[number // 3 % 3](model.parameters())
    if kind == 0:
        return Train(model, optimizer), (torch.randn(5, 4), torch.randn(5, 2))
    if kind == 1:
        return Classify(model, optimizer), (torch.randint(11, (2, 5)), torch.randint(11, (2, 5)))
    return Classify(model, optimizer), (torch.randn(4, 2, 6, 6), torch.randint(3, (4,)))
