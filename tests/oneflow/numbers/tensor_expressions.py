"""Expressions of tensors, as ``flow.sum(f23, 1)``, evaluated with OneFlow or with the port of it.

``f23`` is a float32 tensor of shape (2, 3) that holds always the same numbers. The first letter is
the dtype: f, d, h for float32, 64, 16; i, l, c, u for int32, int64, int8, uint8; b for bool. A last
letter changes the numbers: p for positive ones, q and r for others, t for a transposed tensor.

Python 3.10, NumPy, and the library that is given: OneFlow 0.9 or torch.
"""

import math
import operator
import re

import numpy as np

DTYPES = {
    "f": "float32",
    "d": "float64",
    "h": "float16",
    "i": "int32",
    "l": "int64",
    "c": "int8",
    "u": "uint8",
    "b": "bool",
}
SEEDS = {"": 0, "t": 0, "p": 3, "q": 5, "r": 8}
TENSOR = re.compile(r"(?<![.\w'])([fdhilcub])(\d*)([tpqr]?)(?![\w'(=])")


def numbers(kind, dims, last):
    """An array for the name of a tensor."""
    shape = tuple(int(one) for one in dims)
    count = int(np.prod(shape)) if shape else 1
    found = (np.arange(count) * 7 + SEEDS[last] * 3 + 4) % 17 - 8
    if last == "p":
        found = np.abs(found) + 1
    if last == "q":
        found = np.where(found == 0, 3, found)
    if kind in "fdh":
        found = found / (4.0 if last != "p" else 2.0)
    elif kind == "b":
        found = found % 2 == 0 if last == "q" else found % 3 == 0
    elif kind == "u":
        found = np.abs(found)
    return found.astype(DTYPES[kind]).reshape(shape)


class Bench:
    """Evaluates expressions.

    Args:
        library: makes the tensors: oneflow or torch.
        flow: what ``flow`` is in the expressions.
        name: the name of the module that the expressions are code of.
    """

    def __init__(self, library, flow, name="expressions"):
        self.library = library
        self.names = {
            "__name__": name,
            "flow": flow,
            "np": np,
            "math": math,
            "operator": operator,
            "gradients": self.gradients,
        }

    def tensor(self, kind, dims, last):
        array = numbers(kind, dims, last)
        dtype = getattr(self.library, DTYPES[kind])
        if last != "t":
            return self.library.tensor(array, dtype=dtype)
        return self.library.tensor(np.ascontiguousarray(array.T), dtype=dtype).T

    def gradients(self, function, *tensors: object):
        """Of the sum of what a function gives, weighted by 0 to 4 less 1.5."""
        leaves = [one.detach().clone() for one in tensors]
        for one in leaves:
            one.requires_grad = True
        found = function(*leaves)
        count = int(np.prod(tuple(found.shape)))
        weights = (np.arange(count) % 5 - 1.5).reshape(tuple(found.shape))
        (found * self.library.tensor(weights, dtype=found.dtype)).sum().backward()
        return [one.grad for one in leaves]

    def value(self, expression):
        """What an expression gives, for JSON."""
        tensors = {one[0]: self.tensor(*one.groups()) for one in TENSOR.finditer(expression)}
        return self.encoded(eval(expression, {**self.names, **tensors}))

    def encoded(self, value):
        if isinstance(value, self.library.Tensor):
            return self.encoded_tensor(value)
        if isinstance(value, np.ndarray):
            return ["array", str(value.dtype), list(value.shape), value.reshape(-1).tolist()]
        if isinstance(value, (tuple, list)) or type(value).__name__ == "TensorTuple":
            return [self.encoded(one) for one in value]
        if isinstance(value, self.library.dtype):
            return str(value).partition(".")[2]
        return value if isinstance(value, (bool, int, float, str, type(None))) else str(value)

    def encoded_tensor(self, value):
        dtype = str(value.dtype).partition(".")[2]
        found = value.detach()
        array = (found.to(self.library.float32) if dtype == "bfloat16" else found).numpy()
        return ["tensor", dtype, list(array.shape), array.reshape(-1).tolist()]
