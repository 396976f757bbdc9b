"""A GPT as large models have it, recorded small, and its program at any size.

Real weights of 7 or 70 billion parameters fit into no machine that records. So a model of a few
layers is recorded whose sizes are different primes: then each number in the program says by its
factors which sizes it is made of, and is multiplied out anew for others. The values are evaluated
over fake tensors again, op by op, which holds no memory. `tests/distributed/test_scale.py` compares
the result with programs recorded at other sizes.
"""

from __future__ import annotations

import functools
import re
from dataclasses import asdict, dataclass
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as funcol
from torch import Tensor, fx, nn
from torch.nn import functional as F

import torchgraph as tg
from torchgraph._torch import OpOverload, schema_of
from torchgraph.distributed.ranks import simulated_rank
from torchgraph.ir.program import Program
from torchgraph.ir.values import evaluate, mode_of, neutral, with_values


@dataclass(frozen=True)
class Sizes:
    """Of what one rank computes in one micro-batch."""

    batch: int
    length: int
    width: int
    """Of the model."""
    kv_heads: int
    """Of a rank."""
    queries: int
    """For each head of keys and values."""
    half: int
    """Of the width of a head."""
    inner: int
    """The width between the two products of a block, of a rank."""
    words: int
    """Of the vocabulary, of a rank."""

    @property
    def tokens(self) -> int:
        """In a micro-batch."""
        return self.batch * self.length


PRIMES = Sizes(3, 5, 23, 7, 11, 13, 17, 19)


class _Spread(torch.autograd.Function):
    """The same on all ranks, whose gradients are added up."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        return _sum(gradients[0])


class _Gathered(torch.autograd.Function):
    """The sum of all ranks, each of which has the whole gradient."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return _sum(x)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        return gradients[0]


def _spread(x: Tensor) -> Tensor:
    found: Tensor = _Spread.apply(x)  # type: ignore[no-untyped-call]  # torch leaves it so
    return found


def _gathered(x: Tensor) -> Tensor:
    found: Tensor = _Gathered.apply(x)  # type: ignore[no-untyped-call]  # as above
    return found


def _sum(x: Tensor, op: str = "sum") -> Tensor:
    group = dist.group.WORLD
    assert group is not None
    found: Tensor = funcol.wait_tensor(funcol.all_reduce(x, op, group))
    return found


def _same(x: Tensor) -> Tensor:
    return x


class RmsNorm(nn.Module):
    """A root mean square norm."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x: Tensor) -> Tensor:
        return F.rms_norm(x, self.weight.shape, self.weight.to(x.dtype), 1e-5)


class Layer(nn.Module):
    """Attention with rotated queries and keys, and a gated product up and down."""

    def __init__(self, sizes: Sizes, ranks: int) -> None:
        super().__init__()
        self.sizes = sizes
        heads, head = sizes.kv_heads * sizes.queries, 2 * sizes.half
        self.before, self.between = RmsNorm(sizes.width), RmsNorm(sizes.width)
        self.query = nn.Linear(sizes.width, heads * head, bias=False)
        self.key = nn.Linear(sizes.width, sizes.kv_heads * head, bias=False)
        self.value = nn.Linear(sizes.width, sizes.kv_heads * head, bias=False)
        self.out = nn.Linear(heads * head, sizes.width, bias=False)
        self.gate = nn.Linear(sizes.width, sizes.inner, bias=False)
        self.up = nn.Linear(sizes.width, sizes.inner, bias=False)
        self.down = nn.Linear(sizes.inner, sizes.width, bias=False)
        self.spread = _spread if ranks > 1 else _same
        self.gathered = _gathered if ranks > 1 else _same

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        x = x + self.gathered(self._attention(self.spread(self.before(x)), cos, sin))
        inner = self.spread(self.between(x))
        found: Tensor = x + self.gathered(self.down(F.silu(self.gate(inner)) * self.up(inner)))
        return found

    def _attention(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        sizes = self.sizes
        shape = sizes.batch, sizes.length, -1, 2 * sizes.half
        query, key, value = (each(x).view(shape) for each in (self.query, self.key, self.value))
        query, key = (self._rotated(each, cos, sin) for each in (query, key))
        many = sizes.batch, sizes.length, sizes.kv_heads, sizes.queries, 2 * sizes.half
        key, value = (each.unsqueeze(3).expand(many).flatten(2, 3) for each in (key, value))
        query, key, value = (each.transpose(1, 2) for each in (query, key, value))
        seen = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        found: Tensor = self.out(seen.transpose(1, 2).flatten(2, 3))
        return found

    def _rotated(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        low, high = x.split(self.sizes.half, -1)
        return torch.cat((low * cos - high * sin, low * sin + high * cos), -1)


class Gpt(nn.Module):
    """Embedding, layers, norm and head; words are split over the ranks, if there are several."""

    def __init__(self, sizes: Sizes, layers: int, ranks: int) -> None:
        super().__init__()
        self.ranks = ranks
        self.words = nn.Embedding(sizes.words, sizes.width)
        self.layers = nn.ModuleList(Layer(sizes, ranks) for _ in range(layers))
        self.norm = RmsNorm(sizes.width)
        self.head = nn.Linear(sizes.width, sizes.words, bias=False)

    def forward(self, ids: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        x = self.words(ids).to(torch.bfloat16)
        if self.ranks > 1:
            x = _gathered(x)
        for layer in self.layers:
            x = layer(x, cos, sin)
        x = self.norm(x)
        logits: Tensor = self.head(_spread(x) if self.ranks > 1 else x)
        return logits.flatten(0, 1)

    def loss(self, logits: Tensor, targets: Tensor) -> Tensor:
        """The mean cross-entropy; of each rank's words, put together by small sums."""
        if self.ranks == 1:
            return F.cross_entropy(logits.float(), targets)
        logits = logits.float()
        most = _sum(logits.detach().amax(-1), "max")
        logits = logits - most.unsqueeze(-1)
        total = _gathered(logits.exp().sum(-1))
        mine = _gathered(logits.gather(-1, targets.unsqueeze(-1)).squeeze(-1))
        return (total.log() - mine).mean()


@functools.cache
def recorded(layers: int, ranks: int = 1, sizes: Sizes = PRIMES) -> Program:
    """A step of a rank with AdamW, its forward part in bfloat16 under autocast, after the passes.

    Args:
        ranks: split each layer so often; the sums over them are in the program.
    """
    torch.manual_seed(0)
    with simulated_rank(0, max(2, ranks), []):
        model = Gpt(sizes, layers, ranks)
        optimizer = torch.optim.AdamW(model.parameters(), 1e-4)

        @tg.step
        def step(ids: Tensor, targets: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
            optimizer.zero_grad()
            with torch.autocast("cpu", torch.bfloat16):
                loss = model.loss(model(ids, cos, sin), targets)
            loss.backward()
            optimizer.step()
            return loss

        ids = torch.randint(sizes.words, (sizes.batch, sizes.length))
        cos, sin = (torch.ones(sizes.length, 1, sizes.half, dtype=torch.bfloat16) for _ in range(2))
        for _ in range(3):
            step(ids, ids.flatten(), cos, sin)
        return step.program


def resized(program: Program, old: Sizes, new: Sizes) -> Program:
    """``program``, recorded at ``old`` sizes, which are different primes, at ``new`` ones.

    What is left are costs: numbers such as the scale of a mean stay those of the old sizes.

    Raises:
        RuntimeError: an op does not take what it would be given.
    """
    sizes = _Sizes(old, new)
    found = program.copy()
    mode = mode_of(found)
    with neutral():
        for node in found.nodes:
            if node.op in ("placeholder", "get_attr"):
                node.meta["val"] = _blank(mode, node.meta["val"], sizes)
            elif node.op == "call_function":
                node.args, node.kwargs = sizes.arguments(node)
                args, kwargs = with_values((node.args, dict(node.kwargs)))
                node.meta["val"] = evaluate(mode, node.target, args, kwargs)
    return found


def _blank(mode: Any, value: Any, sizes: _Sizes) -> Any:
    """A value like it of the new sizes; what is no tensor as it is."""
    if not isinstance(value, Tensor):
        return value
    shape = [sizes.of(size) for size in value.shape]
    strides = [sizes.of(stride) for stride in value.stride()]
    with mode:
        return torch.empty_strided(shape, strides, dtype=value.dtype, device=value.device)


class _Sizes:
    """Numbers that are products of sizes, multiplied out for others."""

    def __init__(self, old: Sizes, new: Sizes) -> None:
        self._new = asdict(new)
        self._old = asdict(old)

    def of(self, number: Any) -> Any:
        """What stands in its place."""
        if type(number) is not int or number <= 1:
            return number
        rest, found = number, 1
        for name, prime in self._old.items():
            while rest % prime == 0:
                rest, found = rest // prime, found * self._new[name]
        return found * rest

    def arguments(self, node: fx.Node) -> tuple[Any, Any]:
        """Those of a node, where its op takes sizes."""
        if not isinstance(node.target, OpOverload):
            return node.args, node.kwargs
        schema = schema_of(node.target)
        names = [one.name for one in schema.arguments]
        # Only the text tells a size from a dimension: both are of the type int.
        sized = set(re.findall(r"SymInt\S* (\w+)", str(schema)))
        args = [
            self._sized(value) if name in sized else value
            for name, value in zip(names, node.args, strict=False)
        ]
        kwargs = {n: self._sized(v) if n in sized else v for n, v in node.kwargs.items()}
        return tuple(args), kwargs

    def _sized(self, value: Any) -> Any:
        if isinstance(value, (list, tuple)):
            return [self.of(one) for one in value]
        return self.of(value)
