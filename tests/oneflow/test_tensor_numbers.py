"""Functions and methods of tensors give what OneFlow 0.9 gave: dtype, shape and numbers."""

import ast
import csv
import json
import math
import warnings
from importlib.resources import files
from pathlib import Path

import pytest
import torch

import torchgraph.oneflow as flow
from torchgraph.oneflow._port import names
from torchgraph.oneflow._port.errors import NotPorted
from torchgraph.oneflow._port.names import table

from .numbers.tensor_expressions import Bench

NUMBERS = Path(__file__).parent / "numbers"
EXPECTED = json.loads((NUMBERS / "tensors.json").read_text())
REFUSED = json.loads((NUMBERS / "tensors_refused.json").read_text())
LOOSE = {
    "float16": 2e-3,
    "log_softmax": 2e-5,  # OneFlow's exponential on the CPU is not exact
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
CALLS = {
    "repr": "repr",
    "str": "str",
    "len": "len",
    "float": "float",
    "int": "int",
    "bool": "bool",
    "hash": "hash",
}


@pytest.fixture(scope="module")
def bench():
    found = Bench(torch, flow)
    eval("flow.ones", {**found.names, "flow": flow})  # whoever asks for a name speaks
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
        return (
            found == expected
            or (math.isnan(found) and math.isnan(expected))
            or (abs(found - expected) <= allowed * max(abs(found), abs(expected), 1e-2))
        )
    return found == expected and type(found) is type(expected)


def allowance(expression):
    return max([2e-6, *(size for word, size in LOOSE.items() if word in expression)])


def value_of(bench, expression):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return bench.value(expression)


def wrong(bench, expression):
    """What an expression gives, where that is not what OneFlow gave."""
    expected = EXPECTED[expression]
    allowed = allowance(expression + json.dumps(expected))
    found = value_of(bench, expression)
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
    "Tensor.__rfloordiv__": "a TypeError in OneFlow 0.9; of //",
    "Tensor.__rmod__": "a TypeError in OneFlow 0.9; of %",
    "Tensor.get_device": "an error on the CPU in OneFlow",
    "Tensor.nms": "only on a GPU in OneFlow",
    "nms": "only on a GPU in OneFlow",
    "is_deprecated": "an AttributeError in OneFlow 0.9",
}


ROWS = csv.DictReader(
    (files(names.__name__) / "tensors.csv").read_text(encoding="utf-8").splitlines()
)
KEPT = [row["name"] for row in ROWS if row["becomes"]]


def test_each_row_has_a_case():
    assert [name for name in KEPT if name not in BY_ROW and name not in NO_CASE] == []


@pytest.mark.parametrize("row", sorted(BY_ROW))
def test_a_row_gives_what_oneflow_gave(bench, row):
    found = {one: wrong(bench, one) for one in BY_ROW[row] if one not in REFUSED}

    assert {one: value for one, value in found.items() if value is not None} == {}


@pytest.mark.parametrize("expression", REFUSED)
def test_what_oneflow_gets_wrong_is_refused(bench, expression):
    with pytest.raises(NotPorted):
        value_of(bench, expression)


def test_numpy_reads_a_tensor_that_requires_a_gradient(bench):
    assert value_of(bench, "np.asarray(flow.ones(2, requires_grad=True))")[3] == [1.0, 1.0]
