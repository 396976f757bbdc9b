#!/usr/bin/env bash
# torch 2.13.0, CPU: backward() inside of a torch.autocast block multiplies in bfloat16 where the
# forward part was float32.
#
# A good guess: backward ops run in the type that autocast chose for their forward ops, as the
# documentation of torch.autocast has it; a forward part under autocast(enabled=False) then has a
# float32 backward wherever it is called. Seen: called in the outer block, the products of the
# backward are cast to bfloat16, and the gradients are rounded to bfloat16. What decides is the block
# around backward(), not the one around the forward part.
#
# Output: the dtypes of the backward's products in both places, then "as stated".
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet torch==2.13.0
"$folder/venv/bin/python" -W ignore - <<'PYTHON'
import torch
from torch.utils._python_dispatch import TorchDispatchMode


class Products(TorchDispatchMode):
    def __init__(self):
        super().__init__()
        self.dtypes = []

    def __torch_dispatch__(self, op, types, args=(), kwargs=None):
        if op is torch.ops.aten.mm.default:
            self.dtypes.append(str(args[0].dtype))
        return op(*args, **(kwargs or {}))


def backward(inside):
    torch.manual_seed(0)
    layer, x = torch.nn.Linear(8, 4), torch.randn(3, 8)
    with torch.autocast("cpu", torch.bfloat16):
        with torch.autocast("cpu", enabled=False):
            loss = layer(x).square().mean()
        if inside:
            with Products() as seen:
                loss.backward()
    if not inside:
        with Products() as seen:
            loss.backward()
    gradient = layer.weight.grad
    return loss, seen.dtypes, torch.equal(gradient, gradient.bfloat16().float())


print("torch", torch.__version__)
inside, outside = backward(True), backward(False)
print("inside of the block: ", *inside[1], "- gradients are bfloat16 numbers:", inside[2])
print("outside of the block:", *outside[1], "- gradients are bfloat16 numbers:", outside[2])
assert torch.equal(inside[0], outside[0])
assert set(inside[1]) == {"torch.bfloat16"} and inside[2]
assert set(outside[1]) == {"torch.float32"} and not outside[2]
print("as stated")
PYTHON
