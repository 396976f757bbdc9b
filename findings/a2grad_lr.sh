#!/usr/bin/env bash
# torch-optimizer 0.3.0 with torch 2.13.0: the A2Grad optimizers do not use their learning rate.
#
# A good guess: lr scales the update, as in every optimizer, and a scheduler that lowers it has an
# effect. Seen: A2GradUni, A2GradInc and A2GradExp take the same steps for lr=0.001, 0.1 and 10, to
# the bit; what scales them are beta and lips. A warm-up or a decay of lr does nothing, and no
# message says so.
#
# Output: the weight after three steps for each lr, then "as stated".
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet torch==2.13.0
"$folder/venv/bin/pip" install --quiet torch==2.13.0 torch-optimizer==0.3.0
"$folder/venv/bin/python" -W ignore - <<'PYTHON'
from importlib.metadata import version

import torch
import torch_optimizer


def weight_after(kind, lr):
    weight = torch.nn.Parameter(torch.ones(1))
    optimizer = kind([weight], lr=lr)
    for _ in range(3):
        weight.grad = weight.detach().clone()
        optimizer.step()
    return weight.item()


print("torch", torch.__version__, "torch-optimizer", version("torch-optimizer"))
for kind in (torch_optimizer.A2GradUni, torch_optimizer.A2GradInc, torch_optimizer.A2GradExp):
    found = [weight_after(kind, lr) for lr in (0.001, 0.1, 10.0)]
    print(f"{kind.__name__}: {found}")
    assert len(set(found)) == 1 and found[0] != 1
plain = [weight_after(torch_optimizer.DiffGrad, lr) for lr in (0.001, 0.1, 10.0)]
print(f"DiffGrad: {plain}")
assert len(set(plain)) == 3
print("as stated")
PYTHON
