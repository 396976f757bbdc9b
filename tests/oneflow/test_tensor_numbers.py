"""Functions and methods of tensors give what OneFlow 0.9 gave: dtype, shape and numbers."""

import ast
import json
import math
import sys
import warnings
from pathlib import Path

import pytest
import torch

import torchgraph.oneflow as flow
from torchgraph.porting.errors import NotPorted
from torchgraph.porting.names import table
from torchgraph.porting.tensors import dialect

from .numbers.tensor_expressions import Bench

EXPECTED = json.loads((Path(__file__).parent / "numbers" / "tensors.json").read_text())
LOOSE = {
    "float16": 2e-3,
    "float64": 1e-9,
    "log_softmax": 2e-5,  # OneFlow's exponential on the CPU is not exact
    "gelu": 2e-6,
    "gradients": 4e-6,
}
OPERATORS = {
    ast.Add: "add",
    ast.Sub: "sub",
    ast.Mult: "mul",
    ast.Div: "truediv",
    ast.FloorDiv: "floordiv",
    ast.Mod: "mod",
    ast.Pow: "pow",
    ast.BitAnd: "and",
    ast.BitOr: "or",
    ast.BitXor: "xor",
    ast.MatMult: "matmul",
    ast.Eq: "eq",
    ast.NotEq: "ne",
    ast.Lt: "lt",
    ast.LtE: "le",
    ast.Gt: "gt",
    ast.GtE: "ge",
    ast.In: "contains",
    ast.USub: "neg",
    ast.Invert: "invert",
}
CALLS = {"str": "str", "len": "len", "float": "float", "int": "int", "bool": "bool", "hash": "hash"}


@pytest.fixture(scope="module")
def bench():
    found = Bench(torch, flow)
    eval("heard(getframe())", {**found.names, "heard": dialect.heard, "getframe": sys._getframe})
    return found


@pytest.fixture(autouse=True)
def _no_trace():
    kept = torch.get_rng_state()
    yield
    torch.set_rng_state(kept)


def close(found, expected, allowed):
    if isinstance(expected, list):
        pairs = zip(found, expected, strict=False)
        return len(found) == len(expected) and all(close(a, b, allowed) for a, b in pairs)
    if isinstance(expected, float) and isinstance(found, float):
        return found == expected or (math.isnan(found) and math.isnan(expected)) or (
            abs(found - expected) <= allowed * max(abs(found), abs(expected), 1e-2)
        )
    return found == expected and type(found) is type(expected)


def allowance(expression):
    return max([2e-6, *(size for word, size in LOOSE.items() if word in expression)])


def value_of(bench, expression):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return bench.value(expression)


def wrong(bench, expression):
    """What an expression gives, where that is not what OneFlow gave, nor a refusal."""
    expected = EXPECTED[expression]
    allowed = allowance(expression + json.dumps(expected))
    try:
        found = value_of(bench, expression)
    except NotPorted:
        return None
    return None if close(found, expected, allowed) else found


def rows_of(expression):
    """The rows of the table that an expression asks for."""
    found = set()
    for node in ast.walk(ast.parse(expression, mode="eval")):
        if isinstance(node, ast.Attribute):
            path = ast.unparse(node)
            is_of_flow = path.startswith("flow.") and path[5:] in table()
            found.add(path[5:] if is_of_flow else f"Tensor.{node.attr}")
            if path.startswith("operator."):
                found.add(f"Tensor.__{node.attr}__")
        elif isinstance(node, ast.BinOp):
            word = OPERATORS[type(node.op)]
            is_mirrored = isinstance(node.left, (ast.Constant, ast.UnaryOp))
            found.add(f"Tensor.__{'r' * is_mirrored}{word}__")
        elif isinstance(node, (ast.Compare, ast.UnaryOp)):
            kind = node.ops[0] if isinstance(node, ast.Compare) else node.op
            found.add(f"Tensor.__{OPERATORS.get(type(kind), '')}__")
        elif isinstance(node, ast.Subscript):
            found.add("Tensor.__getitem__")
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            found.add(f"Tensor.__{CALLS.get(node.func.id, '')}__")
    return found & set(table())


BY_ROW = {}
for _expression in EXPECTED:
    for _row in rows_of(_expression):
        BY_ROW.setdefault(_row, []).append(_expression)

NO_CASE = {
    "Tensor.pin_memory": "ends OneFlow's process without a GPU",
    "Tensor.__array__": "asked by numpy.asarray, below",
    "Tensor.__setstate__": "torch's",
}


def of_this_area():
    return [
        row.name
        for row in table().values()
        if not row.is_refused and row.becomes.startswith(("torch.", "torchgraph.porting.tensors."))
        and (row.owner in ("", "Tensor", "linalg"))
    ]


def test_each_row_has_a_case():
    assert [name for name in of_this_area() if name not in BY_ROW and name not in NO_CASE] == []


@pytest.mark.parametrize("row", sorted(BY_ROW))
def test_a_row_gives_what_oneflow_gave(bench, row):
    found = {one: wrong(bench, one) for one in BY_ROW[row]}

    assert {one: value for one, value in found.items() if value is not None} == {}


def test_most_cases_are_not_refusals(bench):
    """A refusal is right, too, but a table of refusals would be none."""
    refused = 0
    for expression in EXPECTED:
        try:
            value_of(bench, expression)
        except NotPorted:
            refused += 1

    assert refused < len(EXPECTED) / 20


def test_numpy_reads_a_tensor_that_requires_a_gradient(bench):
    assert value_of(bench, "np.asarray(flow.ones(2, requires_grad=True))")[3] == [1.0, 1.0]
