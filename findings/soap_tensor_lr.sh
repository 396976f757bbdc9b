#!/usr/bin/env bash
# pytorch_optimizer 4.1.0 with torch 2.13.0: SOAP multiplies a learning rate that is a tensor, in
# place, at each step.
#
# A good guess: lr=torch.tensor(0.05), which torch's optimizers take, is the rate 0.05. Seen: the bias
# correction of a step is multiplied into the tensor itself, which is the param group's: the rate
# grows by a factor of several at each step, and training runs away. With lr=0.05 it stays. No error,
# no warning.
#
# Output: the rate in the param group after each of four steps, for both, then "as stated".
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet torch==2.13.0
"$folder/venv/bin/pip" install --quiet torch==2.13.0 pytorch_optimizer==4.1.0
"$folder/venv/bin/python" -W ignore - <<'PYTHON'
from importlib.metadata import version

import pytorch_optimizer
import torch

torch.set_num_threads(1)


def rates(lr):
    numbers = torch.Generator().manual_seed(0)
    weight, found = torch.nn.Parameter(torch.randn(4, 4, generator=numbers)), []
    optimizer = pytorch_optimizer.SOAP([weight], lr=lr)
    for _ in range(4):
        weight.grad = torch.randn(4, 4, generator=numbers)
        optimizer.step()
        found.append(round(float(optimizer.param_groups[0]["lr"]), 4))
    return found


print("torch", torch.__version__, "pytorch_optimizer", version("pytorch_optimizer"))
number, tensor = rates(0.05), rates(torch.tensor(0.05))
print("lr=0.05:", number)
print("lr=torch.tensor(0.05):", tensor)
assert number == [0.05] * 4
assert tensor[0] == 0.05 and tensor[-1] > 20 * 0.05
print("as stated")
PYTHON
