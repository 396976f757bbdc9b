"""Any small program over rows: padded it gives what it gives as it is, or it is refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from hypothesis import given, settings, strategies as st

from torchgraph.buckets.flow import analyse
from torchgraph.errors import PaddingRefused

from .. import support

ROWS, PADDED = 5, 8

UNARY: dict[str, Callable[[Any], Any]] = {
    "sin": torch.sin,
    "relu": torch.relu,
    "exp": lambda x: torch.exp(-x * x),
    "softmax": lambda x: torch.softmax(x, -1),
    "softmax of rows": lambda x: torch.softmax(x, 0),
    "layer norm": lambda x: torch.nn.functional.layer_norm(x, x.shape[-1:]),
    "sum": lambda x: x + x.sum(-1, keepdim=True),
    "sum of rows": lambda x: x + x.sum(0, keepdim=True),
    "mean of rows": lambda x: x - x.mean(0),
    "cumsum": lambda x: x.cumsum(-1),
    "cumsum of rows": lambda x: x.cumsum(0),
    "flip": lambda x: x.flip(-1),
    "flip of rows": lambda x: x.flip(0),
    "roll": lambda x: x.roll(1, 0),
    "sort": lambda x: x.sort(-1)[0],
    "sort of rows": lambda x: x.sort(0)[0],
    "first row": lambda x: x + x[0],
    "last row": lambda x: x + x[-1],
    "all but the last": lambda x: torch.cat([x[:-1].abs(), x[:1] + 1]),
    "t": lambda x: x.t() if x.shape[0] == x.shape[1] else x,
    "flat": lambda x: (x.reshape(-1) * 2).reshape(x.shape),
    "flat the other way": lambda x: x.t().reshape(-1).sin().reshape(x.shape[1], -1).t(),
    "split": lambda x: torch.cat([x[:, 2:], x[:, :2]], 1),
    "heads": lambda x: (
        x.view(-1, 2, 2)
        .transpose(0, 1)
        .reshape(2, -1)
        .exp()
        .view(2, -1, 2)
        .transpose(0, 1)
        .reshape(-1, 4)
    ),
    "squared": lambda x: torch.bmm(x.view(-1, 2, 2), x.view(-1, 2, 2)).reshape(-1, 4),
    "products of rows": lambda x: (x @ x.t())[:, :1] * x,
    "rows of products": lambda x: torch.softmax(x @ x.t(), -1) @ x,
    "divided by the count": lambda x: x / x.shape[0],
    "positions": lambda x: x + torch.arange(x.shape[0])[:, None],
    "looked up": lambda x: x[torch.arange(x.shape[0]), x.abs().argmax(-1)][:, None] + x,
    "gathered": lambda x: x.gather(1, x.argsort(-1)),
    "gathered rows": lambda x: x.gather(0, x.argsort(0)),
    "triangle": torch.tril,
    "max": lambda x: x.max(-1, keepdim=True)[0] + x,
    "max of rows": lambda x: x.max(0)[0] + x,
    "repeat": lambda x: x.repeat(2, 1)[: x.shape[0]],
    "stacked": lambda x: torch.stack([x, x * 2], 1).sum(1),
    "variance": lambda x: x / (1 + x.var(-1, keepdim=True)),
}
BINARY: dict[str, Callable[[Any, Any], Any]] = {
    "add": torch.add,
    "mul": torch.mul,
    "matmul": lambda x, y: x @ torch.outer(y[0], y[0]),
    "product of all rows": lambda x, y: x @ torch.sin(y.t() @ y),
    "where": lambda x, y: torch.where(x > 0, x, y),
    "masked": lambda x, y: x.masked_fill(y > 0, 0.5),
}
MASKED: dict[str, Callable[[Any, Any], Any]] = {
    "times mask": lambda x, m: x * m[:, None],
    "where mask": lambda x, m: torch.where(m[:, None], x, 0.0),
    "filled": lambda x, m: x.masked_fill(~m[:, None], 0.0),
    "masked sum": lambda x, m: x + (x * m[:, None]).sum(0),
    "masked mean": lambda x, m: x - torch.where(m[:, None], x, 0.0).sum(0) / m.sum(),
    "masked product": lambda x, m: x @ torch.sin((x * m[:, None]).t() @ x),
    "loss": lambda x, m: x + (x.square().sum(1) * m).sum() / m.sum(),
    "mask as number": lambda x, m: x + m.sum(),
    "one off the mask": lambda x, m: x * (1 - m.float())[:, None],
}
Line = tuple[str, int, int]
NAMES = [*UNARY, *BINARY, *MASKED]
lines = st.lists(
    st.tuples(st.sampled_from(NAMES), st.integers(0, 9), st.integers(0, 9)), min_size=1, max_size=5
)


def interpret(code: list[Line], x: Any, y: Any, mask: Any) -> list[Any]:
    pool = [x, y]
    for name, first, second in code:
        one, other = pool[first % len(pool)], pool[second % len(pool)]
        if name in UNARY:
            pool.append(UNARY[name](one))
        elif name in BINARY:
            pool.append(BINARY[name](one, other))
        else:
            pool.append(MASKED[name](one, mask))
    return pool[2:]


def padded(tensor: torch.Tensor) -> torch.Tensor:
    return torch.cat([tensor, tensor[-1:].expand(PADDED - ROWS, *tensor.shape[1:])])


def agree(code: list[Line]) -> bool:
    """Run both; False when the analysis refuses."""
    x, y = torch.randn(ROWS, 4, dtype=torch.float64), torch.randn(ROWS, 4, dtype=torch.float64)
    real = [x, y, torch.ones(ROWS, dtype=torch.bool)]
    bigger = [padded(x), padded(y), torch.arange(PADDED) < ROWS]

    def step(x: Any, y: Any, mask: Any) -> Any:
        return interpret(code, x, y, mask)

    programs = [support.build(step, *inputs) for inputs in (real, bigger)]
    try:
        cuts = analyse(*programs, mask="mask")
    except PaddingRefused:
        return False
    expected, got = step(*real), step(*bigger)
    for cut, one, other in zip(cuts, expected, got, strict=True):
        corner = other[tuple(slice(0, size) for size in cut.shape)]
        torch.testing.assert_close(corner, one, rtol=1e-9, atol=1e-9)
    return True


@settings(max_examples=400, deadline=None, database=None)
@given(code=lines)
def test_real_rows_are_as_they_are_without_padding(code: list[Line]) -> None:
    agree(code)


REFUSED = {
    "softmax of rows", "sum of rows", "mean of rows", "flip of rows", "roll", "sort of rows",
    "last row", "all but the last", "rows of products", "divided by the count", "gathered rows",
    "max of rows", "repeat", "product of all rows",
}  # fmt: skip
"""Those in which real rows see padded ones, or that the rules do not follow."""


def test_each_line_by_itself() -> None:
    torch.manual_seed(0)
    assert {name for name in NAMES if not agree([(name, 0, 1)])} == REFUSED
