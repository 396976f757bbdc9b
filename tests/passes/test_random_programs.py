"""Any small program through the whole default pipeline: bitwise equal, and nothing left to do."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from hypothesis import given, settings, strategies as st

from tests import support
from torchgraph.ir import text
from torchgraph.options.options import Options
from torchgraph.passes import pipeline, run

aten = torch.ops.aten

UNARY: dict[str, Callable[[Any], Any]] = {
    "sin": aten.sin.default,
    "relu": aten.relu.default,
    "neg": aten.neg.default,
    "clone": aten.clone.default,
    "contiguous clone": lambda x: aten.clone.default(x, memory_format=torch.contiguous_format),
    "copy": lambda x: aten.copy.default(
        aten.new_empty_strided.default(x, list(x.shape), list(x.stride())), x
    ),
    "copy to rows": lambda x: aten.copy.default(
        aten.new_empty_strided.default(x, list(x.shape), [x.shape[1], 1]), x
    ),
    "detach": aten.detach.default,
    "alias": aten.alias.default,
    "t": aten.t.default,
    "transpose": lambda x: aten.transpose.int(x, 0, -1),
    "permute": lambda x: aten.permute.default(x, [1, 0]),
    "identity permute": lambda x: aten.permute.default(x, [0, 1]),
    "flat and back": lambda x: aten.view.default(
        aten.view.default(aten.clone.default(x, memory_format=torch.contiguous_format), [12]),
        list(x.shape),
    ),
    "expand": lambda x: aten.expand.default(x, list(x.shape)),
    "slice": lambda x: aten.slice.Tensor(x, 0, 0, 9223372036854775807),
    "to float": lambda x: aten._to_copy.default(x, dtype=torch.float32),
    "through double": lambda x: aten._to_copy.default(
        aten._to_copy.default(x, dtype=torch.float64), dtype=torch.float32
    ),
    "add zero": lambda x: aten.add.Tensor(x, 0),
    "times one": lambda x: aten.mul.Tensor(x, 1),
    "over one": lambda x: aten.div.Tensor(x, 1.0),
    "minus zero": lambda x: aten.mul.Tensor(x, -0.0),
    "times table": lambda x: aten.mul.Tensor(x, aten.neg.default(torch.tensor([[2.0]]))),
    "masked": lambda x: aten.add.Tensor(x, aten.cumsum.default(torch.ones(x.shape[-1]), 0)),
    "dropout": lambda x: aten.native_dropout.default(x, 0.5, True)[0],
    "max": lambda x: aten.expand.default(aten.max.dim(x, 1, True)[0], list(x.shape)),
}
BINARY: dict[str, Callable[[Any, Any], Any]] = {
    "add": aten.add.Tensor,
    "mul": aten.mul.Tensor,
    "sub": lambda x, y: aten.sub.Tensor(x, y, alpha=2),
}
Line = tuple[str, int, int]

lines = st.lists(
    st.tuples(
        st.sampled_from([*UNARY, *BINARY]),
        st.integers(0, 30),
        st.integers(0, 30),
    ),
    min_size=1,
    max_size=12,
)
results = st.lists(st.integers(0, 30), min_size=1, max_size=4)


def interpret(code: Sequence[Line], returned: Sequence[int], *inputs: Any) -> Sequence[Any]:
    """Each line appends a value; the numbers pick earlier values, round the end."""
    pool = list(inputs)
    for name, first, second in code:
        x = pool[first % len(pool)]
        if name in UNARY:
            pool.append(UNARY[name](x))
            continue
        y = pool[second % len(pool)]
        y = y if y.shape == x.shape else aten.t.default(y)
        pool.append(BINARY[name](x, y))
    computed = pool[len(inputs) :]
    chosen = [computed[index % len(computed)] for index in returned]
    return [*chosen, aten.add.Tensor(inputs[0], pool[-1].sum())]


def contents(strides: bool) -> torch.Tensor:
    values = torch.randn(3, 4)
    values[0, 0], values[1, 1], values[2, 2] = -0.0, float("inf"), float("nan")
    return values.t().contiguous().t() if strides else values


@settings(max_examples=60, deadline=None, database=None)
@given(code=lines, returned=results, strided=st.booleans())
def test_pipeline_is_exact(code: list[Line], returned: list[int], strided: bool) -> None:
    examples = (contents(strided), contents(not strided))

    def step(weight: Any, x: Any) -> Sequence[Any]:
        return interpret(code, returned, weight, x)

    program = support.build(step, *examples, updates=("weight",))
    done = run(program, pipeline(Options()), support.STRICT)
    support.assert_parity(program, done, *examples)
    again = run(done, pipeline(Options()), support.STRICT)
    assert text.render(again) == text.render(done)
