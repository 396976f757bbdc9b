#!/usr/bin/env bash
# torch 2.13.0: under torch.func.vmap, `tensor * 2.0` calls aten._to_copy with a Python float where
# the schema has a Tensor.
#
# A good guess: the number reaches aten.mul.Tensor or aten.mul.Scalar as a number, as it does
# without vmap, or becomes a tensor by aten.scalar_tensor, as in torch.where. Seen by a
# TorchDispatchMode: aten._to_copy.default(2.0, dtype=torch.float32), whose first argument has no
# dtype, no shape and, in a graph that is traced from it, no node. torch.where(v > 1, v, 0.0) in the
# same vmap calls aten.scalar_tensor.default.
#
# Output: the ops of both, then "as stated".
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet torch==2.13.0
"$folder/venv/bin/python" -W ignore - <<'PYTHON'
import torch
from torch.utils._python_dispatch import TorchDispatchMode


class Calls(TorchDispatchMode):
    def __init__(self):
        super().__init__()
        self.seen = []

    def __torch_dispatch__(self, op, types, args=(), kwargs=None):
        self.seen.append((str(op), type(args[0]).__name__))
        return op(*args, **(kwargs or {}))


def ops(function):
    with Calls() as calls:
        torch.func.vmap(function)(torch.arange(3.0))
    return calls.seen


print("torch", torch.__version__)
product, chosen = ops(lambda v: v * 2.0), ops(lambda v: torch.where(v > 1, v, 0.0))
print("tensor * number:", product)
print("where:", chosen)
assert ("aten._to_copy.default", "float") in product
assert ("aten.mul.Tensor", "Tensor") in product
assert ("aten.scalar_tensor.default", "float") in chosen
assert not any(name == "aten._to_copy.default" for name, _ in chosen)
print("as stated")
PYTHON
